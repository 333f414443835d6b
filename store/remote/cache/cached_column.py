"""The chunks of one column of a cached store: where they are in objects, and how they come."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from store.errors import CorruptError, NotFoundError
from store.format.contents import StoredArray
from store.format.layout import table_bytes
from store.read.arrays.chunk_sums import ChunkSums
from store.read.arrays.shard import chunk_checksum, read_entries
from store.read.directory import StoreDirectory
from store.read.source import open_array
from store.remote.cache.byte_requests import Request, cut_requests, join_pieces, plan_requests
from store.remote.cache.cached_store import CachedStore
from store.remote.cache.chunk_index import WritableIndex, shard_cells
from store.remote.cache.slab import Slab
from store.remote.objects.retry import FETCHES, again

__all__ = ["CachedColumn", "Cut", "Job"]

# Of shorter chunks the interpreter's lock is kept: to give it away takes longer than a checksum.
LOCKED_BYTES = 512 * 1024


@dataclass(eq=False)
class Job:
    """Chunks of one shard, to be fetched in one go into slots that are taken.

    Attributes
    ----------
    cells, positions
        int64 `(n,)`, in the order of their places in the object.
    n_fetched, n_again
        Bytes that came, and those of them that had been here before.
    is_void
        Whether what comes is given up: its slots are not to be had any more.
    is_missing
        Which of the chunks are still to come: bool `(n,)`.
    """

    column: "CachedColumn"
    shard: int
    cells: np.ndarray
    positions: np.ndarray
    n_fetched: int = 0
    n_again: int = 0
    is_void: bool = False
    is_missing: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.is_missing = np.ones(len(self.cells), bool)

    @property
    def n_bytes(self) -> int:
        return int(self.column.index.sizes[self.cells].sum())

    def missing(self) -> np.ndarray:
        """Indices of the chunks that are still to come, int64 `(m,)`."""
        return np.flatnonzero(self.is_missing)


Cut = tuple[int, np.ndarray, np.ndarray]
"""A shard, cells in it, and the sizes of their chunks, int64 `(n,)`."""


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
        self._read_sums()
        self._tables: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def is_open(self, shard: int) -> bool:
        """Whether its table is here."""
        return shard in self._tables

    def shards_of(self, some: np.ndarray) -> list[int]:
        """The shards that hold some cells."""
        return np.unique(some // self.shard_cells).tolist()

    async def open_shard(self, shard: int) -> None:
        """Fetch the table of a shard; raises StoreError if the object is none of this array."""
        async with self._locks[shard]:
            if not self.is_open(shard):
                fetch = partial(self._fetch_table, shard)
                try:
                    self._tables[shard] = self._places(await asyncio.to_thread(again, fetch))
                except CorruptError:
                    await self.store.check_same()
                    raise

    def _places(self, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the chunk of each cell of a shard is: starts and sizes, int64 `(n,)`."""
        layout = self.layout
        places = np.zeros((layout.n_planes, layout.shard_chunks, 2), np.int64)
        places[:, : len(entries)] = np.moveaxis(entries, 1, 0)
        starts, sizes = map(np.ascontiguousarray, places.reshape(-1, 2).T)
        return starts, sizes

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

    def cut(self, some: np.ndarray) -> list[Cut]:
        """Cells of open shards as jobs, in the order of their places in the objects."""
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

    async def fetch(self, job: Job, slab: Slab) -> None:
        """Bring what a job lacks into its slots.

        Raises CorruptError if it comes wrong again and again, and OSError if it cannot be written.
        """
        self._look(job, slab)
        key = self.layout.shard_path(job.shard)
        for n in range(FETCHES):
            todo = job.missing()
            if not len(todo):
                return
            if n == FETCHES - 1:  # the sums may be what is wrong
                await self.store.fetch_again(self.array.checksums.layout.path)
                self._read_sums()
            requests = plan_requests(*self.place(job.shard, job.cells[todo]))
            starts, stops, _, _ = zip(*requests, strict=True)
            answers = await self.store.source.fetch_ranges(key, starts, stops)
            for request, data in zip(requests, answers, strict=True):
                self._keep(job, todo, slab, request, data)
        if job.is_missing.any():
            await self.store.check_same()
            first = int(job.cells[job.missing()[0]]) - job.shard * self.shard_cells
            chunk = first % self.layout.shard_chunks
            raise CorruptError(
                f"{self.store.url}/{key}, chunk {chunk}: expected the bytes of its checksum, found "
                f"others {FETCHES} times; push the store again, or see python -m store verify"
            )

    def _look(self, job: Job, slab: Slab) -> None:
        """Note which chunks of a job an earlier process has left in their slots."""
        _, sizes = self.place(job.shard, job.cells)
        left = np.flatnonzero(self.index.words[job.cells])
        places = zip(job.positions[left].tolist(), sizes[left].tolist(), strict=True)
        found = [memoryview(slab.read(*place)) for place in places]
        is_whole = np.array([*map(len, found)], np.int64) == sizes[left]
        job.is_missing[left] = ~(is_whole & self._are_right(job, left, found))

    def _are_right(self, job: Job, some: np.ndarray, found: list[memoryview]) -> np.ndarray:
        """Which of the bytes that were found are those of some chunks of a job: bool `(n,)`."""
        layout = self.layout
        inside = job.cells[some] - job.shard * self.shard_cells
        planes, chunks = np.divmod(inside, layout.shard_chunks)
        # those of one shard follow each other
        base = self.array.sum_of_chunk(job.shard * layout.shard_chunks)
        sums = self._sums[base + chunks, planes].tolist()
        first, stop = self.array.items_of_shard(job.shard)
        n_items = stop - first - chunks * layout.chunk_items
        n_bytes = (n_items * layout.plane_item_bytes).tolist()
        mode = int(layout.chunk_bytes > LOCKED_BYTES)
        checked = zip(found, n_bytes, sums, strict=True)
        return np.array([chunk_checksum(layout, d, n, mode) == s for d, n, s in checked], bool)

    def _read_sums(self) -> None:
        """Read the checksums of all chunks, uint32 `(n_chunks, n_planes)`."""
        checksums = self.array.checksums
        has_tail = self.array.n_places % self.layout.chunk_items > 0
        reader = open_array(StoreDirectory.at(self.store.root), checksums)
        sums = ChunkSums(reader.read, self.array, self.store.manifest)
        self._sums = sums.read(0, checksums.n_items + has_tail)

    def _keep(
        self, job: Job, todo: np.ndarray, slab: Slab, request: Request, data: memoryview
    ) -> None:
        """Write the chunks of an answer that are right into their slots; the job has them now.

        `todo` are the indices of those that were asked for, int64 `(n,)`.
        """
        some = todo[request.first : request.last]
        cells = job.cells[some]
        base = request.start
        starts, sizes = self.place(job.shard, cells)
        job.n_fetched += len(data)
        job.n_again += int(sizes[self.index.was_here[cells]].sum())
        spans = zip((starts - base).tolist(), (starts - base + sizes).tolist(), strict=True)
        right = self._are_right(job, some, [data[a:b] for a, b in spans])
        for piece in join_pieces(starts[right], sizes[right], job.positions[some[right]]):
            slab.write(data[piece.start - base : piece.stop - base], piece.target)
        job.is_missing[some[right]] = False
