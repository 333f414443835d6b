"""The settings of a run: one flat dataclass, its command line, and its JSON file."""

from train.config.checks import check_config, check_names
from train.config.command_line import Arguments, Parser, build_parser, parse_arguments
from train.config.flags import SWITCHES, flag_of, off_flag
from train.config.option import OUTSIDE
from train.config.own_options import own_options
from train.config.recorded import settings_of_run
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
