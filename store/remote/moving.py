"""Moves chunks out of the landing memory: those that stay come into their shards.

Most chunks of a mirror that is much smaller than its store never do: they are read, and go. Some
are moved where the memory is nearly full, and everything where nothing comes for a while, or nobody
reads the store any more. So what a fetching process loses that is killed are the chunks of its last
moments.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from store.remote.eviction import first_bytes
from store.remote.landing import Landing
from store.remote.mirrored_array import PRESENT, MirroredArray
from store.remote.space import Space
from store.remote.tickets import Ticket

__all__ = ["Mover", "choose_moves"]

FULL_SHARE = 0.75  # of the landing memory
MOVE_SHARE = 1 / 8  # of it, in one go
SOON_SHARE = 1 / 2  # so many bytes are read soon
IDLE_S = 0.5  # without a chunk that came
CALM_S = 60.0  # without one that had to go
UNUSED_S = 10.0  # after which memory is given back
POLL_S = 0.1


class Mover:
    """What the keeper does about chunks in the landing memory.

    Parameters
    ----------
    landing
        The memory.
    space
        The keeper's account of what is there.
    lock
        The keeper's.
    tell
        Called, with the lock, when chunks have moved.
    """

    def __init__(
        self,
        landing: Landing,
        space: Space,
        lock: threading.Condition,
        tell: Callable[[], None],
    ) -> None:
        self.landing = landing
        self.space = space
        self.last_arrival = time.monotonic()
        self._lock = lock
        self._tell = tell
        self._closing: set[int] = set()  # arrays of which all is to be moved
        self._one = threading.Lock()  # taken before the other: nobody moves what another does
        self._is_over = False
        threading.Thread(target=self._work, daemon=True).start()

    def close(self) -> None:
        """Have the thread end."""
        self._is_over = True

    def move_all_of(self, array: MirroredArray) -> bool:
        """Begin to move all chunks of an array, which nobody reads; return whether none is left.

        With the lock.
        """
        if not len(array.landed()):
            return True
        self._closing.add(id(array))
        return False

    def move_ticket(self, ticket: Ticket) -> None:
        """Have what a reader copies be in the shards; raises OSError."""
        array = ticket.array
        with self._one:
            with self._lock:
                # not those that are being fetched again, if the ticket was let go meanwhile
                is_there = array.status[ticket.cells] == PRESENT
                landed = ticket.cells[is_there & array.states.has_landed(ticket.cells)]
                array.pins[landed] += 1
            self._move(array, landed)

    def _move(self, array: MirroredArray, some: np.ndarray) -> None:
        """Move cells, which are pinned once for this; raises OSError."""
        is_written = False
        try:
            array.write_landed(some)
            is_written = True
        finally:
            with self._lock:
                array.pins[some] -= 1
                if is_written:
                    array.settle(some)
                self._tell()

    def _work(self) -> None:
        while not self._is_over:
            has_moved = False
            with self._one:
                with self._lock:
                    moves = self._choose()
                for array, some in moves:
                    with suppress(OSError):  # as long as the disk is full, they stay
                        self._move(array, some)
                        has_moved = True
            if not has_moved:
                time.sleep(POLL_S)

    def _choose(self) -> list[tuple[MirroredArray, np.ndarray]]:
        """What to move now, pinned."""
        now = time.monotonic()
        if not self.landing.used:
            if now > self.last_arrival + UNUSED_S:
                self.landing.empty()
            return []
        # where something has to go, what has landed will mostly go, whatever else pauses
        is_idle = now > max(self.last_arrival + IDLE_S, self.space.last_drop + CALM_S)
        is_full = self.landing.used > FULL_SHARE * self.landing.n_bytes
        arrays = [
            array for array in self.space.arrays if is_idle or is_full or id(array) in self._closing
        ]
        self._closing.clear()  # who closes an array asks again
        n_wanted = int(MOVE_SHARE * self.landing.n_bytes)
        soon = self.space.clock + SOON_SHARE * self.landing.n_bytes
        moves = []
        for array in arrays:
            landed = array.landed()
            landed = landed[array.pins[landed] == 0]
            next_use = self.space.next_use(array, landed)
            chosen = choose_moves(next_use, array.n_bytes[landed], soon, n_wanted)
            some = np.sort(landed[chosen])
            if len(some):
                array.pins[some] += 1
                moves.append((array, some))
        return moves


def choose_moves(next_use: np.ndarray, n_bytes: np.ndarray, soon: float, wanted: int) -> np.ndarray:
    """Which chunks to move into files: those that will stay there. Pure.

    What is needed soon is read from memory before long, and what is needed last is the first to go:
    to move them would be for nothing. So it is what is needed first after `soon`; then the rest.

    Parameters
    ----------
    next_use, n_bytes
        Of each chunk, `(n,)`; see `choose_victims`.
    soon
        A time.
    wanted
        Bytes to move.

    Returns
    -------
    np.ndarray
        Indices, int64.
    """
    is_soon = next_use < soon
    order = np.lexsort((np.where(is_soon, -next_use, next_use), is_soon))
    return first_bytes(order, n_bytes, wanted)
