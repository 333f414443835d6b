"""The options that a method from outside has for itself, as settings of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field
from typing import Any

from models.options import Option
from train.config.flags import flag_of
from train.config.option import is_of_type, option, violated_rule
from train.config.settings import Config
from train.errors import ConfigError
from train.outside.records import recorded_options

__all__ = [
    "own_options",
    "own_setting",
]


def own_setting(name: str, one: Option) -> Field:
    """An option that a method has for itself, as a setting: the flag --NAME-OPTION."""
    default = one.default if one.kind is not bool else "on" if one.default else "off"
    text = f"{one.help} (default: {default})".replace("%", "%%")  # argparse formats it
    setting = option(text, one.default, one.low, one.high, choices=one.choices)
    setting.name = f"{name}_{one}"
    setting.type = one.kind.__name__ + (" | None" if one.default is None else "")
    if setting.name in Config.__dataclass_fields__:
        raise ConfigError(
            f"{name}: its option {str(one)!r} would have the flag of another setting, "
            f"{flag_of(setting.name)}; rename one"
        )
    return setting


def own_options(name: str, options: Iterable[str], recorded: Any) -> dict[str, Any]:
    """Values of the `Option`s of a method: as a run records them, else their defaults.

    Raises ConfigError for a value of another type, out of its range, or of an option that the
    method does not have.
    """
    own = {str(one): one for one in options if isinstance(one, Option)}
    given = recorded_options(recorded, name)
    for key in given:
        if key not in own:
            raise ConfigError(
                f"{name}: expected options of {', '.join(own) or 'none'}, found {key!r:.80}"
            )
    values = {}
    for key, one in own.items():
        setting = own_setting(name, one)
        value = given.get(key, one.default)
        kinds = str(setting.type)
        expected = violated_rule(setting, value) if is_of_type(value, kinds) else kinds
        if expected is not None:
            raise ConfigError(f"{flag_of(setting.name)}: expected {expected}, found {value!r:.80}")
        values[key] = value
    return values
