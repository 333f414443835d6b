"""What is tried again, and for how long: requests that may succeed later, bytes that came wrong.

Where a training reads, a server that is away for some minutes must not end it; where somebody waits
at a terminal, it had better be said soon. So readers wait for `READ_LIMIT_S`, unless the
environment says otherwise; `push` and `pull` usually for less; and an address is opened, or
refused, within seconds.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from store.errors import CorruptError, SchemaError, UnreachableError
from store.remote.objects.address import TIMEOUT_VARIABLE
from store.remote.objects.faults import TransientFault

__all__ = ["FETCHES", "READ_LIMIT_S", "RetryPolicy", "again", "limit_of"]

READ_LIMIT_S = 600.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
FETCHES = 3  # of what comes with wrong bytes
T = TypeVar("T")


def limit_of(text: str | None, usual_s: float = READ_LIMIT_S) -> float:
    """Seconds that a request may take in all, as the environment says, if it does.

    Raises SchemaError if the text is no such number.
    """
    with suppress(ValueError):
        limit_s = float(text or usual_s)
        if 1 <= limit_s < float("inf"):
            return limit_s
    raise SchemaError(
        f"{TIMEOUT_VARIABLE}: expected seconds, from 1, as 600, found {text!r:.40}; set it again"
    )


@dataclass(frozen=True)
class RetryPolicy:
    """How long to try: within `limit_s` seconds there is a result or an error.

    One attempt takes `attempt_s` at most; none begins that could end after the limit.
    """

    limit_s: float
    attempt_s: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, where: str, attempt: Callable[[], T]) -> T:
        """Return what an attempt returns; raise UnreachableError, about `where`, if none succeeds.

        Another StoreError of an attempt is raised at once: more of them would not help.
        """
        began = self.clock()
        n = 1
        while True:
            try:
                return attempt()
            except TransientFault as fault:
                pause_s = self._pause(where, fault, n, began)
            self.sleep(pause_s)
            n += 1

    async def wait_for(self, where: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """As a call, in an event loop."""
        began = self.clock()
        n = 1
        while True:
            try:
                return await attempt()
            except TransientFault as fault:
                pause_s = self._pause(where, fault, n, began)
            await asyncio.sleep(pause_s)
            n += 1

    def _pause(self, where: str, fault: TransientFault, n: int, began: float) -> float:
        """How long to pause after the n-th attempt of a call; raises UnreachableError."""
        # "full jitter": clients that failed together do not come again together
        # https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter
        pause_s = random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**n))  # noqa: S311
        spent_s = self.clock() - began
        if spent_s + pause_s + self.attempt_s > self.limit_s:
            raise UnreachableError(
                f"{where}: expected an answer within {self.limit_s:g} s, found {fault}, in {n} "
                f"attempts and {spent_s:.1f} s, and another may take {self.attempt_s:g} s; try "
                "again later, or check the address"
            )
        return pause_s


def again(work: Callable[[], T]) -> T:
    """What `work` makes of bytes that were fetched for it; raises as the last of its attempts did.

    Bytes may be wrong on their way: it is called once more after a CorruptError.
    """
    for _ in range(FETCHES - 1):
        with suppress(CorruptError):
            return work()
    return work()
