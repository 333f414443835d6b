"""The batches of an epoch, found in the store many at a time.

What Python does to find a batch of small rows (offsets, shards, where each row goes) takes as long
as copying it. NumPy finds a thousand rows nearly as fast as thirty.
"""

import threading
from contextlib import suppress

from store.errors import CorruptError
from store.feed.order import Batches
from store.read.location import LocatedRows
from store.read.plan import ReadPlan
from store.read.store import TraceStore

__all__ = ["LocatedBatches"]

WINDOW_ROWS = 4096


class LocatedBatches:
    """`located[i]` is where the rows of batch i are; in any order, from any thread."""

    def __init__(self, store: TraceStore, plan: ReadPlan, batches: Batches) -> None:
        self.store = store
        self.plan = plan
        self.batches = batches
        self._n = max(1, WINDOW_ROWS // batches.batch_size)  # batches found at once
        self._found: dict[int, LocatedRows] = {}
        self._lock = threading.Lock()

    def __getitem__(self, i: int) -> LocatedRows:
        """Where the rows of a batch are; asked for once.

        Raises
        ------
        CorruptError
            Its offsets are damaged.
        """
        found = self._found.pop(i, None)
        if found is None:
            with self._lock:
                found = self._found.pop(i, None) or self._find(i)
        return found

    def _find(self, i: int) -> LocatedRows:
        last = len(self.batches) - 1  # found alone, as the one before it may be shorter
        first = last if i == last else i // self._n * self._n
        stop = i + 1 if i == last else min(first + self._n, last)
        with suppress(CorruptError):  # perhaps of another batch, whose own read will raise it
            window = self._locate(first, stop)
            self._found.update(zip(range(first, stop), window, strict=True))
            return self._found.pop(i)
        return self._locate(i, i + 1)[0]

    def _locate(self, first: int, stop: int) -> list[LocatedRows]:
        size = self.batches.batch_size
        return self.store.reader.locate(self.plan, self.batches.rows_of(first, stop), size)
