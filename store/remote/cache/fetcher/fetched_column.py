"""The chunks of a column of a store at an address: where they are in objects, how they come."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress, groupby

import numpy as np
from crc32c import crc32c

from store.errors import CorruptError, NotFoundError
from store.format.contents import StoredArray
from store.format.layout import table_bytes
from store.read.arrays.chunk_sums import ChunkSums
from store.read.arrays.shard import chunk_checksum, read_entries
from store.read.directory import StoreDirectory
from store.read.source import open_array
from store.remote.cache.chunk_index import n_cells, shard_cells
from store.remote.cache.fetcher.byte_requests import Request, cut_requests, plan_requests
from store.remote.cache.fetcher.fetched_store import FetchedStore
from store.remote.cache.fetcher.slab import Slab
from store.remote.cache.fetcher.writable_index import WritableIndex
from store.remote.objects.retry import FETCHES, again

__all__ = ["FetchedColumn", "Job"]

# Of shorter chunks the interpreter's lock is kept: to give it away takes longer than a checksum.
LOCKED_BYTES = 512 * 1024
RESTORE = "restore the object from a copy, or push the store to another address"
SHARD_BYTES = 2**43  # more than an object may have: the address of a chunk is its shard's, and more


Answered = tuple[Request, memoryview]


@dataclass(eq=False)
class Job:
    """Chunks to be fetched in one go, into slots that are taken.

    Attributes
    ----------
    cells, starts, sizes
        Which chunks, by their addresses, and their bytes: int64 `(n,)`. An address is the number of
        the shard, times `SHARD_BYTES`, and the place in its object.
    positions
        Their slots, int64 `(n,)`.
    n_fetched, n_again
        Bytes that came, and those of them that had been here before.
    is_void
        Whether what comes is given up: its slots are not to be had any more.
    is_missing
        Which of the chunks are still to come: bool `(n,)`.
    """

    column: "FetchedColumn"
    cells: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    positions: np.ndarray = field(init=False)
    n_fetched: int = 0
    n_again: int = 0
    is_void: bool = False

    def __post_init__(self) -> None:
        self.is_missing = np.ones(len(self.cells), bool)


class FetchedColumn:
    """One column's array at an address, and the index of its cells in the cache."""

    def __init__(self, store: FetchedStore, array: StoredArray, index: WritableIndex) -> None:
        self.store = store
        self.array = array
        self.layout = array.layout
        self.index = index
        self.shard_cells = shard_cells(array)
        shards = range(array.n_shards)
        items = np.array([array.items_of_shard(shard) for shard in shards], np.int64).reshape(-1, 2)
        self._shard_items = items[:, 1] - items[:, 0]
        n_chunks = sum(map(self.layout.n_chunks, self._shard_items.tolist()))
        index.open(self.layout.n_planes * n_chunks)
        # where the checksums of each shard begin: they follow each other
        firsts = [array.sum_of_chunk(shard * self.layout.shard_chunks) for shard in shards]
        self._first_sums = np.array(firsts, np.int64)
        self._read_sums()
        self._is_open = np.zeros(array.n_shards, bool)
        self._starts = np.zeros(n_cells(array), np.int64)
        self._sizes = np.zeros(n_cells(array), np.int64)
        self._locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def closed_shards(self, cells: np.ndarray) -> list[int]:
        """The shards that hold some cells, and whose tables are not here."""
        shards = np.unique(cells // self.shard_cells)
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
        starts, self._sizes[cells] = places.reshape(-1, 2).T
        self._starts[cells] = starts + shard * SHARD_BYTES
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
        return self._sizes[cells]

    def jobs(self, cells: np.ndarray) -> list[Job]:
        """Jobs without slots for cells of open shards, in the order of their addresses."""
        cells = cells[np.argsort(self._starts[cells], kind="stable")]
        starts, sizes = self._starts[cells], self._sizes[cells]
        groups = cut_requests(plan_requests(starts, sizes))
        parts = [slice(*group) for group in groups]
        return [Job(self, cells[part], starts[part], sizes[part]) for part in parts]

    async def fetch(self, job: Job, slab: Slab) -> None:
        """Bring what a job lacks into its slots.

        Raises CorruptError if some of it comes wrong again and again, StoreError if some cannot be
        had, and OSError if it cannot be written; the rest is here, see `Job.is_missing`.
        """
        self._look(job, slab)
        for n in range(FETCHES):
            todo = np.flatnonzero(job.is_missing)
            if not len(todo):
                return
            if n == FETCHES - 1:  # the sums may be what is wrong
                await self.store.need_whole(self.array.checksums.layout.path, again=True)
                self._read_sums()
            requests = plan_requests(job.starts[todo], job.sizes[todo])
            asked = [self._ask(shard, [*found]) for shard, found in groupby(requests, _shard_of)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            faults = [answer for answer in answers if isinstance(answer, BaseException)]
            came = [*chain.from_iterable(one for one in answers if isinstance(one, list))]
            if came:
                self._keep(job, todo, slab, came)
            if faults:
                raise faults[0]
        if job.is_missing.any():
            await self.store.check_same()
            shard, inside = divmod(int(job.cells[job.is_missing][0]), self.shard_cells)
            raise CorruptError(
                f"{self.store.url}/{self.layout.shard_path(shard)}, chunk "
                f"{inside % self.layout.shard_chunks}: expected the bytes of its checksum, found "
                f"others {FETCHES} times; {RESTORE}"
            )

    async def _ask(self, shard: int, requests: Sequence[Request]) -> list[Answered]:
        """Requests for bytes of one shard, each with its answer."""
        key = self.layout.shard_path(shard)
        starts = [request.start % SHARD_BYTES for request in requests]
        stops = [request.stop % SHARD_BYTES for request in requests]
        answers = await self.store.source.fetch_ranges(key, starts, stops)
        return [*zip(requests, answers, strict=True)]

    def _look(self, job: Job, slab: Slab) -> None:
        """Note which chunks of a job an earlier process has left in their slots."""
        left = np.flatnonzero(self.index.words[job.cells])
        if not len(left):  # mostly
            return
        sizes = job.sizes
        places = zip(job.positions[left].tolist(), sizes[left].tolist(), strict=True)
        found = [memoryview(slab.read(*place)) for place in places]
        is_whole = np.array([*map(len, found)], np.int64) == sizes[left]
        job.is_missing[left] = ~(is_whole & self._are_right(job, left, found))

    def _are_right(self, job: Job, which: np.ndarray, found: list[memoryview]) -> np.ndarray:
        """Which of the bytes that were found are those of some chunks of a job: bool `(n,)`."""
        layout = self.layout
        shards, inside = np.divmod(job.cells[which], self.shard_cells)
        planes, chunks = np.divmod(inside, layout.shard_chunks)
        sums = self._sums[self._first_sums[shards] + chunks, planes]
        n_items = self._shard_items[shards] - chunks * layout.chunk_items
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

    def _keep(self, job: Job, todo: np.ndarray, slab: Slab, came: Sequence[Answered]) -> None:
        """Write the chunks of answers that are right into their slots; the job has them now.

        The requests were for those at the indices `todo`, int64 `(n,)`.
        """
        which = np.concatenate([todo[request.first : request.last] for request, _ in came])
        sizes = job.sizes[which]
        starts = job.starts[todo]
        spans = list(zip(starts.tolist(), (starts + job.sizes[todo]).tolist(), strict=True))
        found = [
            data[start - base : stop - base]
            for (base, _, first, last), data in came
            for start, stop in spans[first:last]
        ]
        job.n_fetched += sum(len(data) for _, data in came)
        job.n_again += int(sizes[self.index.was_here[job.cells[which]]].sum())
        is_right = self._are_right(job, which, found)
        right = which[is_right]
        slab.write([*compress(found, is_right)], job.positions[right])
        job.is_missing[right] = False


def _shard_of(request: Request) -> int:
    return request.start // SHARD_BYTES
