"""How far a long command is: one changing line on a terminal, a line a minute in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from store.reports import size_text, terminal_text

__all__ = ["Progress", "sizes_text"]

TERMINAL_S = 0.2  # between two changes of the line on a terminal
LOG_S = 60.0  # between two lines of a log


def sizes_text(n_done: int, n_bytes: int) -> str:
    return f"{size_text(n_done)} of {size_text(n_bytes)}"


class _Sample(NamedTuple):
    """How far the work was at a time."""

    time_s: float
    share: float
    n_done: int


@dataclass
class Progress:
    """Lines on stderr: how much is done, how fast, and how long the rest takes.

    On a terminal it is one line, which changes a few times a second and is cleared at the end.
    Otherwise (nohup, the log of a batch job) a line is printed each minute, the first after a
    minute. The speed is that of this process alone, without what an earlier run did.
    """

    # what is done -> the share of the work that it is, 0 to 1; it is a number of traces, or the
    # bytes done and those in all, and the first number has the speed
    share: Callable[..., float]
    text: Callable[..., str] = lambda done: f"{done:,} traces"  # what is done -> its description
    unit: str = "traces"
    unit_size: float = 1  # so many traces or bytes are a unit of the speed

    def __post_init__(self) -> None:
        self._interactive = sys.stderr.isatty()
        self._shown_s = time.monotonic()
        self._first: _Sample | None = None

    @classmethod
    def of_rows(cls, n_rows: int) -> "Progress":
        return cls(lambda done: done / max(1, n_rows))

    @classmethod
    def of_bytes(cls, text: Callable[[int, int], str] = sizes_text) -> "Progress":
        """Of bytes; `text` describes those done and those in all."""
        return cls(lambda done, n_bytes: done / max(1, n_bytes), text, "MB", 1e6)

    def __call__(self, *done: Any) -> None:
        """Show what is done, unless a line was shown a moment ago."""
        now_s = time.monotonic()
        if self._first is None:
            self._first = _Sample(now_s, self.share(*done), done[0])
        interval_s = TERMINAL_S if self._interactive else LOG_S
        if now_s - self._shown_s < interval_s:
            return
        self._shown_s = now_s
        now = _Sample(now_s, self.share(*done), done[0])
        line = terminal_text(", ".join([self.text(*done), *self._rates(self._first, now)]))
        if self._interactive:
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def _rates(self, first: _Sample, now: _Sample) -> Iterator[str]:
        """The speed, the percentage, and the time left."""
        seconds = now.time_s - first.time_s
        n_units = (now.n_done - first.n_done) / self.unit_size
        if seconds > 0 and n_units > 0:
            yield f"{n_units / seconds:,.1f} {self.unit}/s"
        yield f"{now.share:.0%}"
        if now.share > first.share:
            left_s = seconds * (1 - now.share) / (now.share - first.share)
            yield f"{_clock_text(left_s)} left"

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._interactive:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _clock_text(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
