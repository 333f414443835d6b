"""Kinds of arguments that commands take."""

import argparse
import math

__all__ = ["finite", "layers", "names", "part", "positive"]


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
    return [name.strip() for name in text.split(",")]


def part(text: str) -> tuple[int, int]:
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
