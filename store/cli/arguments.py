"""What the parsers of several commands share: arguments, and types of arguments."""

import argparse
import math
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from store.errors import SchemaError
from store.labels.answer_scores import RULES
from store.read.directory import local_path
from store.reports import terminal_text
from store.traces.layers import parse_layers

__all__ = [
    "Commands",
    "Group",
    "Parser",
    "Version",
    "add_columns",
    "add_ignore_space",
    "add_judge",
    "add_out",
    "add_part",
    "add_score_columns",
    "add_score_threshold",
    "add_store",
    "as_called",
    "expand",
    "finite",
    "layers",
    "names",
    "path",
    "positive",
    "program",
    "rules",
]


CONSOLE_COMMANDS = ("trace-store", "trace-train")
COMMAND = re.compile(r"python -m (store|train)\b(?!\.)")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help as it is written, but for the commands in it, which are named as the user calls them."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return super()._fill_text(as_called(text), width, indent)

    def _expand_help(self, action: argparse.Action) -> str:
        return as_called(super()._expand_help(action))


class Parser(argparse.ArgumentParser):
    """Arguments of a command; a mistake is one line, and examples are printed as written."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, formatter_class=HelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """One line instead of argparse's usage and message."""
        self.exit(2, f"{self.prog}: {terminal_text(message)}; see {self.prog} --help\n")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
Group = argparse._ActionsContainer  # a parser, or a group of its arguments


class Version(argparse.Action):
    """Print the version and end."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from store.extras import version_text

        print(version_text())
        parser.exit()


def add_store(parser: Parser) -> None:
    parser.add_argument("store", metavar="STORE", type=path, help="path of the store")


def add_out(parser: Parser) -> None:
    parser.add_argument("store", metavar="OUT", type=path, help="path of the store to make")


def add_score_columns(parser: Parser) -> None:
    column = parser.add_mutually_exclusive_group()
    column.add_argument(
        "--score-column",
        metavar="NAME",
        help="column of FILE to read as scores (default: by known names)",
    )
    column.add_argument(
        "--label-column",
        metavar="NAME",
        help="column of FILE to read as labels, 1 = hallucination (default: by known names)",
    )
    direction = parser.add_mutually_exclusive_group()
    direction.add_argument(
        "--higher-is-better",
        dest="lower_is_better",
        action="store_false",
        default=None,
        help="high scores are right answers (default)",
    )
    direction.add_argument(
        "--lower-is-better",
        dest="lower_is_better",
        action="store_true",
        default=None,
        help="low scores are right answers",
    )


def add_score_threshold(parser: Group) -> None:
    parser.add_argument(
        "--score-threshold",
        metavar="S",
        type=finite,
        default=0.5,
        help="label 1 (hallucination) below this score (default: %(default)s)",
    )


def add_columns(parser: Group, default: str = "all") -> None:
    parser.add_argument(
        "--columns",
        metavar="NAMES",
        type=names,
        help=f"columns to keep, separated by commas, e.g. hs_last,label (default: {default})",
    )


def add_judge(parser: Group) -> None:
    parser.add_argument(
        "--judge-model",
        metavar="NAME_OR_PATH",
        type=expand,
        help="model that judges, with --labels judge: a directory, or a name on the Hugging Face "
        "Hub; a chat model is asked in its chat template",
    )
    parser.add_argument(
        "--judge-template",
        metavar="FILE_OR_TEXT",
        help="what the judge is asked, with {question}, {references} and {answer} in it, and the "
        "two words it chooses from: yes or no, correct or incorrect, right or wrong, true or "
        "false; the first has to mean that the answer is right; without "
        "{references} answers that have none are judged too (default: whether the answer "
        "means the same as one of the right answers, yes or no)",
    )


def add_ignore_space(parser: Group) -> None:
    parser.add_argument(
        "--ignore-space",
        action="store_true",
        help="continue even if the disk seems too small for the store (default: stop)",
    )


def add_part(parser: Group, of: str) -> None:
    parser.add_argument(
        "--part",
        metavar="K/N",
        type=_part,
        default=(1, 1),
        help=f"take every N-th {of} only, from the K-th on, e.g. 1/4 (default: all)",
    )


def finite(text: str) -> float:
    """A number that is neither infinite nor NaN."""
    with suppress(ValueError):
        value = float(text)
        if math.isfinite(value):
            return value
    raise argparse.ArgumentTypeError(f"expected a finite number, found {text!r}")


def names(text: str) -> list[str]:
    """'a, b' -> ['a', 'b']."""
    return [name.strip() for name in text.split(",")]


def rules(text: str) -> list[str]:
    """'contains, judge' -> ['contains', 'judge'], rules that label answers."""
    chosen = names(text)
    if not set(chosen) <= set(RULES) or len(set(chosen)) != len(chosen):
        raise argparse.ArgumentTypeError(
            f"expected different ones of {', '.join(RULES)}, found {text!r:.100}"
        )
    if len(chosen) > 1 and "none" in chosen:
        raise argparse.ArgumentTypeError(f"none goes with no other rule, found {text!r:.100}")
    return chosen


def path(text: str) -> Path:
    """A path with `~` expanded, which shells do not do in quotes and after `--flag=`."""
    return local_path(text)


def expand(text: str) -> str:
    """The same for what need not be a path: a pattern of files, the name of a model on the Hub."""
    # unlike Path.expanduser, and like a shell, this leaves the name of an unknown user unchanged
    return os.path.expanduser(text)  # noqa: PTH111


def _part(text: str) -> tuple[int, int]:
    k, _, n = text.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise argparse.ArgumentTypeError(f"expected K/N with 1 <= K <= N, found {text!r}")
    return int(k), int(n)


def positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive integer, found {text!r}")
    return int(text)


def layers(text: str) -> str:
    """Layers in the syntax of `store.traces.layers`; only the model knows which exist."""
    try:
        parse_layers(text)
    except SchemaError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("layers: ")) from error
    return text


def program(package: str) -> str:
    """How the user calls the commands of a package: by the installed name, or with `-m`."""
    is_installed = Path(sys.argv[0]).name in CONSOLE_COMMANDS
    return f"trace-{package}" if is_installed else f"python -m {package}"


def as_called(text: str) -> str:
    """A text whose commands, `python -m store` and `python -m train`, are as the user calls them.

    In a folder that has a `store.py` or a `train.py` of its own only the installed names work.
    """
    return COMMAND.sub(lambda found: program(found[1]), text)
