"""Which part comes next, how often one is tried, and how far all of them are. Pure: no clock."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Schedule", "Standing", "share_done"]

LONGEST_PAUSE_S = 60.0
ALMOST = 0.99
DOUBTS = 3


class Schedule:
    """The parts that are not whole yet.

    A part that failed comes again behind all that were not tried yet, and not before a pause: 1 s,
    then twice as long each time, a minute at most. What made it fail may have gone by then.

    Where three are given up before one is whole, the command itself is likely to be wrong: no other
    is started, unless one of those at work becomes whole.

    A failed part is tried again at most `retries` times; `n_whole` parts are whole already.
    """

    def __init__(self, parts: Iterable[int], retries: int, n_whole: int = 0) -> None:
        self.retries = retries
        self.n_whole = n_whole
        self.attempts: Counter[int] = Counter()
        self.failed: list[int] = []
        self.running: set[int] = set()
        self._not_before_s = dict.fromkeys(parts, float("-inf"))

    @property
    def is_open(self) -> bool:
        """Whether a part is at work, or has to be."""
        waits = self._not_before_s and not self._is_in_doubt
        return bool(waits or self.running)

    @property
    def _is_in_doubt(self) -> bool:
        return not self.n_whole and len(self.failed) >= DOUBTS

    def next(self, now_s: float) -> int | None:
        """Take the part to start; None if there is none, or none yet."""
        if self._is_in_doubt:
            return None
        for part, not_before_s in self._not_before_s.items():
            if not_before_s <= now_s:
                del self._not_before_s[part]
                return part
        return None

    def start(self, part: int) -> int:
        """Count an attempt at a part that was taken; return its number, from 1."""
        self.running.add(part)
        self.attempts[part] += 1
        return self.attempts[part]

    def postpone(self, part: int, until_s: float) -> None:
        """Put back a part that was taken: it cannot be started now, which is no failure."""
        self._not_before_s[part] = until_s

    def end(self, part: int, now_s: float, *, is_whole: bool, is_final: bool = False) -> bool:
        """Note the end of an attempt; return whether the part is tried again.

        `now_s` is the time by any clock that only rises; `is_whole` says whether the part is made,
        `is_final` whether another attempt would fail in the same way.
        """
        self.running.remove(part)
        if is_whole:
            self.n_whole += 1
            return False
        n_failed = self.attempts[part]
        if is_final or n_failed > self.retries:
            self.failed.append(part)
            return False
        pause_s = min(2.0 ** (n_failed - 1), LONGEST_PAUSE_S)
        self.postpone(part, now_s + pause_s)
        return True


@dataclass(frozen=True)
class Standing:
    """How far a job is.

    Attributes
    ----------
    n_parts, n_whole, n_running, n_failed
        Parts in all, whole ones, those at work, and those that are given up.
    rows_whole, rows_running
        Traces in whole parts, and committed ones in each part at work.
    """

    n_parts: int
    n_whole: int
    n_running: int
    n_failed: int
    rows_whole: int
    rows_running: tuple[int, ...]

    @property
    def n_rows(self) -> int:
        return self.rows_whole + sum(self.rows_running)

    def text(self) -> str:
        """Say it in words."""
        states = [(self.n_running, "at work"), (self.n_failed, "failed")]
        shown = "".join(f", {n:,} {state}" for n, state in states if n)
        return f"{self.n_whole:,} of {self.n_parts:,} parts{shown}, {self.n_rows:,} traces"


def share_done(standing: Standing) -> float:
    """Estimate which share of a job is done, 0 to 1.

    Parts are about equally large. One at work counts by its traces over those of a whole part, once
    there is one, and never as done; before that, nothing says how large it will be.
    """
    done = float(standing.n_whole)
    if standing.rows_whole:
        rows_a_part = standing.rows_whole / standing.n_whole
        done += sum(min(rows / rows_a_part, ALMOST) for rows in standing.rows_running)
    return done / standing.n_parts
