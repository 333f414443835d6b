"""The outcome of a long command, as lines for people: counts, and what was left out."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

__all__ = [
    "NOTHING_TO_DO",
    "LeftOut",
    "aligned",
    "count",
    "count_lines",
    "discard_output",
    "first_ids",
    "in_one_line",
    "say",
    "size_text",
    "terminal_text",
]

NOTHING_TO_DO = "  it was there already, made by the same command: nothing to do"
MAX_MESSAGES = 20
N_SHOWN = 3  # ids in a message
# what a terminal obeys, or what turns the direction of the text around it
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@dataclass
class LeftOut:
    """Things that were left out, and why."""

    n: int = 0
    messages: list[str] = field(default_factory=list)  # a line for each of the first ones

    def add(self, message: str) -> None:
        """Count one."""
        self.n += 1
        if self.n <= MAX_MESSAGES:
            self.messages.append(message)

    def lines(self) -> list[str]:
        """The messages, and how many more there are."""
        lines = list(self.messages)
        n_more = self.n - len(lines)
        if n_more:
            lines.append(f"  ... and {n_more} more")
        return lines


def terminal_text(text: str) -> str:
    """A text from a store or a file as a terminal may show it: control characters as `\\x1b`."""
    return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def say(*texts: object, **options: Any) -> None:
    """`print` of texts that may hold some of a store or a file."""
    print(*(terminal_text(str(text)) for text in texts), **options)


def count(n: int, noun: str, plural: str | None = None) -> str:
    """'1 trace', '1,204 traces'; `plural` where it is not the noun and an s."""
    if n == 1:
        return f"1 {noun}"
    return f"{n:,} {plural or noun + 's'}"


def size_text(n_bytes: float) -> str:
    """Bytes for people: 978.9 kB, 1.2 GB."""
    if n_bytes < 1000:
        return f"{n_bytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        n_bytes /= 1000
        if n_bytes < 999.95:
            return f"{n_bytes:.1f} {unit}"
    return f"{n_bytes / 1000:,.1f} TB"


def count_lines(counts: Iterable[tuple[int, str] | tuple[int, str, str]]) -> list[str]:
    """A line for each count that is not 0; a second text is that for several."""
    lines = []
    for n, *texts in counts:
        text = texts[0] if n == 1 else texts[-1]
        if n:
            lines.append(f"  {n:,} {text}")
    return lines


def aligned(rows: Iterable[Sequence[str]], pad: Callable[[str, int], str] = str.ljust) -> list[str]:
    """Lines of cells, each column as wide as its widest; `pad` is of all cells but the first."""
    rows = list(rows)
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        padded = map(pad, others, widths[1:])
        lines.append("  ".join([first.ljust(widths[0]), *padded]).rstrip())
    return lines


def first_ids(ids: Iterable[str]) -> str:
    """The first three ids, shortened, as a message shows them."""
    return ", ".join(f"{name!r:.60}" for name in islice(ids, N_SHOWN)) or "none"


def in_one_line(found: object) -> str:
    """What was found, cut to 200 characters of one line; its type's name if it says nothing."""
    return " ".join(str(found).split())[:200] or type(found).__name__


def discard_output() -> None:
    """Drop what is buffered for the standard output, which cannot be written any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
