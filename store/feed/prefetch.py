"""Reading ahead of a known order: the kernel is asked in time for the rows that come next.

The kernel guesses that the next bytes of a file come next; under a shuffle they never do (a plain
map reads cold data at 0.5 GB/s). We know the order, so we name the ranges of the batches to come
(1.2-2.2 GB/s). What is in the page cache needs no advice, which would only cost time: a sample of
pages is looked at first.
"""

import math
import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from store.errors import CorruptError
from store.feed.order import Batches
from store.read.arrays.read_options import UNSCHEDULED, Schedule
from store.read.plan import ColumnPart, ReadPlan
from store.read.store import TraceStore

__all__ = ["Readahead", "fetched_row_bytes", "row_bytes"]

GROUP_BYTES = 8 * 1024 * 1024  # asked for together, so that the cost of small batches is shared
SAMPLE_ROWS = 4
PORTIONS_AHEAD = 8  # of a mirror, which takes so much of them as it has room for
SMALL_SHARE = 0.01  # of the bytes of a row
# Looked at together while all is in memory: after a large batch the processor has forgotten what a
# look needs, and the first row costs ten times the next.
LOOK_GROUPS = 16


def row_bytes(store: TraceStore, plan: ReadPlan) -> float:
    """Mean bytes that a plan reads of a row, or of a token."""
    return sum(_part_bytes(store, plan, part) for part in plan.parts)


def _part_bytes(store: TraceStore, plan: ReadPlan, part: ColumnPart) -> float:
    if plan.is_of_tokens(part.span):
        return part.item_bytes
    return part.row_bytes(store.n_items(part.name) / max(1, len(store)))


def fetched_row_bytes(store: TraceStore, plan: ReadPlan) -> float:
    """Mean bytes that a mirror fetches for a row of which it has nothing: of whole chunks.

    Small columns, whose chunks many rows share and which stay, count as what is read of them.
    """
    whole = row_bytes(store, plan)
    if store.mirror is None:
        return whole
    total = 0.0
    for part in plan.parts:
        n_bytes = _part_bytes(store, plan, part)
        if n_bytes > SMALL_SHARE * whole:
            array = store.reader.column(part.name)
            n_planes = array.planes(part.select).size
            n_chunks = max(0.0, n_bytes / part.item_bytes - 1) / array.layout.chunk_items + 1
            n_bytes = max(n_bytes, n_chunks * n_planes * array.layout.chunk_bytes)
        total += n_bytes
    return total


class Readahead:
    """Keeps the kernel a number of bytes ahead of the batches being read, but at least the next
    batch; 0 asks for nothing.

    `unread` gives those of some rows that will be read. `schedule` tells a mirror when the rows
    from a visit on are read, given how many visits are done.
    """

    def __init__(
        self,
        store: TraceStore,
        plan: ReadPlan,
        batches: Batches,
        budget_bytes: int,
        unread: Callable[[np.ndarray], np.ndarray] = lambda rows: rows,
        schedule: Callable[[int, int], Schedule] | None = None,
    ) -> None:
        self.store = store
        self.schedule = schedule
        self.plan = plan
        self.batches = batches
        self.unread = unread
        # a token that is not in memory costs a page, however small it is
        least = 1.0 if plan.tokens is None else float(mmap.PAGESIZE * batches.batch_size)
        batch_bytes = max(least, row_bytes(store, plan) * batches.batch_size)
        self.n_in_budget = int(budget_bytes / batch_bytes)
        group_bytes = GROUP_BYTES
        if store.mirror is not None and not store.reader.is_here(plan):
            batch_bytes = max(least, fetched_row_bytes(store, plan) * batches.batch_size)
            group_bytes = min(group_bytes, store.mirror.portion_bytes)
            budget_bytes = min(budget_bytes, PORTIONS_AHEAD * store.mirror.portion_bytes)
        # batches that are asked for together, and batches ahead
        self._group = max(1, math.ceil(group_bytes / batch_bytes))
        self._window = max(2 * self._group, int(budget_bytes / batch_bytes)) if budget_bytes else 0
        # the advice on each group so far; None: all of it seems to be in memory
        self._groups: list[Future | None] = []
        self._in_memory = 0  # the batches before this one seem to be
        self._look_far_from = 0  # before it, many looked at together were not
        self._from_files: list[bool] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-readahead")

    def advance(self, window: range, current: int) -> None:
        """Ask for what is in reach of some batches; call in order, before they are read.

        `current` is the batch that is waited for.
        """
        stop = min(len(self.batches), window.stop - 1 + self._window)
        if not self._window or stop <= len(self._groups) * self._group:  # mostly
            return
        for first in range(len(self._groups) * self._group, stop, self._group):
            last = min(first + self._group, len(self.batches))
            times = UNSCHEDULED
            if self.schedule is not None and not self.store.reader.is_here(self.plan):
                visits = self.batches.first_visit
                times = self.schedule(visits(current), visits(first))
            advice = None
            is_from_files = False
            announced = self.batches.announced(first, last) if times is UNSCHEDULED else None
            with suppress(CorruptError):  # damage is left to the read, which reports it
                if announced is not None:
                    asked = self._thread.submit(self.store.reader.advise, self.plan, announced)
                    advice = None if first else asked  # later ones are for the next window
                elif times is not UNSCHEDULED or not self._is_in_memory(first, last):
                    rows = self.unread(self.batches.rows_of(first, last))
                    is_from_files = self.store.reader.reads_files(self.plan, rows)
                    advice = self._thread.submit(
                        self.store.reader.advise, self.plan, rows, schedule=times
                    )
            self._groups.append(advice)
            self._from_files.append(is_from_files)

    def _is_in_memory(self, first: int, last: int) -> bool:
        """Whether a group of batches seems to be in memory; while they are, many are looked at."""
        if last <= self._in_memory:
            return True
        stop = min(first + LOOK_GROUPS * self._group, len(self.batches))
        if first >= self._look_far_from:
            if self._seem_cached(first, stop):
                self._in_memory = stop
                return True
            self._look_far_from = stop
        return self._seem_cached(first, last)

    def _seem_cached(self, first: int, last: int) -> bool:
        """Whether a sample of the rows of some batches is in memory."""
        n_groups = -(-(last - first) // self._group)
        sample = self.unread(self.batches.sample(first, last, n_groups * SAMPLE_ROWS))
        return not len(sample) or self.store.reader.is_cached(self.plan, sample)

    def is_from_files(self, batch: int) -> bool:
        """Whether a batch is best read with `ReadOptions.files`; ask after `advance`.

        It seemed not to be in memory when it came into reach, and has long rows.
        """
        return bool(self._window) and self._from_files[batch // self._group]

    def wait(self, batch: int) -> None:
        """Return when the kernel has been asked for a batch.

        A page touched before that makes the kernel guess, and fetch megabytes around it.
        """
        asked = self._groups[batch // self._group] if self._window else None
        if asked:
            with suppress(CorruptError):
                asked.result()

    def close(self) -> None:
        """Stop asking."""
        self._thread.shutdown(cancel_futures=True)
