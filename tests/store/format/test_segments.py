"""Items and places: every answer against a list that is laid out shard by shard."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.format.layout import ArrayLayout
from store.format.segments import Segments, count_shards, joined_firsts

counts = st.lists(st.integers(1, 25), min_size=1, max_size=6)
sizes = st.tuples(st.integers(1, 4), st.integers(1, 4))


def lay_out(layout: ArrayLayout, counts: list[int]) -> tuple[list[int], list[int]]:
    """The item at each place (-1: padding), and the chunks with items, one after the other."""
    items: list[int] = []
    chunks: list[int] = []
    first = 0
    for n in counts:
        begin = len(items)
        items += range(first, first + n)
        chunks += range(begin // layout.chunk_items, -(-len(items) // layout.chunk_items))
        items += [-1] * (-len(items) % layout.shard_items)
        first += n
    return items, chunks


@given(counts, sizes, st.data())
def test_items_are_where_a_list_has_them(counts, sizes, data):
    """Ranges, single items, shards, chunks and checksums."""
    chunk_items, shard_chunks = sizes
    layout = ArrayLayout("x", np.dtype("i1"), (), (), chunk_items, chunk_items * shard_chunks)
    firsts = np.cumsum([0, *counts[:-1]]).tolist()
    n_items = sum(counts)
    segments = Segments(layout, firsts, n_items)
    items, chunks = lay_out(layout, counts)
    place_of = {item: place for place, item in enumerate(items) if item >= 0}
    assert segments.n_places == place_of[n_items - 1] + 1
    assert segments.n_chunks == len(chunks)
    assert count_shards(firsts, n_items, layout.shard_items) * layout.shard_items == len(items)
    every = np.arange(n_items)
    assert segments.places_of(every).tolist() == list(place_of.values())
    assert [segments.sum_of_chunk(chunk) for chunk in chunks] == list(range(len(chunks)))
    for size in (chunk_items, layout.shard_items):
        for start in range(0, len(items), size):
            inside = [item for item in items[start : start + size] if item >= 0]
            if inside:
                found = segments.items_of_places(start, start + size)
                assert found == (inside[0], inside[-1] + 1)
    ranges = data.draw(st.lists(st.tuples(*[st.integers(0, n_items)] * 2).map(sorted)))
    starts, stops = np.array(ranges, np.int64).reshape(-1, 2).T
    expected = [item for start, stop in ranges for item in range(start, stop)]
    pieces = zip(*segments.split(starts, stops), strict=True)
    assert [items[place] for a, b in pieces for place in range(a, b)] == expected
    for start, stop in ranges:
        crosses = any(start < first < stop for first in firsts)
        place = segments.place_of_range(start, stop)
        assert (place is None) == crosses
        if start < stop and not crosses:
            assert place == place_of[start]


@given(st.lists(st.lists(st.integers(0, 20), max_size=4), max_size=4), st.integers(1, 6))
def test_joined_segments_keep_every_shard(parts, shard_items):
    """Of arrays that have segments themselves, and where a part ends with its shard."""
    flat: list[int] = []
    own = []
    for counts in parts:
        filled = [n for n in counts if n]
        flat += filled
        own.append((sum(filled), np.cumsum([0, *filled[:-1]]).tolist() if filled else []))
    firsts, n_items = joined_firsts(own, shard_items)
    assert n_items == sum(flat)
    starts = np.cumsum([0, *flat[:-1]]).tolist() if flat else []
    assert set(firsts) <= set(starts)
    if flat:
        layout = ArrayLayout("x", np.dtype("i1"), (), (), 1, shard_items)
        every = np.arange(n_items)
        joined = Segments(layout, firsts, n_items).places_of(every)
        assert np.array_equal(joined, Segments(layout, starts, n_items).places_of(every))


@pytest.mark.parametrize("end", [0, 4, 10])
def test_a_range_without_items_is_one_without_places(end):
    layout = ArrayLayout("x", np.dtype("i1"), (), (), 2, 4)
    empty = np.array([end])
    starts, stops = Segments(layout, [0, 4], 10).split(empty, empty)
    assert starts == stops
