"""Numbers and texts of traces as a report shows them: short, and on one clean line.

A number that is missing or not finite is a dash. Texts of traces are not trusted: they are cut and
cleaned here, and escaped where they are written.
"""

import math
import re
from collections.abc import Sequence
from typing import TypeVar

from train.evaluate.results import PairedTest

__all__ = ["clean_text", "p_value", "share", "short", "short_p", "with_interval"]

Key = TypeVar("Key")
N_SHOWN = 200  # characters of a text
# Control characters, and those that change the direction of writing: they would affect the text
# around them.
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def with_interval(number: float | None, interval: Sequence[float] | None) -> str:
    """A number and its interval: .906 [.883, .925]."""
    return f"{short(number)} [{', '.join(map(short, interval or ()))}]"


def share(number: float) -> str:
    """A setting from 0 to 1 as it was given, without the leading zero: .01, .005, 1."""
    return f"{number:g}".replace("0.", ".", 1)


def short(number: float | None) -> str:
    """Three decimals without the leading zero: .917, -.036, 1.000; a dash if it is not finite."""
    if number is None or not math.isfinite(number):
        return "–"
    text = f"{number:z.3f}"  # never -0
    if abs(number) < 0.9995:
        text = text.replace("0.", ".", 1)
    return text


def short_p(p: float | None) -> str:
    """A p value, never rounded to 0."""
    return "<.001" if p is not None and p < 0.001 else short(p)


def p_value(test: PairedTest[Key]) -> str:
    """The p of a paired bootstrap, or of a test over several splits.

    ≤ where no resample contradicts: it could not be smaller.
    """
    p = test.p if test.p_bootstrap is None else test.p_bootstrap
    least = test.p_bootstrap_least or 0
    is_least = test.p_bootstrap is not None and test.p_bootstrap <= least
    return f"≤{short(p)}" if is_least else short_p(p)


def clean_text(text: str, n_shown: int = N_SHOWN) -> str:
    """One line of at most `n_shown` characters, without invisible ones."""
    words = text[: 8 * n_shown].split()  # a bound on the work for a long text
    line = UNSEEN.sub("\N{REPLACEMENT CHARACTER}", " ".join(words))
    return line if len(line) <= n_shown else line[: n_shown - 1] + "…"
