"""How far a long command is: a line that changes on a terminal, a line a minute in a log."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["Progress"]

TERMINAL_S = 0.2  # between two changes of the line
LOG_S = 60.0  # between two lines


class Progress:
    """Lines on stderr: how far, how long still.

    On a terminal it is one line, which changes a few times a second and is cleared in the end.
    Without one (nohup, a batch job's log) a line is printed each minute, the first after a minute,
    with the speed: that of this process alone, whatever a run before it has done.

    Parameters
    ----------
    share
        What is done -> how much of the work that is, 0 to 1.
    text
        What is done -> how to call it. It is a number of traces, or `(bytes done, bytes in all)`.
    stream
        Where to write; stderr if None.
    clock
        Gives seconds.
    """

    def __init__(
        self,
        share: Callable[[Any], float],
        text: Callable[[Any], str] = lambda done: f"{done:,} traces",
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.share, self.text = share, text
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._interactive = self._stream.isatty()
        self._shown = clock()
        self._changed = False
        # seconds, share, amount: when the first was done
        self._first: tuple[float, float, float] | None = None

    def __call__(self, done: Any) -> None:
        """Show it, if it is time."""
        now = self._clock()
        if self._first is None:
            self._first = now, self.share(done), _amount(done)[0]
        if now - self._shown < (TERMINAL_S if self._interactive else LOG_S):
            return
        self._shown = now
        if self._interactive:
            line = ", ".join([self.text(done), *self._how_far(done, now)])
            self._changed = True
            print(f"\r\033[K{line}", end="", file=self._stream, flush=True)
        else:
            line = ", ".join([self.text(done), *self._speed(done, now), *self._how_far(done, now)])
            print(line, file=self._stream, flush=True)

    def _how_far(self, done: Any, now: float) -> list[str]:
        """Per cent, and the time that is left."""
        began, first_share, _ = self._first
        share = self.share(done)
        gained = share - first_share
        if gained <= 0:
            return [f"{share:.0%}"]
        left_s = (now - began) * (1 - share) / gained
        return [f"{share:.0%}", f"{_clock(left_s)} left"]

    def _speed(self, done: Any, now: float) -> list[str]:
        """Traces or megabytes a second since the first that this process did."""
        began, _, first_amount = self._first
        amount, unit = _amount(done)
        if now <= began or amount <= first_amount:
            return []
        return [f"{(amount - first_amount) / (now - began):,.1f} {unit}/s"]

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        """Clear the line."""
        if self._changed:
            print("\r\033[K", end="", file=self._stream, flush=True)


def _amount(done: Any) -> tuple[float, str]:
    """What is done as a number, and its unit."""
    if isinstance(done, tuple):
        return done[0] / 1e6, "MB"
    return float(done), "traces"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
