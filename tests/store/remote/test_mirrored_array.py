"""What is read at a time of a column in the cache, and what its index says."""

from functools import partial

import numpy as np

from store.remote.cache.chunk_index import are_here, positions_of
from store.remote.cache.fetcher.writable_index import WritableIndex
from store.remote.cache.reader.chunks import CacheState


def bring(index, cells, sizes, positions, tick):
    """Have chunks come into slots of their own."""
    cells = np.array(cells)
    index.sizes[cells] = sizes
    index.take(cells, np.array(positions))
    index.settle(cells, np.ones(len(cells), bool), tick)


def test_an_index_says_what_came_and_went(tmp_path):
    """Also what a process has left that has died: its readers see nothing, the next one all."""
    path = tmp_path / "index"
    slab = tmp_path / "chunks"
    slab.touch()
    state = partial(CacheState, path, slab, range(1, 6))
    first = WritableIndex(path, 6)
    reader = state()
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
    assert state().count() == 0
    assert second.missing(np.arange(6)).tolist() == [0, 1, 2, 3, 4, 5]
    assert second.movable().tolist() == [2, 4]
    assert positions_of(second.words[[2, 4]]).tolist() == [8192, 2**41]
    assert second.sizes[[2, 4]].tolist() == [10, 20]
