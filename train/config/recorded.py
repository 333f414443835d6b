"""Settings from JSON: a file of --config, or what a run has recorded."""

from __future__ import annotations

from typing import Any

from store.cli.arguments import program
from train.config.flags import flag_of
from train.config.option import is_of_type
from train.config.settings import Config
from train.errors import ConfigError

__all__ = ["settings_of", "settings_of_run"]


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
    return settings


def settings_of_run(content: Any, where: str) -> dict[str, Any]:
    """The settings that a run recorded: all that there are, or the run is of another version."""
    settings = settings_of(content, where)
    missing = next((name for name in Config.__annotations__ if name not in settings), None)
    if missing is not None:
        raise ConfigError(
            f"{where}: expected all settings of a run of this version, found none of "
            f"{flag_of(missing)}; train again"
        )
    return settings
