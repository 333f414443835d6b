"""Settings from JSON: a file of --config, or what a run has recorded."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from store.cli.arguments import program
from train.config.flags import flag_of
from train.config.option import is_of_type
from train.config.settings import Config
from train.errors import ConfigError

__all__ = [
    "settings_of",
]


def settings_of(content: Any, where: str) -> dict[str, Any]:
    """Check names and types of settings from JSON: an object of them, or with them as "config"."""
    settings = content.get("config", content) if isinstance(content, dict) else content
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{where}: expected an object of settings, found {type(settings).__name__}"
        )
    types = Config.__annotations__  # texts, such as "float | None"
    for name, value in settings.items():
        if name not in types:
            raise ConfigError(
                f"{where}: expected settings of {program('train')} --help, found {name!r:.80}"
            )
        if not is_of_type(value, types[name]):
            raise ConfigError(f"{where}: {name}: expected {types[name]}, found {value!r:.80}")
    if settings is content:
        return settings
    if "layers" not in content:
        _check_numbering(settings, where)
    return _settings_before() | settings  # of a run


def _settings_before() -> dict[str, Any]:
    """What runs did before there was a setting for it."""
    before = {setting.name: setting.metadata["before"] for setting in fields(Config)}
    return {name: value for name, value in before.items() if value is not None}


def _check_numbering(settings: dict[str, Any], where: str) -> None:
    """Refuse layers of a run of an older version, which counted them from 0."""
    named = [name for name in ("layers", "saplma_layer") if settings.get(name) is not None]
    if named:
        raise ConfigError(
            f"{where}: {' and '.join(map(flag_of, named))} of an older version, which counted "
            "layers from 0; now they are numbered as the model numbers them: train again with "
            "those numbers"
        )
