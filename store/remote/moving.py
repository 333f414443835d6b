"""Moves chunks out of the landing memory: those that stay come into their shards.

Most chunks of a mirror that is much smaller than its store never do: they are read, and go. Moved
is what is needed last where the memory is nearly full, and everything where nothing comes for a
while or nobody reads the store any more. So what a fetching process loses that is killed are the
chunks of its last moments.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from store.remote.eviction import choose_victims
from store.remote.landing import Landing
from store.remote.mirrored_array import MirroredArray
from store.remote.tickets import Ticket

__all__ = ["Mover"]

FULL_SHARE = 0.75  # of the landing memory
MOVE_SHARE = 1 / 8  # of it, in one go
IDLE_S = 0.5  # without a chunk that came
POLL_S = 0.1


class Mover:
    """What the keeper does about chunks in the landing memory.

    Parameters
    ----------
    landing
        The memory.
    arrays
        All that are open; the keeper's own list.
    lock
        The keeper's.
    tell
        Called, with the lock, when chunks have moved.
    """

    def __init__(
        self,
        landing: Landing,
        arrays: list[MirroredArray],
        lock: threading.Condition,
        tell: Callable[[], None],
    ) -> None:
        self.landing = landing
        self.arrays = arrays
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
        self.landing.close()

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
                landed = ticket.cells[array.has_landed(ticket.cells)]
                array.pins[landed] += 1
            self._move(array, landed)

    def _move(self, array: MirroredArray, some: np.ndarray) -> None:
        """Move cells, which are pinned once for this; raises OSError."""
        try:
            array.write_landed(some)
        except OSError:
            with self._lock:
                array.pins[some] -= 1
            raise
        with self._lock:
            array.pins[some] -= 1
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
        if not self.landing.used:
            return []
        is_idle = time.monotonic() > self.last_arrival + IDLE_S
        arrays = [array for array in self.arrays if is_idle or id(array) in self._closing]
        self._closing.clear()  # who closes an array asks again
        if not arrays and self.landing.used > FULL_SHARE * self.landing.n_bytes:
            arrays = self.arrays
        n_wanted = int(MOVE_SHARE * self.landing.n_bytes)
        moves = []
        for array in arrays:
            landed = array.landed()
            landed = landed[array.pins[landed] == 0]
            chosen = choose_victims(array.next_use[landed], array.n_bytes[landed], n_wanted)
            some = np.sort(landed[chosen])
            if len(some):
                array.pins[some] += 1
                moves.append((array, some))
        return moves
