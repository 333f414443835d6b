"""The settings of a run: one flat dataclass, its command line, and its JSON file."""

from train.config.checks import check_config, check_names, own_options, settings_of_run
from train.config.command_line import (
    Arguments,
    Parser,
    add_scoring_options,
    build_parser,
    parse_arguments,
    scoring_settings,
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
    "add_scoring_options",
    "build_parser",
    "check_config",
    "check_names",
    "flag_of",
    "off_flag",
    "own_options",
    "parse_arguments",
    "scoring_settings",
    "settings_of_run",
]
