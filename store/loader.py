"""`TraceLoader`: packed batches of a store in a known order, read ahead by threads.

The order is `order.permutation`; threads only change when a batch is read, never which or in what order it
is delivered. The position counts rows delivered, so a loader resumes exactly, with any other batch size,
number of threads or ranks.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from store.batch import Batch
from store.order import permutation, rank_positions
from store.plan import Select
from store.prefetch import Readahead, VisitTimes, row_bytes
from store.reader import TraceStore

__all__ = ["TraceLoader"]

PREFETCH_FACTOR = 2  # batches read ahead for each thread
MAX_TIMED_ROWS = 10_000_000  # beyond it the cache goes by least recent use: 16 bytes a row are too much


class TraceLoader:
    """Iterate over packed batches, one epoch an iteration.

    A completed iteration moves on to the next epoch, so that a plain loop never repeats an order; `set_epoch`
    chooses one.

    Parameters
    ----------
    store
        Path of a store, or an open one.
    columns
        Names to read; all if None.
    batch_size
        Rows a batch; the last one may be smaller unless `drop_last`.
    shuffle
        Visit the rows in a global random order, another one each epoch; else in the order of `rows`.
    seed
        Same seed, same orders.
    rows
        Row numbers to visit, e.g. a split; all rows if None.
    num_workers
        Threads that read ahead; 0 reads when asked.
    drop_last
        Leave out a last batch that is not full.
    select
        Slices of item axes, see `TraceStore.read`.
    cache_bytes
        Decoded chunks of compressed columns to keep; see `TraceStore.open`. `loader.store.cache.stats` counts.
    prefetch_bytes
        How far ahead of the batches the kernel is asked for data that is not in memory, and how much
        threads read ahead; 0 asks for nothing.
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
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("num_workers", num_workers, 0),
            ("prefetch_bytes", prefetch_bytes, 0),
            ("seed", seed, 0),
        ):
            if not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name}: expected an integer of {least} or more, found {value!r}")
        self.store = TraceStore.open(store, cache_bytes)
        self.prefetch_bytes = prefetch_bytes
        self.batch_size, self.shuffle, self.seed, self.drop_last = batch_size, shuffle, seed, drop_last
        self.num_workers, self.rank, self.world_size = num_workers, rank, world_size
        self._rows = None if rows is None else self.store.check_rows(rows)
        self._n = len(self.store) if self._rows is None else len(self._rows)
        self.epoch = 0
        self._start = 0  # position at which the next iteration begins
        self._position = 0  # rows of this epoch delivered, on all ranks together
        rank_positions(self._n, 0, rank, world_size)  # refuses a rank that is out of range
        self._plan = self.store.plan(columns, select)  # a wrong name fails here, not in a thread

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        n = len(range(self.rank, self._n, self.world_size))
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; choosing the one of a loaded state keeps its position."""
        if epoch != self.epoch:
            self.epoch, self._start, self._position = epoch, 0, 0

    def state_dict(self) -> dict[str, int | str]:
        """Where this loader is, for `load_state_dict`; JSON-able."""
        state = {"epoch": self.epoch, "position": self._position}
        return state | self._identity()

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        """Go on where another loader was: the next iteration begins behind the rows that one delivered.

        Batch size, threads and ranks may differ; store, rows, seed and shuffle may not.
        """
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise ValueError(f"state_dict: expected {key} {value!r}, found {state.get(key)!r}")
        for key, most in (("position", self._n), ("epoch", 2**63)):
            if not isinstance(state.get(key), int) or not 0 <= state[key] <= most:
                raise ValueError(f"state_dict: expected {key} from 0 to {most}, found {state.get(key)!r}")
        self.epoch = state["epoch"]
        self._start = self._position = state["position"]

    def _identity(self) -> dict[str, int | str]:
        """What must be equal for two loaders to visit the same global order."""
        rows = "all" if self._rows is None else hashlib.blake2b(self._rows.tobytes(), digest_size=8).hexdigest()
        return {"store": self.store.uuid, "n_rows": self._n, "rows": rows, "seed": self.seed, "shuffle": self.shuffle}

    def _visited(self, epoch: int, start: int) -> np.ndarray:
        """Rows that this rank visits in the rest of an epoch, in order."""
        order = permutation(self._n, self.seed, epoch) if self.shuffle else np.arange(self._n)
        mine = order[rank_positions(self._n, start, self.rank, self.world_size)]
        return mine if self._rows is None else self._rows[mine]

    def _cut(self, rows: np.ndarray) -> list[np.ndarray]:
        """Rows of every batch."""
        batches = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        return batches[:-1] if self.drop_last and batches and len(batches[-1]) < self.batch_size else batches

    def _visit_times(self, start: int) -> VisitTimes | None:
        """What the cache needs to know; nothing without compressed columns, or where it would cost too much memory."""
        if len(self.store) > MAX_TIMED_ROWS or not any(part.column.codec for part in self._plan.parts):
            return None
        now, after = self._visited(self.epoch, start), self._visited(self.epoch + 1, 0)
        end = (self.epoch + 1) * len(after)
        return VisitTimes([(end - len(now), now), (end, after)], len(self.store))

    def __iter__(self) -> Iterator[Batch]:
        start, self._start = self._start, 0
        self._position = start
        batches = self._cut(self._visited(self.epoch, start))
        for i, batch in enumerate(self._read_ahead(batches, self._visit_times(start))):
            self._position += self.batch_size * self.world_size
            if i == len(batches) - 1:  # who has the last batch is at the start of the next epoch
                self.epoch, self._position = self.epoch + 1, 0
            yield batch
        if not batches:
            self.epoch, self._position = self.epoch + 1, 0

    def _read_ahead(self, batches: list[np.ndarray], times: VisitTimes | None) -> Iterator[Batch]:
        """The batches in order, a bounded number of them read ahead; stops cleanly when abandoned."""
        readahead = Readahead(self.store, self._plan, batches, self.prefetch_bytes)

        def read(i: int) -> Batch:
            readahead.wait(i)
            return self.store.read_batch(self._plan, batches[i], times and times.after(i * self.batch_size))

        pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="store-loader") if self.num_workers else None
        ahead: deque[Future[Batch]] = deque()
        n_ahead = self._n_ahead()
        try:
            for i in range(len(batches)):
                while pool and len(ahead) < min(n_ahead, len(batches) - i):
                    readahead.before(i + len(ahead))
                    ahead.append(pool.submit(read, i + len(ahead)))
                readahead.before(i)
                yield ahead.popleft().result() if pool else read(i)
        finally:
            if pool:
                pool.shutdown(cancel_futures=True)
            readahead.close()

    def _n_ahead(self) -> int:
        """Batches in the hands of threads: two each, fewer if they are large, at least one each."""
        batch_bytes = max(1.0, row_bytes(self.store, self._plan) * self.batch_size)
        return max(self.num_workers, min(PREFETCH_FACTOR * self.num_workers, int(self.prefetch_bytes / batch_bytes)))
