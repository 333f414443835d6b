"""Ctrl-C and SIGTERM wait while a row is written: an append cut in two loses the rows before it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["HeldSignals"]

NUMBERS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], object]


class HeldSignals:
    """A context in which signals can be held back for a while; their handlers run later.

    Only in the main thread, which alone gets signals, and only signals that Python handles: what
    ends the process at once still does.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._is_held = False
        self._waiting: int | None = None

    def __enter__(self) -> "HeldSignals":
        if threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_held:
            self._waiting = number
        else:
            self._handlers[number](number, frame)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back until the block has ended; then the last one is handled."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            number = self._waiting
            self._waiting = None
            if number is not None:
                self._handlers[number](number, None)
