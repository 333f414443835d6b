"""What is read at a time of a column in the cache, and what its index says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store.format.contents import StoredArray
from store.format.layout import ArrayLayout
from store.format.ranges import chunks_touched
from store.remote.cache.chunk_index import ChunkIndex, are_here, cells_of_chunks, positions_of
from store.remote.cache.fetcher.writable_index import WritableIndex
from store.remote.cache.reader.mirrored_array import plan_portions


def bring(index, cells, sizes, positions, tick):
    """Have chunks come into slots of their own."""
    cells = np.array(cells)
    index.sizes[cells] = sizes
    index.settle(cells, np.array(positions), np.ones(len(cells), bool), tick)


def test_an_index_says_what_came_and_went(tmp_path):
    """Also what a process has left that has died: its readers see nothing, the next one all."""
    path = tmp_path / "index"
    first = WritableIndex(path, 6)
    reader = ChunkIndex(path, 1, 5)
    bring(first, [2, 4], [10, 20], [8192, 2**41], 7)
    assert are_here(reader.words).tolist() == [False, True, False, True, False]
    assert positions_of(reader.words[[1, 3]]).tolist() == [8192, 2**41]
    assert reader.count() == 2
    seen = reader.words[1:2].copy()
    first.clear(np.array([2]))
    assert reader.count() == 1
    bring(first, [2], [10], [8192], 8)
    assert seen != reader.words[1:2]  # the same chunk in the same slot, at another time
    second = WritableIndex(path)
    assert not reader.words.any()
    assert not reader.is_current()
    assert ChunkIndex(path, 1, 5).count() == 0
    assert second.missing(np.arange(6)).tolist() == [0, 1, 2, 3, 4, 5]
    assert second.movable().tolist() == [2, 4]
    assert positions_of(second.words[[2, 4]]).tolist() == [8192, 2**41]
    assert second.sizes[[2, 4]].tolist() == [10, 20]
    second.forget()
    assert not path.exists()


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
        chunks = np.unique(chunks_touched(a, b, LAYOUT.chunk_items)[1])
        assert len(cells_of_chunks(array, chunks, np.arange(2))) * LAYOUT.chunk_bytes <= max(
            n_bytes, 2 * LAYOUT.chunk_bytes
        )
