"""The chunks of a column of a store at an address: where they are in objects, how they come."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, pairwise
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
from store.remote.cache.chunk_index import shard_cells
from store.remote.cache.fetcher.fetched_store import FetchedStore
from store.remote.cache.fetcher.slab import Slab
from store.remote.cache.fetcher.writable_index import WritableIndex
from store.remote.objects.retry import FETCHES, again

__all__ = ["FetchedColumn", "Job", "find_heads"]

# Of shorter chunks the interpreter's lock is kept: to give it away takes longer than a checksum.
LOCKED_BYTES = 512 * 1024
RESTORE = "restore the object from a copy, or push the store to another address"
REQUEST_BYTES = 8 * 1024 * 1024  # of chunks that touch
# of one shard, made at once, whose answers are in memory together
REQUESTS_A_JOB = 8
JOB_BYTES = 16 * 1024 * 1024


class Request(NamedTuple):
    """Bytes `start:stop` of a shard, which are the chunks `first:last` of a job."""

    start: int
    stop: int
    first: int
    last: int


@dataclass(eq=False)
class Job:
    """Chunks of one shard that come into slots: to be fetched in one call of the client.

    Attributes
    ----------
    cells, starts, sizes
        Which chunks, where they begin in their object, and their bytes: int64 `(n,)`, in the order
        of the object.
    is_left
        Whether an earlier process left them in their slots: they are not fetched, but compared
        with their checksums.
    n_bytes
        Of all its chunks.
    n_fetched, n_again
        Bytes that came, and those of them that had been here before.
    is_void
        Whether what comes is given up: its slots are not to be had any more.
    is_right
        Which of the chunks are in their slots: bool `(n,)`.
    """

    column: "FetchedColumn"
    shard: int
    cells: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    is_left: bool
    n_fetched: int = 0
    n_again: int = 0
    is_void: bool = False

    def __post_init__(self) -> None:
        self.is_right = np.zeros(len(self.cells), bool)
        self.n_bytes = int(self.sizes.sum())

    @property
    def index(self) -> WritableIndex:
        """The index of its store."""
        return self.column.store.index

    @property
    def missing(self) -> np.ndarray:
        """The cells of the chunks that are not in their slots."""
        return self.cells[~self.is_right]

    def requests(self) -> list[Request]:
        """What is to be asked for: a request for chunks that touch."""
        heads = find_heads(self.starts, self.sizes)
        lasts = np.append(heads[1:], len(self.starts))
        stops = self.starts + self.sizes
        fields = (self.starts[heads], stops[lasts - 1], heads, lasts)
        requests = map(Request, *map(np.ndarray.tolist, fields))
        return [one for one in requests if not self.is_right[one.first : one.last].all()]


def find_heads(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Where requests begin in chunks of one object, in its order: indices, int64."""
    is_head = starts != np.append(-1, (starts + sizes)[:-1])
    is_head[1:] |= np.diff(np.cumsum(sizes) // REQUEST_BYTES) > 0
    return np.flatnonzero(is_head)


class FetchedColumn:
    """One column's array at an address; its cells are those of its store."""

    def __init__(self, store: FetchedStore, array: StoredArray) -> None:
        self.store = store
        self.array = array
        self.layout = array.layout
        self.cells = store.cells[self.layout.path]
        self.shard_cells = shard_cells(array)
        shards = range(array.n_shards)
        items = np.array([array.items_of_shard(shard) for shard in shards], np.int64).reshape(-1, 2)
        self._shard_items = items[:, 1] - items[:, 0]
        # where the checksums of each shard begin: they follow each other
        firsts = [array.sum_of_chunk(shard * self.layout.shard_chunks) for shard in shards]
        self._first_sums = np.array(firsts, np.int64)
        self._read_sums()
        self._is_open = np.zeros(array.n_shards, bool)
        self._starts = np.zeros(len(self.cells), np.int64)
        self._sizes = np.zeros(len(self.cells), np.int64)
        self._locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def _places(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of cells, their shards, and which cells of these they are."""
        return np.divmod(cells - self.cells.start, self.shard_cells)

    def closed_shards(self, cells: np.ndarray) -> list[int]:
        """The shards that hold some cells, and whose tables are not here."""
        shards = np.unique(self._places(cells)[0])
        return shards[~self._is_open[shards]].tolist()

    async def open_shard(self, shard: int) -> None:
        """Fetch the table of a shard; raises StoreError if the object is none of this array."""
        async with self._locks[shard]:
            if not self._is_open[shard]:
                fetch = partial(self._fetch_table, shard)
                try:
                    self._open(shard, await asyncio.to_thread(again, fetch))
                except CorruptError:
                    await self.store.check_same()
                    raise

    def _open(self, shard: int, entries: np.ndarray) -> None:
        """Note where the chunk of each cell of a shard is."""
        layout = self.layout
        places = np.zeros((layout.n_planes, layout.shard_chunks, 2), np.int64)
        places[:, : len(entries)] = np.moveaxis(entries, 1, 0)
        cells = slice(shard * self.shard_cells, (shard + 1) * self.shard_cells)
        self._starts[cells], self._sizes[cells] = places.reshape(-1, 2).T
        self._is_open[shard] = True

    def _fetch_table(self, shard: int) -> np.ndarray:
        """(offset, size) of every chunk that holds items: int64 `(n_chunks, n_planes, 2)`."""
        key = self.layout.shard_path(shard)
        n_table = table_bytes(self.layout)
        first, stop = self.array.items_of_shard(shard)
        try:
            tail, n_bytes = self.store.source.get_tail(key, n_table)
        except NotFoundError as error:
            raise CorruptError(
                f"{self.store.url}/{key}: expected an object, found none; {RESTORE}"
            ) from error
        where = f"{self.store.url}/{key}, {n_bytes:,} bytes"  # an object may be cut
        n_data = n_bytes - n_table
        entries, end = read_entries(bytes(tail), self.layout, stop - first, n_data, where)
        if end != n_data:
            raise CorruptError(
                f"{where}: expected its table after byte {end}, found {n_data} bytes before it; "
                f"{RESTORE}"
            )
        return entries

    def sizes(self, cells: np.ndarray) -> np.ndarray:
        """The bytes of the chunks of cells of open shards, int64 `(n,)`; 0 where none is."""
        return self._sizes[cells - self.cells.start]

    def jobs(self, cells: np.ndarray, *, is_left: bool) -> Iterator[Job]:
        """Jobs without slots for cells of open shards, each of one shard; see `Job`."""
        shards, _ = self._places(cells)
        all_starts = self._starts[cells - self.cells.start]
        order = np.lexsort((all_starts, shards))
        cells = cells[order]
        shards = shards[order]
        all_starts = all_starts[order]
        all_sizes = self.sizes(cells)
        bounds = [*np.flatnonzero(np.diff(shards, prepend=-1)).tolist(), len(cells)]
        for first, stop in pairwise(bounds):
            of_shard = cells[first:stop]
            starts = all_starts[first:stop]
            sizes = all_sizes[first:stop]
            heads = find_heads(starts, sizes)
            is_new = np.diff(np.cumsum(sizes)[heads] // JOB_BYTES, prepend=-1) > 0
            is_new[::REQUESTS_A_JOB] = True
            for a, b in pairwise([*heads[is_new].tolist(), stop - first]):
                part = slice(a, b)
                shard = int(shards[first])
                yield Job(self, shard, of_shard[part], starts[part], sizes[part], is_left)

    async def bring(self, job: Job, slab: Slab) -> None:
        """Bring the chunks of a job into its slots, or look which are there.

        Raises CorruptError if some of it comes wrong again and again, StoreError if some cannot be
        had, and OSError if it cannot be written; what came before is here, see `Job.is_right`.
        """
        if job.is_left:
            self._look(job, slab)
            return
        key = self.layout.shard_path(job.shard)
        for n in range(FETCHES):
            requests = job.requests()
            if not requests:
                return
            if n == FETCHES - 1:  # the sums may be what is wrong
                await self.store.need_whole(self.array.checksums.layout.path, again=True)
                self._read_sums()
            starts, stops, _, _ = zip(*requests, strict=True)
            answers = await self.store.source.fetch_ranges(key, starts, stops)
            self._keep(job, slab, requests, answers)
        if not job.is_right.all():
            await self.store.check_same()
            inside = int(self._places(job.missing)[1][0])
            raise CorruptError(
                f"{self.store.url}/{key}, chunk {inside % self.layout.shard_chunks}: expected the "
                f"bytes of its checksum, found others {FETCHES} times; {RESTORE}"
            )

    def _look(self, job: Job, slab: Slab) -> None:
        """Note which chunks of a job are in their slots."""
        positions, _ = job.index.slots(job.cells)
        places = zip(positions.tolist(), job.sizes.tolist(), strict=True)
        found = [memoryview(slab.read(*place)) for place in places]
        is_whole = np.array([*map(len, found)], np.int64) == job.sizes
        job.is_right = is_whole & self._are_right(job, slice(None), found)

    def _keep(
        self, job: Job, slab: Slab, requests: Sequence[Request], answers: Sequence[memoryview]
    ) -> None:
        """Write the chunks of answers that are right into their slots; the job has them now."""
        starts = job.starts.tolist()
        stops = (job.starts + job.sizes).tolist()
        found = [
            data[starts[i] - base : stops[i] - base]
            for (base, _, first, last), data in zip(requests, answers, strict=True)
            for i in range(first, last)
        ]
        which = np.concatenate([np.arange(one.first, one.last) for one in requests])
        job.n_fetched += sum(map(len, answers))
        was_here = job.index.was_here[job.cells[which]]
        job.n_again += int(job.sizes[which][was_here].sum())
        is_right = self._are_right(job, which, found)
        right = which[is_right]
        positions, _ = job.index.slots(job.cells[right])
        slab.write([*compress(found, is_right)], positions)
        job.is_right[right] = True

    def _are_right(
        self, job: Job, which: np.ndarray | slice, found: Sequence[memoryview]
    ) -> np.ndarray:
        """Which of the bytes that were found are those of some chunks of a job: bool `(n,)`."""
        layout = self.layout
        _, inside = self._places(job.cells[which])
        planes, chunks = np.divmod(inside, layout.shard_chunks)
        sums = self._sums[self._first_sums[job.shard] + chunks, planes]
        n_items = self._shard_items[job.shard] - chunks * layout.chunk_items
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
