"""The settings of a run: one flat dataclass, its command line, and its JSON file."""

from train.config.checks import (
    Reading,
    check_config,
    config_of_run,
    make_config,
    own_options,
    scoring_settings,
    settings_of,
)
from train.config.command_line import (
    Arguments,
    Parser,
    add_scoring_options,
    parse_arguments,
    reading_of,
)
from train.config.settings import EACH, OUTSIDE, PATHS, SWITCHES, Config, flag_of, off_flag

__all__ = [
    "EACH",
    "OUTSIDE",
    "PATHS",
    "SWITCHES",
    "Arguments",
    "Config",
    "Parser",
    "Reading",
    "add_scoring_options",
    "check_config",
    "config_of_run",
    "flag_of",
    "make_config",
    "off_flag",
    "own_options",
    "parse_arguments",
    "reading_of",
    "scoring_settings",
    "settings_of",
]
