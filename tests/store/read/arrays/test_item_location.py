import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store.read.arrays.item_location import plan_pieces


@given(
    ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=12),
    shard_items=st.integers(1, 40),
)
def test_pieces_copy_exactly_the_ranges(ranges, shard_items):
    """Executed on a plain array, the plan gives what Python's own slicing gives."""
    data = np.arange(100)
    starts = np.array([start for start, _ in ranges], np.int64)
    stops = starts + np.array([n for _, n in ranges], np.int64)
    out = np.full(int((stops - starts).sum()), -1)
    for shard, start, stop, at in plan_pieces(starts, stops, shard_items):
        assert 0 <= start < stop <= shard_items
        out[at : at + stop - start] = data[shard * shard_items :][start:stop]
    assert out.tolist() == [
        x for start, stop in zip(starts, stops, strict=True) for x in data[start:stop]
    ]


def test_ranges_that_touch_are_one_piece():
    pieces = plan_pieces(np.array([3, 5, 9, 30]), np.array([5, 9, 10, 31]), 100)
    assert [(p.start, p.stop, p.out) for p in pieces] == [(3, 10, 0), (30, 31, 7)]
