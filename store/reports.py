"""What became of a long command, as lines for people: how many of each sort, and the first of what
was left out."""

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["NOTHING_TO_DO", "LeftOut", "count", "count_lines"]

NOTHING_TO_DO = "  it was there already, made by the same command: nothing to do"
SHOWN = 20  # messages that are kept


@dataclass
class LeftOut:
    """Things that were left out, and why.

    Attributes
    ----------
    n
        How many.
    messages
        One line for each, the first of them.
    """

    n: int = 0
    messages: list[str] = field(default_factory=list)

    def add(self, message: str) -> None:
        """Count one."""
        self.n += 1
        self.messages += [message] * (len(self.messages) < SHOWN)

    def lines(self) -> list[str]:
        """The messages, and how many more there are."""
        return [*self.messages, *([f"  ... and {self.n - SHOWN} more"] * (self.n > SHOWN))]


def count(n: int, noun: str, plural: str | None = None) -> str:
    """'1 trace', '1,204 traces'; `plural` where it is not the noun and an s."""
    many = f"{noun}s" if plural is None else plural
    return f"{n:,} {noun if n == 1 else many}"


def count_lines(counts: Iterable[tuple[int, str]]) -> list[str]:
    """A line for each count that is not 0."""
    return [f"  {n:,} {text}" for n, text in counts if n]
