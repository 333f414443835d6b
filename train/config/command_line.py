"""The command line of a training: a flag for each setting, and --config, a file of them.

Commands that score traces with a finished run have some of its settings as options.
"""

import argparse
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import NoReturn

from store.cli import arguments
from store.cli.arguments import Version, attach_values, expand, program
from train.config.checks import Reading, make_config, own_setting, settings_of
from train.config.settings import OUTSIDE, PATHS, Config, flag_of
from train.errors import ConfigError
from train.files import read_json
from train.outside import LOADED, load_methods

__all__ = [
    "Arguments",
    "Parser",
    "add_scoring_options",
    "parse_arguments",
    "reading_of",
]

EXAMPLES = """examples:
  python -m train
      the embedded example: four detectors and the baselines
  python -m train --store traces.zarr --seeds 5
      five seeds on one split: mean and spread
  python -m train --store squad.zarr nq.zarr --weights squad=0.7,nq=0.3
      two stores as one, with shares of each epoch
  python -m train --store traces.zarr --follow --schedule constant
      while it is written: each epoch has what is committed then
  python -m train --store traces.zarr --models all
      every detector and probe whose columns the store has
  python -m train --store traces.zarr --models lapeigvals,saplma,lstm_solo --layers 8-24
      two detectors and a probe on some layers
  python -m train --store traces.zarr --resume
      continue after a crash, with the same results as without it
  python -m train --config runs/traces/run.json --lr 3e-4 --output-dir runs/slower
      the settings of an earlier run, except for two
  torchrun --nproc-per-node 2 --no-python trace-train --store traces.zarr
      two processes share each batch
other commands, each with a --help:
  python -m train compare DIR...
      runs side by side, with paired tests
  python -m train evaluate --run DIR --store STORE...
      metrics on other stores, at the thresholds of the run
  python -m train predict --run DIR --store STORE
      scores of new traces
  python -m train serve --run DIR --model PATH
      a language model behind OpenAI's API, its answers scored
"""
SECTIONS = {  # first field -> heading in --help
    "store": "data and methods",
    "epochs": "training",
    "precision": "hardware, reading, saving",
    "run_lstm": "switches of single detectors",
    "attn_threshold": "options of the detectors",
}
MAX_CONFIG_BYTES = 1_000_000


@dataclass(frozen=True)
class Arguments:
    """A command line."""

    config: Config
    # continue the unfinished run in the output directory, if there is one
    resume: bool = False
    # start over and replace the run in the output directory, finished or not
    overwrite: bool = False


class Parser(arguments.Parser):
    """Arguments of a command, none of them shortened; a mistake is a ConfigError."""

    def __init__(self, command: str = "", **options: object) -> None:
        super().__init__(f"{program('train')} {command}".strip(), allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """One line, as a ConfigError, instead of argparse's usage and message."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """Build the command line: a flag per field of `Config`; booleans also take --no-FLAG.

    Options of the methods from outside that are loaded have flags, too.
    """
    parser = Parser(
        description=(
            "Train hallucination detectors on a trace store and compare them with simple baselines."
        ),
        epilog=EXAMPLES,
        # what is not given is taken from --config, else from `Config`
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--version", action=Version, nargs=0, help="print the version, and that of the format"
    )
    text = "JSON file of settings, e.g. the run.json of a run; flags take precedence"
    parser.add_argument("--config", type=expand, metavar="FILE", help=text)
    existing = parser.add_mutually_exclusive_group()
    text = "continue the unfinished run in the output directory, if there is one"
    existing.add_argument("--resume", action="store_true", help=text)
    text = "start over and replace the run in the output directory, finished or not"
    existing.add_argument("--overwrite", action="store_true", help=text)
    text = "the same as --precision 32"
    parser.add_argument("--no-amp", action="store_const", const="32", dest="precision", help=text)
    group: argparse._ActionsContainer = parser
    for setting in fields(Config):
        if setting.name in SECTIONS:
            group = parser.add_argument_group(SECTIONS[setting.name])
        if setting.name != OUTSIDE:
            _add_flag(group, setting)
    for name, method in LOADED.items():
        if method.options:
            group = parser.add_argument_group(f"options of {name}")
        for one in method.options:
            setting = own_setting(name, one)
            try:
                _add_flag(group, setting)
            except argparse.ArgumentError as error:
                raise ConfigError(
                    f"{flag_of(setting.name)}: two options would have this flag; rename one of them"
                ) from error
    return parser


def _add_flag(parser: argparse._ActionsContainer, setting: Field) -> None:
    flag = flag_of(setting.name)
    text = setting.metadata["help"]
    kind = setting.type.removesuffix(" | None")
    choices = setting.metadata["choices"]
    if "(default" not in text:
        switch = "on" if setting.default else "off"
        text += f" (default: {switch if kind == 'bool' else setting.default})"
    if kind == "bool":
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
    elif choices:
        parser.add_argument(flag, choices=choices, help=text)
    elif setting.name in PATHS:
        count = "+" if "list" in kind else None
        parser.add_argument(flag, type=expand, nargs=count, metavar="PATH", help=text)
    else:
        convert = {"int": int, "float": float, "str": str}[kind]
        parser.add_argument(flag, type=convert, metavar=kind.upper(), help=text)


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Read the command line; raises ConfigError, and SystemExit for --help."""
    argv = attach_values(argv)
    # before the flags of the methods that it loads are known
    early = Parser(add_help=False)
    early.add_argument("--config")
    early.add_argument("--models")
    first, _ = early.parse_known_args(argv)
    in_file = _read_settings(first.config)
    models = {}
    if first.models is not None:
        models["models"] = load_methods(first.models)
    else:
        load_methods(str(in_file.get("models") or ""), files=False)
    given = vars(build_parser().parse_args(argv))
    given |= models
    if len(given.get("store", [])) == 1:
        (given["store"],) = given["store"]
    resume = given.pop("resume", False)
    overwrite = given.pop("overwrite", False)
    given.pop("config", None)
    return Arguments(make_config(given, in_file), resume, overwrite)


def _read_settings(file: str | None) -> dict[str, object]:
    """The settings of --config; {} without it."""
    if not file:
        return {}
    try:
        content = read_json(Path(expand(file)), MAX_CONFIG_BYTES)
    except ValueError as error:
        raise ConfigError(f"--config: {error}") from error
    return settings_of(content, f"--config: {expand(file)}")


def add_scoring_options(parser: argparse.ArgumentParser, by_default: str, verb: str) -> None:
    """Add which methods score traces, which traces are refused, how they are read, and where."""
    add = parser.add_argument
    text = (
        "detectors, probes or baselines of the run, separated by commas; FILE.py:CLASS for one of "
        f"your own: the file is run (default: {by_default})"
    )
    add("--models", metavar="NAMES", help=text)
    text = f"also {verb} traces of another model, other layers or other prompts"
    add("--force", action="store_true", help=text)
    text = "traces at a time (default: as in the run)"
    add("--batch-size", type=int, metavar="INT", help=text)
    add("--num-workers", type=int, default=0, metavar="INT", help="threads that read ahead")
    text = "use the CPU even where there is an accelerator"
    add("--force-cpu", action="store_true", help=text)


def reading_of(options: argparse.Namespace) -> Reading:
    """What the options of `add_scoring_options` say of how traces are read."""
    return Reading(options.batch_size, options.num_workers, options.force_cpu)
