"""Files that are written and emptied in places."""

import os

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store.format.contents import StoredArray
from store.format.layout import ArrayLayout
from store.read.cached_array import plan_portions
from store.read.chunk_states import CHUNK_MARGIN, ChunkStates, WritableStates, cells_of_ranges
from store.remote.sparse_file import BLOCK, cell_bytes, data_extents, hole_spans, opened, punch


def test_what_is_punched_is_given_back_and_reads_as_zeros(tmp_path):
    path = tmp_path / "f"
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        os.pwrite(fd, b"x" * 8 * BLOCK, 0)
        os.ftruncate(fd, 20 * BLOCK)
        punch(fd, 2 * BLOCK, 5 * BLOCK)
        assert list(data_extents(fd, 20 * BLOCK)) == [(0, 2 * BLOCK), (5 * BLOCK, 8 * BLOCK)]
        assert os.fstat(fd).st_blocks * 512 == 5 * BLOCK
        assert os.pread(fd, 3, 2 * BLOCK - 1) == b"x\0\0"


@given(st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 3)), min_size=1, max_size=30))
def test_chunks_that_go_take_their_blocks_with_them(tmp_path_factory, chunks):
    """In any order, next to others that stay: what is left never takes more than is counted."""
    sizes = np.array([size for size, _ in chunks])
    starts = np.cumsum(sizes) - sizes
    charge = cell_bytes(starts, sizes)
    assert (charge <= sizes + CHUNK_MARGIN).all()
    path = tmp_path_factory.mktemp("holes") / "f"
    here = np.ones(len(chunks), bool)
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        os.pwrite(fd, b"x" * int(sizes.sum()), 0)
        os.ftruncate(fd, int(sizes.sum()) + BLOCK)
        for turn in range(3):
            gone = np.flatnonzero([here[i] and turn == when for i, (_, when) in enumerate(chunks)])
            here[gone] = False
            lows = [max([0, *(starts + sizes)[:i][here[:i]]]) for i in gone]
            highs = [min([int(sizes.sum()), *starts[i:][here[i:]]]) for i in gone]
            ends = (starts + sizes)[gone]
            for low, high in hole_spans(starts[gone], ends, np.array(lows), np.array(highs)):
                punch(fd, low, high)
            assert os.fstat(fd).st_blocks * 512 <= charge[here].sum() + BLOCK
            for i in np.flatnonzero(here):
                assert os.pread(fd, int(sizes[i]), int(starts[i])) == b"x" * int(sizes[i])


def test_states_say_what_came_and_went(tmp_path):
    """Also those of a process that has died: nothing of it counts, and its readers see that."""
    first = WritableStates(tmp_path / "s", 5, 77)
    reader = ChunkStates(tmp_path / "s")
    first.flip(np.array([1, 3]))
    first.set_whole(True)
    assert (reader.versions & 1).tolist() == [0, 1, 0, 1, 0]
    assert reader.whole & 1
    assert reader.landing == 77
    WritableStates(tmp_path / "s", 5, 78)
    assert reader.versions.tolist() == [0, 2, 0, 2, 0]
    assert not reader.whole & 1


LAYOUT = ArrayLayout("a", np.dtype("<f4"), (2, 3), (0,), 4, 16)


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 60)), min_size=1, max_size=8),
    st.integers(1, 500),
)
def test_portions_are_small_and_together_all(ranges, n_bytes):
    """Of the places asked for, in order; each of few chunks, or of one."""
    array = StoredArray(LAYOUT, 160)
    starts, lengths = np.array(ranges).T
    portions = list(plan_portions(array, starts, starts + lengths, 2, n_bytes))

    def places(pairs):
        return [i for first, stop in pairs for i in range(first, stop)]

    found = [pair for a, b in portions for pair in zip(a.tolist(), b.tolist(), strict=True)]
    assert places(found) == places((start, start + n) for start, n in ranges)
    for a, b in portions:
        cells = cells_of_ranges(array, a, b, np.arange(2))
        assert len(cells) * LAYOUT.chunk_bytes <= max(n_bytes, 2 * LAYOUT.chunk_bytes)
