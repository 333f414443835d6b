"""What is asked of an object store, and where it goes: chunks -> requests, slots."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store.remote.cache.fetcher.fetched_column import REQUEST_BYTES, find_heads
from store.remote.cache.fetcher.inventory import choose_victims
from store.remote.cache.messages import UNKNOWN

MB = 1024 * 1024


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3 * MB)), max_size=20))
def test_chunks_that_touch_are_one_request(parts):
    """Of a bounded size; nothing between chunks is asked for."""
    gaps, sizes = np.array(parts, np.int64).reshape(-1, 2).T
    starts = np.cumsum(gaps + sizes) - sizes
    heads = find_heads(starts, sizes).tolist()
    for first, last in pairwise([*heads, len(parts)]):
        assert not gaps[first + 1 : last].any()
        assert sizes[first:last].sum() <= REQUEST_BYTES + sizes[first]
    for head in heads[1:]:
        assert gaps[head] or sizes[: head + 1].sum() >= REQUEST_BYTES


def test_what_is_needed_last_leaves_first():
    """As much as is wanted; of what nobody has announced, the least recently used."""
    next_use = np.array([5.0, 9.0, UNKNOWN - 2, UNKNOWN - 1, 1.0])
    sizes = np.full(5, 10)
    assert choose_victims(next_use, sizes, 10).tolist() == [3]
    assert choose_victims(next_use, sizes, 25).tolist() == [3, 2, 1]
    assert sorted(choose_victims(next_use, sizes, 1000).tolist()) == [0, 1, 2, 3, 4]
