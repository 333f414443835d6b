"""Arguments that several commands take, and kinds of arguments."""

import argparse
import math
import os
from pathlib import Path
from typing import Any

from store.errors import SchemaError
from store.format.layers import parse_layers

__all__ = [
    "Version",
    "add_columns",
    "add_ignore_space",
    "add_part",
    "add_score_threshold",
    "expand",
    "finite",
    "layers",
    "names",
    "path",
    "positive",
]

Parser = argparse.ArgumentParser | argparse._ArgumentGroup


class Version(argparse.Action):
    """Print the version and end."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from store.extras import version_text

        print(version_text())
        parser.exit()


def add_score_threshold(parser: Parser) -> None:
    """`--score-threshold`."""
    parser.add_argument(
        "--score-threshold",
        type=finite,
        default=0.5,
        help="label 1 (hallucination) below it (default %(default)s)",
    )


def add_columns(parser: Parser, remark: str = "") -> None:
    """`--columns`."""
    parser.add_argument("--columns", type=names, help=f"only these, e.g. hs_last,label{remark}")


def add_ignore_space(parser: Parser) -> None:
    """`--ignore-space`."""
    parser.add_argument(
        "--ignore-space",
        action="store_true",
        help="go on where the disk seems too small for the store",
    )


def add_part(parser: Parser, of: str) -> None:
    """`--part`."""
    parser.add_argument(
        "--part",
        metavar="K/N",
        type=_part,
        default=(1, 1),
        help=f"only every N-th {of}, beginning with the K-th",
    )


def finite(text: str) -> float:
    """A number that is neither infinite nor none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a finite number, found {text!r}")
    return value


def names(text: str) -> list[str]:
    """'a, b' -> ['a', 'b']."""
    return [name.strip() for name in text.split(",")]


def path(text: str) -> Path:
    """A path of the command line with `~` expanded, which shells leave in quotes and after
    `--flag=`."""
    return Path(expand(text))


def expand(text: str) -> str:
    """The same for what need not be a path: a pattern of files, the name of a model on the Hub."""
    # Path.expanduser raises for the name of an unknown user; shells leave that as it is, and so
    # does this.
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
    """Layers in the syntax of `store.format.layers`; which there are says the model."""
    try:
        parse_layers(text)
    except SchemaError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("layers: ")) from error
    return text
