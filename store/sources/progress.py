"""How far a long command is, on a terminal."""

import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Progress"]


class Progress:
    """One line on stderr: how far, how long still. On a terminal only.

    Parameters
    ----------
    share
        What is done -> how much of the work that is, 0 to 1.
    text
        What is done -> how to call it.
    """

    def __init__(
        self, share: Callable[[Any], float], text: Callable[[Any], str] = lambda done: f"{done:,} traces"
    ) -> None:
        self.share, self.text, self._start, self._shown = share, text, time.monotonic(), 0.0
        self._first: float | None = None  # share when this process began

    def __call__(self, done: Any) -> None:
        """Show, a few times a second."""
        now, share = time.monotonic(), self.share(done)
        self._first = share if self._first is None else self._first
        if now - self._shown < 0.2 or not sys.stderr.isatty():
            return
        self._shown, gained = now, share - self._first
        left = f", {_clock((now - self._start) * (1 - share) / gained)} left" if gained > 0 else ""
        print(f"\r\033[K{self.text(done)}, {share:.0%}{left}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        """Clear the line."""
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
