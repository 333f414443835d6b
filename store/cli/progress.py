"""How far a long command is: one changing line on a terminal, a line a minute in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TextIO

__all__ = ["Progress"]

TERMINAL_S = 0.2  # between two changes of the line on a terminal
LOG_S = 60.0  # between two lines of a log


class _Sample(NamedTuple):
    """How far the work was at a time."""

    time_s: float
    share: float
    amount: float


class Progress:
    """Lines on stderr: how much is done, and how long the rest takes.

    On a terminal it is one line, which changes a few times a second and is cleared at the end.
    Otherwise (nohup, the log of a batch job) a line is printed each minute, the first after a
    minute, with the speed: that of this process alone, without what an earlier run did.

    Parameters
    ----------
    share
        Maps what is done to the share of the work that it is, 0 to 1.
    text
        Maps what is done to its description. What is done is a number of traces, or
        `(bytes done, bytes in all)`.
    stream
        Where to write; stderr if None.
    clock
        Returns seconds.
    """

    def __init__(
        self,
        share: Callable[[Any], float],
        text: Callable[[Any], str] = lambda done: f"{done:,} traces",
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.share = share
        self.text = text
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._interactive = self._stream.isatty()
        self._shown_s = clock()
        self._has_line = False
        self._first: _Sample | None = None

    def __call__(self, done: Any) -> None:
        """Show what is done, unless a line was shown a moment ago."""
        now_s = self._clock()
        if self._first is None:
            amount, _ = _amount(done)
            self._first = _Sample(now_s, self.share(done), amount)
        interval_s = TERMINAL_S if self._interactive else LOG_S
        if now_s - self._shown_s < interval_s:
            return
        self._shown_s = now_s
        line = ", ".join([self.text(done), *self._rates(done, now_s, self._first)])
        if self._interactive:
            self._has_line = True
            print(f"\r\033[K{line}", end="", file=self._stream, flush=True)
        else:
            print(line, file=self._stream, flush=True)

    def _rates(self, done: Any, now_s: float, first: _Sample) -> Iterator[str]:
        """The speed (in a log), the percentage, and the time left."""
        seconds = now_s - first.time_s
        amount, unit = _amount(done)
        if not self._interactive and seconds > 0 and amount > first.amount:
            yield f"{(amount - first.amount) / seconds:,.1f} {unit}/s"
        share = self.share(done)
        yield f"{share:.0%}"
        if share > first.share:
            left_s = seconds * (1 - share) / (share - first.share)
            yield f"{_clock_text(left_s)} left"

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        """Clear the line."""
        if self._has_line:
            print("\r\033[K", end="", file=self._stream, flush=True)


def _amount(done: Any) -> tuple[float, str]:
    """What is done as a number, and its unit."""
    if isinstance(done, tuple):
        return done[0] / 1e6, "MB"
    return float(done), "traces"


def _clock_text(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
