"""The chunks of one column of a cached store: where they are in objects, and how they come."""

import threading
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from store.errors import CorruptError, NotFoundError
from store.format.contents import StoredArray
from store.format.shard_table import table_bytes
from store.read.directory import StoreDirectory
from store.read.shard import read_entries
from store.remote.cached_store import CachedStore
from store.remote.chunk_checks import ChunkChecks, IsRight
from store.remote.chunk_index import WritableIndex, shard_cells
from store.remote.faults import FETCHES, again
from store.remote.requests import Request, cut_requests, join_pieces, plan_requests
from store.remote.slab import Slab

__all__ = ["CachedColumn", "Job"]


@dataclass(eq=False)
class Job:
    """Chunks of one shard, to be fetched in one go into slots that are taken.

    Attributes
    ----------
    cells, positions
        int64 `(n,)`, in the order of their places in the object.
    n_fetched, n_again
        Bytes that were asked for, and those of them that had been here before.
    is_missing
        Which of the chunks are still to come: bool `(n,)`.
    """

    column: "CachedColumn"
    shard: int
    cells: np.ndarray
    positions: np.ndarray
    n_fetched: int = 0
    n_again: int = 0
    is_missing: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.is_missing = np.ones(len(self.cells), bool)

    def missing(self) -> np.ndarray:
        """Indices of the chunks that are still to come, int64 `(m,)`."""
        return np.flatnonzero(self.is_missing)


class CachedColumn:
    """One column's array at an address, and the index of its cells in the cache."""

    def __init__(self, store: CachedStore, array: StoredArray, index: WritableIndex) -> None:
        self.store = store
        self.array = array
        self.layout = array.layout
        self.index = index
        self.shard_cells = shard_cells(array)
        shards = map(array.items_of_shard, range(array.n_shards))
        n_chunks = sum(self.layout.n_chunks(stop - first) for first, stop in shards)
        index.n_chunks = self.layout.n_planes * n_chunks
        self.checks = ChunkChecks(StoreDirectory.at(store.root), array, store.manifest)
        self._tables: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._locks = [threading.Lock() for _ in range(min(64, max(1, array.n_shards)))]

    def is_open(self, shard: int) -> bool:
        """Whether its table is here."""
        return shard in self._tables

    def shards_of(self, some: np.ndarray) -> list[int]:
        """The shards that hold some cells."""
        return np.unique(some // self.shard_cells).tolist()

    def open_shard(self, shard: int) -> None:
        """Fetch the table of a shard; raises StoreError if the object is none of this array."""
        with self._locks[shard % len(self._locks)]:
            if shard in self._tables:
                return
            entries = again(partial(self._fetch_table, shard))
            layout = self.layout
            places = np.zeros((layout.n_planes, layout.shard_chunks, 2), np.int64)
            places[:, : len(entries)] = np.moveaxis(entries, 1, 0)
            starts, sizes = map(np.ascontiguousarray, places.reshape(-1, 2).T)
            self._tables[shard] = starts, sizes

    def _fetch_table(self, shard: int) -> np.ndarray:
        """(offset, size) of every chunk that holds items: int64 `(n_chunks, n_planes, 2)`."""
        key = self.layout.shard_path(shard)
        n_table = table_bytes(self.layout)
        where = f"array {self.layout.path!r}, shard {shard}"
        first, stop = self.array.items_of_shard(shard)
        try:
            tail, n_bytes = self.store.source.get_tail(key, n_table)
        except NotFoundError as error:
            raise CorruptError(
                f"{self.store.url}/{key}: expected an object, found none; push the store again"
            ) from error
        n_data = n_bytes - n_table
        entries, end = read_entries(bytes(tail), self.layout, stop - first, n_data, where)
        if end != n_data:
            raise CorruptError(
                f"{where}: expected its table after byte {end}, found {n_data} bytes before it; "
                "push the store again"
            )
        return entries

    def place(self, shard: int, some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where cells of one open shard are in its object: starts and sizes, int64 `(n,)`."""
        starts, sizes = self._tables[shard]
        inside = some - shard * self.shard_cells
        return starts[inside], sizes[inside]

    def sizes(self, some: np.ndarray) -> np.ndarray:
        """The bytes of the chunks of cells of open shards, int64 `(n,)`; 0 where none is."""
        found = np.zeros(len(some), np.int64)
        shards = some // self.shard_cells
        for shard in np.unique(shards).tolist():
            here = shards == shard
            _, found[here] = self.place(shard, some[here])
        return found

    def cut(self, some: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Cells as (shard, cells, sizes) of jobs, in the order of their places in the objects."""
        jobs = []
        shards = some // self.shard_cells
        for shard in np.unique(shards).tolist():
            here = some[shards == shard]
            starts, sizes = self.place(shard, here)
            order = np.argsort(starts, kind="stable")
            here, starts, sizes = here[order], starts[order], sizes[order]
            for first, last in cut_requests(plan_requests(starts, sizes)):
                jobs.append((shard, here[first:last], sizes[first:last]))
        return jobs

    def plan(self, job: Job, slab: Slab) -> list[Request]:
        """The requests of a job, for the chunks that an earlier process has not left there."""
        self._look(job, slab)
        return self._requests(job)

    def count(self, job: Job, requests: list[Request]) -> None:
        """Note that what a job lacks is asked for."""
        cells = job.cells[job.is_missing]
        _, sizes = self.place(job.shard, cells)
        job.n_fetched += sum(one.stop - one.start for one in requests)
        job.n_again += int(sizes[self.index.was_here[cells]].sum())

    def fetch(self, job: Job, slab: Slab) -> None:
        """Bring what a job lacks into its slots, by the client; it may take long.

        Raises
        ------
        CorruptError
            It comes with wrong bytes again and again.
        OSError
            It cannot be written.
        """
        key = self.key(job)
        for n_left in reversed(range(FETCHES)):
            todo = job.missing()
            if not len(todo):
                return
            if not n_left:  # the sums may be what is wrong
                with self.store.lock:
                    self.store.fetch_whole(self.array.checksums.layout.path)
                    self.checks.read()
            requests = self._requests(job)
            starts = [one.start for one in requests]
            stops = [one.stop for one in requests]
            self.count(job, requests)
            answers = self.store.source.get_ranges(key, starts, stops)
            for request, data in zip(requests, answers, strict=True):
                self.keep(job, todo[request.first : request.last], request.start, data, slab)
        if job.is_missing.any():
            first = int(job.cells[job.missing()[0]]) - job.shard * self.shard_cells
            chunk = first % self.layout.shard_chunks
            raise CorruptError(
                f"{self.store.url}/{key}, chunk {chunk}: expected the bytes of its checksum, found "
                f"others {FETCHES} times; push the store again, or see python -m store verify"
            )

    def key(self, job: Job) -> str:
        """The object of a job."""
        return self.layout.shard_path(job.shard)

    def _requests(self, job: Job) -> list[Request]:
        """Requests for what a job lacks."""
        return plan_requests(*self.place(job.shard, job.cells[job.is_missing]))

    def _look(self, job: Job, slab: Slab) -> None:
        """Note which chunks of a job an earlier process has left in their slots."""
        words = self.index.words[job.cells]
        if not words.any():
            return
        is_right = self._check(job, np.arange(len(job.cells)))
        _, sizes = self.place(job.shard, job.cells)
        for i in np.flatnonzero(words).tolist():
            data = slab.read(int(job.positions[i]), int(sizes[i]))
            job.is_missing[i] = len(data) != sizes[i] or not is_right(i, memoryview(data))

    def _check(self, job: Job, chosen: np.ndarray) -> IsRight:
        planes, chunks = np.divmod(
            job.cells[chosen] - job.shard * self.shard_cells, self.layout.shard_chunks
        )
        return self.checks.of(job.shard, chunks, planes)

    def keep(self, job: Job, some: np.ndarray, base: int, data: memoryview, slab: Slab) -> None:
        """Write the chunks that are right into their slots; the job lacks them no more.

        Parameters
        ----------
        some
            Indices of chunks of the job, int64 `(n,)`.
        base, data
            Bytes of the object from `base` on, which hold them.
        """
        starts, sizes = self.place(job.shard, job.cells[some])
        is_right = self._check(job, some)
        spans = zip((starts - base).tolist(), (starts - base + sizes).tolist(), strict=True)
        right = np.array([is_right(i, data[a:b]) for i, (a, b) in enumerate(spans)], bool)
        self.index.sizes[job.cells[some]] = sizes
        pieces = join_pieces(starts[right], sizes[right], job.positions[some[right]])
        for piece in pieces:
            slab.write(data[piece.start - base : piece.stop - base], piece.target)
        job.is_missing[some[right]] = False
