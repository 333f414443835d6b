"""What all command lines share: the parser, its help, and the types of values."""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from store.errors import SchemaError
from store.labels.answer_scores import RULES
from store.read.directory import local_path
from store.reports import terminal_text
from store.traces.layers import parse_layers

__all__ = [
    "Parser",
    "Version",
    "as_called",
    "attach_values",
    "expand",
    "finite",
    "layers",
    "names",
    "part",
    "path",
    "positive",
    "program",
    "rules",
    "seconds",
    "whole",
]

CONSOLE_COMMANDS = ("trace-store", "trace-train")
WITH_MINUS = {"--layers": re.compile(r"-\d"), "--fields": re.compile(r"-[^-]")}  # of values
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


class Version(argparse.Action):
    """Print the version and end."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from store.extras import version_text

        print(version_text())
        parser.exit()


def finite(text: str) -> float:
    """A number that is neither infinite nor NaN."""
    with suppress(ValueError):
        value = float(text)
        if math.isfinite(value):
            return value
    raise argparse.ArgumentTypeError(f"expected a finite number, found {text!r}")


def seconds(text: str) -> float:
    """A time of at most a day."""
    value = finite(text)
    if not 1 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"expected 1 to 86400 seconds, found {text!r}")
    return value


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


def class_names(text: str) -> dict[str, str]:
    """'right, made up' -> {"0": "right", "1": "made up"}."""
    found = names(text)
    if len(found) != 2 or not all(found) or found[0] == found[1]:
        raise argparse.ArgumentTypeError(
            f"expected two names, of label 0 and of label 1, found {text!r:.100}"
        )
    return dict(zip("01", found, strict=True))


def path(text: str) -> Path:
    """A path with `~` expanded, which shells do not do in quotes and after `--flag=`.

    An empty one, as of a variable that is not set, would be the folder here.
    """
    if not text:
        raise argparse.ArgumentTypeError("expected a path, found ''; . is the folder here")
    return local_path(text)


def expand(text: str) -> str:
    """The same for what need not be a path: a pattern of files, the name of a model on the Hub."""
    # unlike Path.expanduser, and like a shell, this leaves the name of an unknown user unchanged
    return os.path.expanduser(text)  # noqa: PTH111


def part(text: str) -> tuple[int, int]:
    """'2/4' -> (2, 4)."""
    k, _, n = text.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise argparse.ArgumentTypeError(f"expected K/N with 1 <= K <= N, found {text!r}")
    return int(k), int(n)


def positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive integer, found {text!r}")
    return int(text)


def whole(least: int, most: int, what: str = "a whole number") -> Callable[[str], int]:
    """A type of whole numbers in a range."""

    def number(text: str) -> int:
        if re.fullmatch(r"-?[0-9]{1,9}", text) and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(
            f"expected {what} from {least} to {most}, found {text!r:.80}"
        )

    return number


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


def attach_values(argv: Sequence[str]) -> list[str]:
    """Write `--layers -2:` as `--layers=-2:`, which argparse does not mistake for a flag."""
    attached: list[str] = []
    for argument in argv:
        form = WITH_MINUS.get(attached[-1]) if attached else None
        if form and form.match(argument):
            attached[-1] += f"={argument}"
        else:
            attached.append(argument)
    return attached


def as_called(text: str) -> str:
    """A text whose commands, `python -m store` and `python -m train`, are as the user calls them.

    In a folder that has a `store.py` or a `train.py` of its own only the installed names work.
    """
    return COMMAND.sub(lambda found: program(found[1]), text)
