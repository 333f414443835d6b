"""Arguments that several commands take, and kinds of arguments."""

import argparse
import math

__all__ = [
    "add_columns",
    "add_ignore_space",
    "add_part",
    "add_score_threshold",
    "finite",
    "layers",
    "names",
    "positive",
]

Parser = argparse.ArgumentParser | argparse._ArgumentGroup


def add_score_threshold(parser: Parser) -> None:
    """`--score-threshold`."""
    parser.add_argument(
        "--score-threshold", type=finite, default=0.5, help="label 1 (hallucination) below it (default %(default)s)"
    )


def add_columns(parser: Parser, remark: str = "") -> None:
    """`--columns`."""
    parser.add_argument("--columns", type=names, help=f"only these, e.g. hs_last,label{remark}")


def add_ignore_space(parser: Parser) -> None:
    """`--ignore-space`."""
    parser.add_argument(
        "--ignore-space", action="store_true", help="go on where the disk seems too small for the store"
    )


def add_part(parser: Parser, of: str) -> None:
    """`--part`."""
    parser.add_argument(
        "--part", metavar="K/N", type=_part, default=(1, 1), help=f"only every N-th {of}, beginning with the K-th"
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


def _part(text: str) -> tuple[int, int]:
    k, _, n = text.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise argparse.ArgumentTypeError(f"expected K/N with 1 <= K <= N, found {text!r}")
    return int(k), int(n)


def positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive integer, found {text!r}")
    return int(text)


def layers(text: str) -> list[int]:
    """'1,8-10' -> [1, 8, 9, 10]."""
    chosen: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < 10_000):
            raise argparse.ArgumentTypeError(f"expected numbers like 8,16,24 or 8-16, found {text!r}")
        chosen |= set(range(int(first), int(last) + 1))
    return sorted(chosen)
