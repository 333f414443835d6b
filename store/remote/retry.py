"""Attempts until one succeeds or a stated time is over, with pauses that grow and are random."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from store.errors import UnreachableError
from store.remote.faults import TransientFault

__all__ = ["Patience"]

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """How long to try.

    Parameters
    ----------
    limit_s
        Within it there is a result or an error.
    attempt_s
        What one attempt takes at most; none begins that could end after the limit.
    """

    limit_s: float
    attempt_s: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, where: str, attempt: Callable[[], T]) -> T:
        """Return what an attempt returns.

        Raises
        ------
        UnreachableError
            None succeeded in time. `where` is what the message begins with.
        StoreError
            As an attempt raised it: more of them would not help.
        """
        end = self.clock() + self.limit_s
        n = 0
        while True:
            n += 1
            try:
                return attempt()
            except TransientFault as fault:
                cause = str(fault)
            # "full jitter": clients that failed together do not come again together
            # https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter
            pause_s = random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**n))  # noqa: S311
            if self.clock() + pause_s + self.attempt_s > end:
                raise UnreachableError(
                    f"{where}: expected an answer within {self.limit_s:g} s, found {cause}, in "
                    f"{n} attempts; try again later"
                )
            self.sleep(pause_s)
