"""`TraceLoader`: packed batches of a store in a known order, read ahead by threads.

The order is that of `order.py`; threads only change when a batch is read, never which or in what
order it is delivered. The position counts rows delivered, so a loader resumes exactly, with any
other batch size, number of threads or ranks.
"""

import hashlib
import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from store.feed.order import Batches, EpochOrder, n_batches, rank_positions
from store.feed.prefetch import Readahead, VisitTimes, row_bytes
from store.format.values import is_integer
from store.read.array import ReadOptions
from store.read.batch import Batch
from store.read.plan import Select
from store.read.store import TraceStore

__all__ = ["TraceLoader"]

PREFETCH_FACTOR = 2  # batches read ahead for each thread
# beyond it the cache goes by least recent use: 16 bytes a row are too much
MAX_TIMED_ROWS = 10_000_000
MAX_EPOCH = 2**29  # visits are counted over all epochs, exactly in float64


class TraceLoader:
    """Iterate over packed batches, one epoch an iteration.

    A completed iteration moves on to the next epoch, so that a plain loop never repeats an order;
    `set_epoch` chooses one.

    Parameters
    ----------
    store
        Path of a store, or an open one.
    columns
        Names to read; all if None.
    batch_size
        Rows a batch; the last one may be smaller unless `drop_last`.
    shuffle
        Visit the rows in a global random order, another one each epoch; else in the order of
        `rows`.
    seed
        Same seed, same orders.
    rows
        Row numbers to visit, e.g. a split; all rows if None.
    num_workers
        Threads that read ahead; 0 reads a batch when it is asked for, with all cores if it is
        large.
    drop_last
        Leave out a last batch that is not full.
    select
        Slices of item axes, see `TraceStore.read`.
    cache_bytes
        Decoded chunks of compressed columns to keep; see `TraceStore.open`.
        `loader.store.cache.stats` counts.
    prefetch_bytes
        How far ahead of the batches the kernel is asked for data that is not in memory, and how
        much threads read ahead; 0 asks for nothing.
    pin_memory
        Read into page-locked memory, for copies to a GPU that do not wait; without CUDA this
        changes nothing.
    rank, world_size
        This process and how many there are; each delivers its share of the one global order.
    """

    def __init__(
        self,
        store: str | Path | TraceStore,
        columns: Sequence[str] | None = None,
        batch_size: int = 32,
        shuffle: bool = False,
        seed: int = 0,
        *,
        rows: Sequence[int] | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
        select: Select | None = None,
        cache_bytes: int | None = None,
        prefetch_bytes: int = 128 * 1024 * 1024,
        pin_memory: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("num_workers", num_workers, 0),
            ("prefetch_bytes", prefetch_bytes, 0),
            ("seed", seed, 0),
        ):
            if not is_integer(value) or value < least:
                raise ValueError(f"{name}: expected an integer of {least} or more, found {value!r}")
        self.store = TraceStore.open(store, cache_bytes)
        self.prefetch_bytes = prefetch_bytes
        self.pin_memory = pin_memory and torch.cuda.is_available()
        self.batch_size, self.shuffle, self.seed, self.drop_last = (
            batch_size,
            shuffle,
            seed,
            drop_last,
        )
        self.num_workers, self.rank, self.world_size = num_workers, rank, world_size
        self._rows = None if rows is None else self.store.check_rows(rows)
        self._n = len(self.store) if self._rows is None else len(self._rows)
        self.epoch, self._start = 0, 0  # where the next iteration begins
        # epoch, and its rows delivered on all ranks together: what a state tells
        self._delivered = (0, 0)
        rank_positions(self._n, 0, rank, world_size)  # refuses a rank that is out of range
        self._plan = self.store.plan(columns, select)  # a wrong name fails here, not in a thread

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return self._n_batches(0, self.rank)

    def _n_batches(self, start: int, rank: int) -> int:
        n_rows = len(rank_positions(self._n, start, rank, self.world_size))
        return n_batches(n_rows, self.batch_size, self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; choosing the one of a loaded state keeps its
        position."""
        if not is_integer(epoch) or not 0 <= epoch <= MAX_EPOCH:
            raise ValueError(f"epoch: expected an integer from 0 to {MAX_EPOCH}, found {epoch!r}")
        if epoch != self.epoch:
            self.epoch, self._start, self._delivered = epoch, 0, (epoch, 0)

    def state_dict(self) -> dict[str, int | str]:
        """Where this loader is, for `load_state_dict`; JSON-able. The same on all ranks after the
        same step."""
        epoch, position = self._delivered
        return {"epoch": epoch, "position": position} | self._identity()

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        """Go on where another loader was: the next iteration begins behind the rows that one
        delivered.

        Batch size, threads and ranks may differ; store, rows, seed and shuffle may not.
        """
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise ValueError(f"state_dict: expected {key} {value!r}, found {state.get(key)!r}")
        for key, most in (("position", self._n), ("epoch", MAX_EPOCH)):
            if not is_integer(state.get(key)) or not 0 <= state[key] <= most:
                raise ValueError(
                    f"state_dict: expected {key} from 0 to {most}, found {state.get(key)!r}"
                )
        self.epoch, self._start = self._delivered = state["epoch"], state["position"]

    def _identity(self) -> dict[str, int | str]:
        """What must be equal for two loaders to visit the same global order."""
        rows = (
            "all"
            if self._rows is None
            else hashlib.blake2b(self._rows.tobytes(), digest_size=8).hexdigest()
        )
        return {
            "store": self.store.uuid,
            "n_rows": self._n,
            "rows": rows,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def _batches(self, epoch: int, start: int) -> Batches:
        """The batches of this rank in the rest of an epoch."""
        order = EpochOrder(self._n, self.seed, epoch, self.shuffle)
        positions = rank_positions(self._n, start, self.rank, self.world_size)
        return Batches(order, positions, self.batch_size, self.drop_last, self._rows)

    def _visit_times(self, batches: Batches) -> VisitTimes | None:
        """What the cache needs to know; nothing without compressed columns, or where it would cost
        too much memory."""
        if len(self.store) > MAX_TIMED_ROWS or not any(
            part.column.codec for part in self._plan.parts
        ):
            return None
        now, after = batches.visits(), self._batches(self.epoch + 1, 0).visits()
        end = (self.epoch + 1) * len(after)
        return VisitTimes([(end - len(now), now), (end, after)], len(self.store))

    def __iter__(self) -> Iterator[Batch]:
        epoch, start, self._start = self.epoch, self._start, 0
        self._delivered = (epoch, start)
        batches = self._batches(epoch, start)
        n_steps = self._n_batches(start, rank=0)  # no rank has more
        for i, batch in enumerate(self._read_ahead(batches, self._visit_times(batches))):
            done = (i + 1) * self.batch_size * self.world_size
            self._delivered = (epoch, start + done) if i + 1 < n_steps else (epoch + 1, 0)
            # also for those who take the last batch and do not ask for another
            if i + 1 == len(batches):
                self.epoch += 1
            yield batch
        if not len(batches):
            self.epoch += 1
        self._delivered = (self.epoch, 0)

    def _read_ahead(self, batches: Batches, times: VisitTimes | None) -> Iterator[Batch]:
        """The batches in order, a bounded number of them read ahead; stops cleanly when
        abandoned."""
        readahead = Readahead(self.store, self._plan, batches, self.prefetch_bytes)
        pool = ThreadPoolExecutor(self.num_workers or n_cores(), thread_name_prefix="store-loader")
        options = self._read_options(pool)

        def read(i: int) -> Batch:
            readahead.wait(i)
            next_use = None if times is None else times.after(i * self.batch_size)
            timed = options._replace(next_use=next_use)
            batch = self.store.read_batch(self._plan, batches[i], timed)
            # offsets; what lies there already stays
            return batch.pin_memory() if self.pin_memory else batch

        ahead: deque[Future[Batch]] = deque()
        # Not in `finally` alone: a generator in hand when the interpreter ends is closed too late
        # to stop threads.
        stops = (
            weakref.finalize(ahead, pool.shutdown, cancel_futures=True),
            weakref.finalize(ahead, readahead.close),
        )
        n_ahead = self._n_ahead()
        try:
            for i in range(len(batches)):
                while len(ahead) < min(n_ahead, len(batches) - i):
                    readahead.before(i + len(ahead))
                    ahead.append(pool.submit(read, i + len(ahead)))
                readahead.before(i)
                yield ahead.popleft().result() if ahead else read(i)
        finally:
            for stop in stops:
                stop()

    def _read_options(self, pool: ThreadPoolExecutor) -> ReadOptions:
        """Where to read: into recycled or page-locked memory; without workers the cores share one
        batch's work."""
        recycled = self.store.recycled()
        options = ReadOptions(_pinned, required=True) if self.pin_memory else recycled
        if self.num_workers:
            return options
        return options._replace(share=partial(_share, pool, n_cores()))

    def _n_ahead(self) -> int:
        """Batches in the hands of threads: two each, fewer if they are large, at least one each."""
        batch_bytes = max(1.0, row_bytes(self.store, self._plan) * self.batch_size)
        return max(
            self.num_workers,
            min(PREFETCH_FACTOR * self.num_workers, int(self.prefetch_bytes / batch_bytes)),
        )


def n_cores() -> int:
    """Cores to read with: those that this process may use, at most 4, which are enough for any
    memory."""
    return min(4, len(os.sched_getaffinity(0)))


def _share(pool: ThreadPoolExecutor, n: int, work: Callable[[list], None], items: list) -> None:
    """Do the work in `n` threads of a pool, and wait for them."""
    # neighbours stay together: they may share a chunk
    cuts = [len(items) * i // n for i in range(n + 1)]
    for future in [pool.submit(work, items[a:b]) for a, b in pairwise(cuts)]:
        future.result()


def _pinned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Page-locked memory; torch's allocator recycles it, and waits for copies under way."""
    n_bytes = math.prod(shape) * dtype.itemsize
    return (
        torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True).numpy().view(dtype).reshape(shape)
    )
