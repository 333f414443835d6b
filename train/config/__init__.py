"""The settings of a run: one flat dataclass, its command line, and its JSON file."""

from train.config.checks import check_config, check_names, own_options, settings_of_run
from train.config.command_line import Arguments, Parser, build_parser, parse_arguments
from train.config.option import OUTSIDE, SWITCHES, flag_of, off_flag
from train.config.settings import PATHS, Config

__all__ = [
    "OUTSIDE",
    "PATHS",
    "SWITCHES",
    "Arguments",
    "Config",
    "Parser",
    "build_parser",
    "check_config",
    "check_names",
    "flag_of",
    "off_flag",
    "own_options",
    "parse_arguments",
    "settings_of_run",
]
