"""The coming of chunks: asked for, compared with their checksums, and put where readers look.

They go into the landing memory, or, where that is full, into their shard.
"""

import numpy as np

from store.errors import CorruptError
from store.format.ranges import cut_ranges, join_ranges
from store.remote.landing import aligned
from store.remote.mirrored_array import MirroredArray
from store.remote.mirrored_store import FETCHES
from store.remote.requests import Piece, join_pieces, plan_requests
from store.remote.sparse_file import opened, write_at

__all__ = ["fetch_chunks"]


def fetch_chunks(array: MirroredArray, shard: int, some: np.ndarray) -> tuple[int, int]:
    """Bring the chunks of some cells of an open shard; they are FETCHING, and have room.

    Returns
    -------
    fetched, again
        Bytes that were asked for, and those of them that had been here before.

    Raises
    ------
    CorruptError
        They come with wrong bytes again and again.
    """
    n_fetched = 0
    n_again = 0
    old = some[array.on_disk[some]]
    if len(old):
        array.on_disk[old] = False
        some = np.setdiff1d(some, old, assume_unique=True)
        bad = _bad_cells(array, shard, old)
        some = np.concatenate([some, bad])
    key = array.layout.shard_path(shard)
    for attempt in range(FETCHES if len(some) else 0):
        starts, sizes = array.place(shard, some)
        order = np.argsort(starts, kind="stable")
        some, starts, sizes = some[order], starts[order], sizes[order]
        n_again += int(sizes[array.was_here[some]].sum())
        n_bytes, wrong = _fetch_ranges(array, shard, some, starts, sizes)
        n_fetched += n_bytes
        array.was_here[some] = True
        some = wrong
        if not len(some):
            break
        if attempt == 1:  # the sums may be what is wrong
            with array.store.lock:  # other threads may find the same
                array.store.fetch_whole(array.array.checksums.layout.path)
                array.checks.read()
    if not len(some):
        return n_fetched, n_again
    chunk = array.chunk_of(shard, int(some[0]))
    raise CorruptError(
        f"{array.store.url}/{key}, chunk {chunk[0]}: expected the bytes of its checksum, found "
        f"others {FETCHES} times; push the store again, or see python -m store verify"
    )


def _fetch_ranges(
    array: MirroredArray, shard: int, some: np.ndarray, starts: np.ndarray, sizes: np.ndarray
) -> tuple[int, np.ndarray]:
    """Fetch cells and keep those that are right; return the bytes, and the other cells."""
    key = array.layout.shard_path(shard)
    requests = plan_requests(starts, sizes)
    firsts = [request.start for request in requests]
    lasts = [request.stop for request in requests]
    answers = array.store.source.get_ranges(key, firsts, lasts)
    planes, chunks = np.divmod(some - shard * array.shard_cells, array.layout.shard_chunks)
    is_right = array.checks.of(shard, chunks, planes)
    spans = list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
    right = np.zeros(len(some), bool)
    for request, data in zip(requests, answers, strict=True):
        for i in range(request.first, request.last):
            start, stop = spans[i]
            right[i] = is_right(i, data[start - request.start : stop - request.start])
    landed = array.landing.take(aligned(sizes[right]).tolist())
    targets = starts.copy()
    if landed is not None:
        targets[right] = landed
    for request, data in zip(requests, answers, strict=True):
        inside = np.arange(request.first, request.last)[right[request.first : request.last]]
        pieces = join_pieces(starts[inside], sizes[inside], targets[inside])
        if landed is None:
            array.in_file[some[inside]] = True
            _write(array, key, data, request.start, pieces)
        else:
            _land(array, data, request.start, pieces)
    if landed is not None:
        array.states.land(some[right], targets[right])
    return sum(map(len, answers)), some[~right]


def _land(array: MirroredArray, data: memoryview, first: int, pieces: list[Piece]) -> None:
    """Copy pieces of an answer, which begins at `first` of its object, into the landing memory."""
    found = np.frombuffer(data, np.uint8)
    for start, stop, target in pieces:
        array.landing.memory[target : target + stop - start] = found[start - first : stop - first]


def _write(
    array: MirroredArray, key: str, data: memoryview, first: int, pieces: list[Piece]
) -> None:
    """Write them into their shard."""
    with opened(array.store.root / key) as fd:
        for start, stop, target in pieces:
            write_at(fd, data[start - first : stop - first], target)


def _bad_cells(array: MirroredArray, shard: int, some: np.ndarray) -> np.ndarray:
    """Those of some cells whose bytes in the file have not their checksum."""
    bad = []
    first_chunk = shard * array.layout.shard_chunks
    some = np.sort(some)
    # no range of cells is of two planes
    _, firsts, stops, _ = cut_ranges(*join_ranges(some, some + 1), array.layout.shard_chunks)
    for first, stop in zip(firsts.tolist(), stops.tolist(), strict=True):
        chunk, plane = array.chunk_of(shard, first)
        start = first_chunk + chunk
        faults = array.reader.faults(start, start + stop - first, [plane])
        if next(faults, None) is not None:
            bad += [cell for cell in range(first, stop) if _is_bad(array, shard, cell)]
    return np.array(bad, np.int64)


def _is_bad(array: MirroredArray, shard: int, cell: int) -> bool:
    chunk, plane = array.chunk_of(shard, cell)
    start = shard * array.layout.shard_chunks + chunk
    return next(array.reader.faults(start, start + 1, [plane]), None) is not None
