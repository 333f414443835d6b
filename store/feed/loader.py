"""`TraceLoader`: packed batches of a store in a known order, read ahead by threads; and what it
shares with `TokenLoader`.

The order is that of `order.py`, the reads are those of `epoch_reads.py`. The position counts rows
delivered, so a loader resumes exactly, with any batch size, number of threads or ranks.
"""

import hashlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np

from store.feed.epoch_reads import BatchReader, EpochReads, VisitTimes, kept_fraction
from store.feed.order import (
    MAX_EPOCH,
    ORDER,
    Batches,
    EpochOrder,
    check_progress,
    current_rank,
    n_batches,
)
from store.feed.prefetch import fetched_row_bytes, row_bytes
from store.feed.shares import Shares, Weights, read_weights
from store.feed.windows import (
    MOST_SHARED_BYTES,
    batches_together,
    is_held,
    small_batches_together,
)
from store.format.values import is_integer
from store.memory_limits import read_memory
from store.read.arrays.read_options import Schedule
from store.read.batches.batch import Batch
from store.read.batches.tensors import check_arrays
from store.read.joined.joined_store import Stores, open_joined, row_cuts
from store.read.plan import ReadPlan, Select
from store.read.store import Rows, TraceStore

if TYPE_CHECKING:
    from store.feed.device import DeviceCopies

__all__ = ["Loader", "LoaderOptions", "TraceLoader"]

# with more rows the cache evicts the least recently used: 16 bytes a row would be too much
MAX_TIMED_ROWS = 10_000_000
ALONE = 0, 1  # rank and number of ranks, of one that visits all rows
_forks: list[None] = []  # one for each fork since the import; getpid for each batch costs up to 4%
os.register_at_fork(after_in_child=lambda: _forks.append(None))


class Visited(NamedTuple):
    """What an epoch visits: `n` rows or tokens, numbered from 0, or as `rows` number them; what is
    read of them, and what a state says of them."""

    n: int
    plan: ReadPlan
    named: dict[str, int | str]
    rows: np.ndarray | None = None
    shares: Shares | None = None  # of the stores, in each epoch

    def of_epoch(self, epoch: int) -> Callable[[np.ndarray], np.ndarray] | None:
        """What stands at places that the order of an epoch permutes; None: their numbers do."""
        row_of = None if self.rows is None else self.rows.take
        if self.shares is None:
            return row_of
        visited = partial(self.shares.visited, epoch)
        return visited if row_of is None else lambda places: row_of(visited(places))


def check_alone() -> None:
    """Raise RuntimeError in one of several workers of a DataLoader: each would give all rows."""
    data = sys.modules.get("torch.utils.data")
    worker = data.get_worker_info() if data else None
    if worker is not None and worker.num_workers > 1:
        raise RuntimeError(
            f"a loader is read in one of {worker.num_workers} workers of a DataLoader, each of "
            "which would give all of its rows: use the loader without a DataLoader (it has "
            "num_workers of its own), or TraceDataset with GlobalShuffleSampler"
        )


class LoaderOptions(TypedDict, total=False):
    """What any loader takes by name; `TraceLoader` has the meanings, and the defaults."""

    rows: Rows | None
    where: str | None
    num_workers: int
    drop_last: bool
    select: Select | None
    cache_bytes: int | None
    prefetch_bytes: int
    pin_memory: bool
    arrays: str
    rank: int | None
    world_size: int | None
    follow: bool
    weights: Weights | None
    replacement: bool
    device: object


class Loader:
    """What the loaders have in common: epochs, ranks, threads, and states that resume.

    The options are those of `TraceLoader`. A subclass says by `_look` what is visited of a store.
    """

    listed: int | None = None  # rows up to which an order is a list, if not as usual
    shuffles: tuple[bool | str, ...] = (False, True)
    lends_rows = True  # False in a subclass: batch i is a cut of that of one process, maybe empty

    def __init__(
        self,
        store: Stores,
        columns: Sequence[str] | None = None,
        batch_size: int = 32,
        shuffle: bool | str = False,
        seed: int = 0,
        *,
        rows: Rows | None = None,
        where: str | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
        select: Select | None = None,
        cache_bytes: int | None = None,
        prefetch_bytes: int = 128 * 1024 * 1024,
        pin_memory: bool = False,
        arrays: str = "torch",
        rank: int | None = None,
        world_size: int | None = None,
        follow: bool = False,
        weights: Weights | None = None,
        replacement: bool = False,
        device: object = None,
    ) -> None:
        opened = open_joined(store, cache_bytes)
        if where is not None:
            if rows is not None:
                raise ValueError("where: expected None with rows=..., found a filter")
            rows = opened.where(where)
        given = None if rows is None else opened.check_rows(rows)
        check_arrays(arrays)
        if shuffle not in self.shuffles:
            expected = ", ".join(map(repr, self.shuffles))
            raise ValueError(f"shuffle: expected one of {expected}, found {shuffle!r:.80}")
        if pin_memory and arrays == "numpy":
            raise ValueError('pin_memory: expected False with arrays="numpy", found True')
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("num_workers", num_workers, 0),
            ("prefetch_bytes", prefetch_bytes, 0),
            ("seed", seed, 0),
        ):
            if not is_integer(value) or value < least:
                raise ValueError(f"{name}: expected an integer of {least} or more, found {value!r}")
        if follow and rows is not None:
            raise ValueError("follow: expected False with rows=... or where=..., found True")
        if weights is not None and shuffle is not True:
            raise ValueError(f"weights: expected shuffle=True with them, found {shuffle!r}")
        if replacement and weights is None:
            raise ValueError("replacement: expected weights with it, found none")
        self._weights = None if weights is None else read_weights(opened, weights)
        self._replacement = replacement
        if weights is not None and given is not None:  # store by store
            given = given[np.argsort(row_cuts(opened).searchsorted(given, "right"), kind="stable")]
        self.follow = follow
        self.prefetch_bytes = prefetch_bytes
        self.arrays = arrays
        self.copies = None if device is None else _copies_to(device, arrays)
        self.pin_memory = self.copies is not None or (pin_memory and _has_cuda())
        self.batch_size = int(batch_size)  # of Python's, as states are JSON
        self.shuffle = shuffle
        self.seed = int(seed)
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.rank = rank
        self.world_size = world_size
        self._waited_s = 0.0
        self._read_s: dict[int, float] = {}
        self._columns = columns
        self._select = select
        self._given = given
        self._open(opened)
        self._move_to(0, 0)
        current_rank(rank, world_size)  # refuses a rank that is out of range

    @property
    def _plan(self) -> ReadPlan:
        return self._now.plan

    @property
    def n_visits(self) -> int:
        """Rows or tokens that all ranks together visit in a whole epoch, as this one."""
        return self._now.n

    def _open(self, store: TraceStore) -> None:
        self.store = store
        self._all = self._visited(len(store))
        self._now = self._all  # in this epoch
        self.__dict__.pop("_kept_fraction", None)

    def _visited(self, n_rows: int) -> Visited:
        """What is visited of the first rows of the store, with the shares of several."""
        visited = self._look(n_rows)
        if self._weights is None:
            return visited
        shares = Shares(self._cuts(visited), self._weights, self.seed, self._replacement)
        named = visited.named | {"shares": str(shares)}
        return visited._replace(n=len(shares), named=named, shares=shares)

    def _look(self, n_rows: int) -> Visited:
        """What is visited of the first rows of the store, or of the given ones."""
        raise NotImplementedError

    def _cuts(self, visited: Visited) -> np.ndarray:
        """Where what is visited of each store begins: int64 `(n_stores + 1,)`."""
        cuts = row_cuts(self.store)
        if visited.rows is None:
            return cuts.clip(max=visited.n)
        return (cuts.searchsorted(visited.rows, "right") - 1).searchsorted(np.arange(len(cuts)))

    def __len__(self) -> int:
        """Batches of the next iteration, as many on each rank; of a loaded epoch, of its rest.

        With `follow`, those of the rows that were there when the last iteration began.
        """
        _, world_size = current_rank(self.rank, self.world_size)
        return n_batches(self.n_visits - self._start, world_size * self.batch_size, self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; that of a loaded state keeps its position."""
        if not is_integer(epoch) or not 0 <= epoch <= MAX_EPOCH:
            raise ValueError(f"epoch: expected an integer from 0 to {MAX_EPOCH}, found {epoch!r}")
        if epoch != self.epoch:
            self._now = self._all
            self._move_to(int(epoch), 0)

    def _move_to(self, epoch: int, position: int) -> None:
        # where the next iteration begins
        self.epoch = epoch
        self._start = position
        # what a state records: the epoch, and the rows of it that all ranks together have delivered
        self._delivered = (epoch, position)

    def state_dict(self) -> dict[str, int | str]:
        """Return the position for `load_state_dict`: JSON, equal on all ranks after a step."""
        epoch, position = self._delivered
        return {"epoch": epoch, "position": position} | self._identity(self._now)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where another loader was: after the rows that it delivered.

        Batch size, threads and ranks may differ; store, rows, seed and shuffle may not. The store
        may have grown: the epoch goes on over the rows that it had, and the next one has all.
        """
        n_rows = state.get("n_rows")
        visited = self._all
        if self._given is None and is_integer(n_rows) and 0 <= n_rows < len(self.store):
            visited = self._visited(n_rows)
        identity = self._identity(visited)
        state = {"n_rows": identity["n_rows"], **state}  # tokens' had none once
        epoch, position = check_progress(state, identity, visited.n)
        self._now = visited if position else self._all
        self._move_to(epoch, position)

    def _identity(self, visited: Visited) -> dict[str, int | str]:
        """What must be equal for two loaders to visit the same global order."""
        return {
            "store": self.store.uuid,
            **visited.named,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "order": ORDER,
        }

    def _visits_of(self, epoch: int) -> Visited:
        """What is visited in this epoch or another one, which has all that the store has."""
        return self._now if epoch == self.epoch else self._all

    def order_of(self, n: int, epoch: int) -> EpochOrder:
        return EpochOrder(n, self.seed, epoch, bool(self.shuffle), self.listed)

    def _batches(self, epoch: int, start: int, ranks: tuple[int, int] | None = None) -> Batches:
        """The batches in the rest of an epoch of this rank, or of one and how many there are."""
        visited = self._visits_of(epoch)
        return Batches(
            self.order_of(visited.n, epoch),
            self.batch_size,
            self.drop_last,
            visited.of_epoch(epoch),
            start,
            ranks or current_rank(self.rank, self.world_size),
            self.lends_rows,
        )

    def _visit_times(self, batches: Batches) -> VisitTimes | None:
        """The schedule of the cache; None if it has no use or would cost too much memory."""
        cache_bytes = self.store.cache_bytes
        has_use = cache_bytes and not is_held(self.store, self._plan, cache_bytes)
        return self._times_of(self.epoch, batches) if has_use else None

    def _times_of(self, epoch: int, batches: Batches) -> VisitTimes | None:
        """When each row is visited in the rest of an epoch and in the next one, by the rank of
        these batches; None if that are too many times, as those of tokens are."""
        if self._plan.tokens is not None or len(self.store) > MAX_TIMED_ROWS:
            return None
        next_rows = self._batches(epoch + 1, 0, (batches.rank, batches.world_size)).visits()
        return VisitTimes(epoch, batches.visits(), next_rows, len(self.store))

    def _schedule(self, batches: Batches) -> Callable[[int, int], Schedule] | None:
        """When rows are read, counted over all ranks, for the mirror of a remote store."""
        if self.store.mirror is None:
            return None
        epoch = self.epoch
        start, rank, world_size = batches.start, batches.rank, batches.world_size
        first = epoch * self.n_visits + start + rank
        n_bytes = fetched_row_bytes(self.store, self._plan)

        @cache  # computed when first asked for: a mirror that has every chunk needs no times
        def times() -> VisitTimes | None:
            return self._times_of(epoch, self._batches(epoch, start, ALONE))

        def schedule(n_done: int, visit: int) -> Schedule:
            before = rank + visit * world_size
            visits = times()
            next_use = None if visits is None else visits.after(before, world_size)
            now = first + n_done * world_size
            at = first + visit * world_size
            return Schedule(now, at, world_size, n_bytes, next_use)

        return schedule

    def _refresh(self) -> None:
        """Take what was committed since, at the beginning of an epoch of a loader that follows."""
        _, world_size = current_rank(self.rank, self.world_size)
        if world_size > 1:
            raise ValueError(
                f"follow: expected one process, found {world_size}, which may see other commits; "
                "open the store again in all of them"
            )
        store = self.store.refresh()
        if store is not self.store:
            self._open(store)

    def __iter__(self) -> Iterator[Batch]:
        check_alone()
        if self.follow and not self._start:
            self._refresh()
        epoch = self.epoch
        batches = self._batches(epoch, self._start)
        if batches.n_empty and self.lends_rows:
            n_over = (self.n_visits - batches.start) % (batches.world_size * self.batch_size)
            warnings.warn(
                f"{batches.n_empty} of {batches.world_size} ranks get an empty last batch, with a "
                f"mean of NaN; drop_last=True leaves out the last {n_over} rows, batch_size=2 or "
                "more shares them if there are as many rows as ranks",
                RuntimeWarning,
                stacklevel=2,
            )
        self._delivered = (epoch, self._start)
        self._start = 0
        n_forks = len(_forks)
        read = self._read(batches)
        read = read if self.copies is None else self.copies.of(read)
        for done in count(1):
            began = time.perf_counter()
            batch = next(read, None)
            self._waited_s += time.perf_counter() - began
            if batch is None:
                break
            self._delivered = (epoch, batches.position(done))
            if done == len(batches):  # before the last batch is out: more may never be asked for
                self._end_epoch(epoch + 1)
            yield batch
            if len(_forks) != n_forks:
                raise RuntimeError(
                    "this iterator belongs to the parent process; make another: iter(loader)"
                )
        if not len(batches):
            self._end_epoch(self.epoch + 1)
        self._delivered = (self.epoch, 0)

    def stats(self) -> dict[str, float]:
        """What this loader and its store did in this process, over all epochs.

        `waited_s` is the time that iterations waited for batches, `read_s` that of all threads
        reading; `read_bytes` are decoded bytes of items, `hits` and `misses` those of the cache of
        decoded chunks. Of a store at an address, what its mirror counts comes with them.
        """
        chunks = self.store.cache.stats
        mirror = self.store.mirror
        return {
            "waited_s": self._waited_s,
            "read_s": sum(self._read_s.copy().values()),
            "read_bytes": self.store.reader.n_bytes_read,
            "hits": chunks.hits,
            "misses": chunks.misses,
            **({} if mirror is None else mirror.stats()),
        }

    def _end_epoch(self, next_epoch: int) -> None:
        self._now = self._all
        self.epoch = next_epoch
        self._delivered = (next_epoch, 0)

    def _read(self, batches: Batches) -> Iterator[Batch]:
        """Read the batches of this epoch, in order."""
        n_together = self._batches_together()
        mean_bytes = n_together * self.batch_size * row_bytes(self.store, self._plan)
        reads = EpochReads(
            self,
            self._plan,
            batches,
            self._visit_times(batches),
            self._schedule(batches),
            self._kept_fraction,
            n_together,
            most_bytes=max(MOST_SHARED_BYTES, 2 * mean_bytes),
        )
        return reads.in_order()

    def unread(self, rows: np.ndarray) -> np.ndarray:
        """Those of some rows, int64 `(n,)`, that are read from files: all of them.

        A subclass that keeps rows in memory leaves those out here and adds them in `batch_reader`.
        """
        return rows

    def batch_reader(self) -> BatchReader:
        """What reads the rows of a batch, or of a window of several that is cut into batches
        afterwards.

        It is called in any of the threads. A subclass may return another, if what that gives of a
        row does not depend on the other rows.
        """
        return partial(self.store.reader.read, self._plan, arrays=self.arrays)

    def count_seconds(self, seconds: float) -> None:
        """Add to the time of reading; each thread has a sum of its own, which needs no lock."""
        thread = threading.get_ident()
        self._read_s[thread] = self._read_s.get(thread, 0.0) + seconds

    @cached_property
    def _kept_fraction(self) -> float:
        """Of what the epochs read, what stays in the page cache: the same part in each."""
        n_bytes = row_bytes(self.store, self._plan) * self.n_visits
        return kept_fraction(n_bytes, read_memory().cacheable)

    def _batches_together(self) -> int:
        """Batches a window: of small rows a few megabytes, else no more than the cache may hold."""
        n_small = 1
        # a mirror that lacks some chunks has those of a batch sooner than those of a window
        if self.store.reader.is_here(self._plan):
            n_small = small_batches_together(self.store, self._plan, self.batch_size)
        if not self.shuffle:  # neighbours follow each other: the cache has their chunks
            return n_small
        cache_bytes = self.store.cache_bytes
        max_bytes = min(cache_bytes, self.prefetch_bytes)
        if self.num_workers:  # one is delivered, one is read
            max_bytes //= 2
        n = batches_together(self.store, self._plan, self.batch_size, max_bytes, cache_bytes)
        return max(n, n_small)


class TraceLoader(Loader):
    """Iterate over packed batches, one epoch an iteration.

    A completed iteration moves on to the next epoch, so that a plain loop never repeats an order;
    `set_epoch` chooses the epoch. All ranks have as many batches, and together each row once: the
    last two may be smaller. A RuntimeWarning says where some ranks can only have an empty last one.

    Parameters
    ----------
    store
        Path or address of a store, or an open one; `loader.store.mirror.stats()` counts what came
        from an address. Or a list of them, which are read as one: rows are numbered through, and
        one shuffle is over all.
    columns
        Names to read; all if None.
    batch_size
        Rows a batch; the last one may be smaller unless `drop_last`.
    shuffle
        Visit the rows in a global random order, different in each epoch; else in the order of
        `rows`.
    seed
        Same seed, same orders.
    rows
        Rows to visit, for example of a split, as `TraceStore.read` takes them; all if None.
    where
        In place of `rows`, those that a filter means, as `TraceStore.where` takes it.
    num_workers
        Threads that read ahead; 0 reads each batch on demand, with all cores if it is large.
    drop_last
        Leave out a last batch that is not full, on every rank if it is not on one.
    select
        Slices of item axes, see `TraceStore.read`.
    cache_bytes
        Decoded chunks of compressed columns to keep, see `TraceStore.open`;
        `loader.store.cache.stats` counts hits and misses. Shuffled batches of small compressed rows
        are read many at once, in no more than as much memory again. If rows have less than 16 KB on
        average, several batches are read at once and are views of one memory: one that is kept
        keeps up to 8 MB.
    prefetch_bytes
        How far ahead of the batches data that is not in memory is asked for, and how much the
        threads read ahead; 0 asks for nothing. Long rows of raw columns are read ahead from their
        files, past the page cache if it cannot hold what an epoch reads.
    pin_memory
        Read into page-locked memory, for asynchronous copies to a GPU; no effect without CUDA.
    arrays
        What batches hold: "torch" tensors, or "numpy" arrays, which need no torch.
    rank, world_size
        This process and how many there are; each delivers its share of the one global order. None:
        those of `torch.distributed` when an iteration begins; 0 and 1 are all rows, also there.
    follow
        Each epoch has the rows that are committed when it begins; in one process, of all rows.
    device
        A GPU, such as "cuda:0": batches are on it, but for `rows` and texts. They are copied from
        page-locked memory on a stream of their own, one ahead of the one that is in use. A
        ValueError without CUDA.
    weights
        Of each of several stores, above 0: in their order, or by their names, as
        `{"squad": 0.7, "nq": 0.3}` of `squad.zarr` and `nq.zarr`. They are shares of the visits
        of an epoch, and need `shuffle`. An epoch ends when one store has had all of its rows. Of
        another one that has c of its n rows in an epoch, n // c epochs that follow each other have
        different rows, and the next ones are drawn anew.
    replacement
        With `weights`, an epoch has as many visits as there are rows: the rows of a store that has
        fewer than its share come several times, each as often as the others, to within one.
    """

    def _look(self, n_rows: int) -> Visited:
        rows = "all"
        if self._given is not None:
            rows = hashlib.blake2b(self._given.tobytes(), digest_size=8).hexdigest()
            n_rows = len(self._given)
        plan = self.store.plan(self._columns, self._select)  # a wrong name fails here
        return Visited(n_rows, plan, {"n_rows": n_rows, "rows": rows}, self._given)


def _copies_to(device: object, arrays: str) -> "DeviceCopies":
    if arrays == "numpy":
        raise ValueError('device: expected none with arrays="numpy", found one')
    from store.feed.device import DeviceCopies, cuda_device

    return DeviceCopies(cuda_device(device))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
