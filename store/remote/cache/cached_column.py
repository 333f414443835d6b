"""The chunks of one column of a cached store: where they are in objects, and how they come."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from store.errors import CorruptError, NotFoundError
from store.format.contents import StoredArray
from store.format.layout import table_bytes
from store.read.arrays.chunk_sums import ChunkSums
from store.read.arrays.shard import chunk_checksum, read_entries
from store.read.directory import StoreDirectory
from store.read.source import open_array
from store.remote.cache.byte_requests import Request, cut_requests, plan_requests
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
    cut
        Which chunks.
    positions
        Their slots, int64 `(n,)`.
    n_fetched, n_again
        Bytes that came, and those of them that had been here before.
    is_void
        Whether what comes is given up: its slots are not to be had any more.
    is_missing
        Which of the chunks are still to come: bool `(n,)`.
    """

    column: "CachedColumn"
    cut: "Cut"
    positions: np.ndarray
    n_fetched: int = 0
    n_again: int = 0
    is_void: bool = False
    is_missing: np.ndarray = field(init=False)
    n_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.is_missing = np.ones(len(self.cells), bool)
        self.n_bytes = int(self.cut.sizes.sum())

    @property
    def cells(self) -> np.ndarray:
        return self.cut.cells

    def missing(self) -> np.ndarray:
        """Indices of the chunks that are still to come, int64 `(m,)`."""
        return np.flatnonzero(self.is_missing)


class Cut(NamedTuple):
    """Cells of one shard, and where their chunks are in its object: int64 `(n,)`, by `starts`."""

    shard: int
    cells: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray


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

    def closed_shards(self, cells: np.ndarray) -> list[int]:
        """The shards that hold some cells, and whose tables are not here."""
        shards = np.unique(cells // self.shard_cells).tolist()
        return [shard for shard in shards if shard not in self._tables]

    async def open_shard(self, shard: int) -> None:
        """Fetch the table of a shard; raises StoreError if the object is none of this array."""
        async with self._locks[shard]:
            if shard not in self._tables:
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

    def place(self, shard: int, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where cells of one open shard are in its object: starts and sizes, int64 `(n,)`."""
        starts, sizes = self._tables[shard]
        inside = cells - shard * self.shard_cells
        return starts[inside], sizes[inside]

    def sizes(self, cells: np.ndarray) -> np.ndarray:
        """The bytes of the chunks of cells of open shards, int64 `(n,)`; 0 where none is."""
        found = np.zeros(len(cells), np.int64)
        shards = cells // self.shard_cells
        for shard in np.unique(shards).tolist():
            here = shards == shard
            _, found[here] = self.place(shard, cells[here])
        return found

    def cut(self, cells: np.ndarray) -> list[Cut]:
        """Cells of open shards as jobs, in the order of their places in the objects."""
        cuts = []
        shards = cells // self.shard_cells
        for shard in np.unique(shards).tolist():
            here = cells[shards == shard]
            starts, sizes = self.place(shard, here)
            order = np.argsort(starts, kind="stable")
            whole = Cut(shard, here[order], starts[order], sizes[order])
            for first, last in cut_requests(plan_requests(whole.starts, whole.sizes)):
                cuts.append(Cut(shard, *(field[first:last] for field in whole[1:])))
        return cuts

    async def fetch(self, job: Job, slab: Slab) -> None:
        """Bring what a job lacks into its slots.

        Raises CorruptError if it comes wrong again and again, and OSError if it cannot be written.
        """
        self._look(job, slab)
        key = self.layout.shard_path(job.cut.shard)
        for n in range(FETCHES):
            todo = job.missing()
            if not len(todo):
                return
            if n == FETCHES - 1:  # the sums may be what is wrong
                await self.store.fetch_again(self.array.checksums.layout.path)
                self._read_sums()
            requests = plan_requests(job.cut.starts[todo], job.cut.sizes[todo])
            starts, stops, _, _ = zip(*requests, strict=True)
            answers = await self.store.source.fetch_ranges(key, starts, stops)
            self._keep(job, todo, slab, requests, answers)
        if job.is_missing.any():
            await self.store.check_same()
            first = int(job.cells[job.missing()[0]]) - job.cut.shard * self.shard_cells
            chunk = first % self.layout.shard_chunks
            raise CorruptError(
                f"{self.store.url}/{key}, chunk {chunk}: expected the bytes of its checksum, found "
                f"others {FETCHES} times; push the store again, or see python -m store verify"
            )

    def _look(self, job: Job, slab: Slab) -> None:
        """Note which chunks of a job an earlier process has left in their slots."""
        left = np.flatnonzero(self.index.words[job.cells])
        if not len(left):  # mostly
            return
        sizes = job.cut.sizes
        places = zip(job.positions[left].tolist(), sizes[left].tolist(), strict=True)
        found = [memoryview(slab.read(*place)) for place in places]
        is_whole = np.array([*map(len, found)], np.int64) == sizes[left]
        job.is_missing[left] = ~(is_whole & self._are_right(job, left, found))

    def _are_right(self, job: Job, which: np.ndarray, found: list[memoryview]) -> np.ndarray:
        """Which of the bytes that were found are those of some chunks of a job: bool `(n,)`."""
        layout = self.layout
        shard = job.cut.shard
        inside = job.cells[which] - shard * self.shard_cells
        planes, chunks = np.divmod(inside, layout.shard_chunks)
        # those of one shard follow each other
        base = self.array.sum_of_chunk(shard * layout.shard_chunks)
        sums = self._sums[base + chunks, planes]
        first, stop = self.array.items_of_shard(shard)
        n_items = stop - first - chunks * layout.chunk_items
        mode = int(layout.chunk_bytes > LOCKED_BYTES)
        if layout.codec is None and (n_items >= layout.chunk_items).all():  # mostly
            computed = [crc32c(data, 0, mode) for data in found]
        else:
            n_bytes = (n_items * layout.plane_item_bytes).tolist()
            checked = zip(found, n_bytes, strict=True)
            computed = [chunk_checksum(layout, data, n, mode) for data, n in checked]
        return np.array(computed, np.uint32) == sums

    def _read_sums(self) -> None:
        """Read the checksums of all chunks, uint32 `(n_chunks, n_planes)`."""
        checksums = self.array.checksums
        has_tail = self.array.n_places % self.layout.chunk_items > 0
        reader = open_array(StoreDirectory.at(self.store.root), checksums)
        sums = ChunkSums(reader.read, self.array, self.store.manifest)
        self._sums = sums.read(0, checksums.n_items + has_tail)

    def _keep(
        self,
        job: Job,
        todo: np.ndarray,
        slab: Slab,
        requests: Sequence[Request],
        answers: Sequence[memoryview],
    ) -> None:
        """Write the chunks of answers that are right into their slots; the job has them now.

        `todo` are the indices of those that were asked for, int64 `(n,)`.
        """
        starts = job.cut.starts[todo]
        sizes = job.cut.sizes[todo]
        spans = list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
        found: list[memoryview] = []
        for (base, _, first, last), data in zip(requests, answers, strict=True):
            found += [data[start - base : stop - base] for start, stop in spans[first:last]]
        job.n_fetched += sum(map(len, answers))
        job.n_again += int(sizes[self.index.was_here[job.cells[todo]]].sum())
        is_right = self._are_right(job, todo, found)
        right = todo[is_right]
        slab.write([*compress(found, is_right)], job.positions[right])
        job.is_missing[right] = False
