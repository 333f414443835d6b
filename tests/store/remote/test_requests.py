"""What is asked of an object store, and where it goes: chunks -> requests, slots."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store.remote.cache.fetcher.byte_requests import (
    MAX_GAP_BYTES,
    MAX_REQUEST_BYTES,
    MAX_WASTE,
    plan_requests,
)
from store.remote.cache.fetcher.inventory import choose_victims
from store.remote.cache.fetcher.slab import Slab
from store.remote.cache.messages import UNKNOWN

MB = 1024 * 1024


def plan(*chunks):
    starts, sizes = np.array(chunks, np.int64).reshape(-1, 2).T
    return [tuple(request) for request in plan_requests(starts, sizes)]


def test_neighbours_are_joined_and_cut():
    """Chunks that touch are one request, of at most 8 MB; a larger chunk is one by itself."""
    assert plan() == []
    assert plan((0, 10), (10, 5)) == [(0, 15, 0, 2)]
    cut = plan(*((i * MB, MB) for i in range(20)))
    assert cut == [(0, 8 * MB, 0, 8), (8 * MB, 16 * MB, 8, 16), (16 * MB, 20 * MB, 16, 20)]
    assert plan((0, 9 * MB), (9 * MB, 1)) == [(0, 9 * MB, 0, 1), (9 * MB, 9 * MB + 1, 1, 2)]


def test_a_small_gap_is_fetched_too():
    """If it is little of what is asked for."""
    gap = MB // 50
    assert len(plan((0, MB), (MB + gap, MB))) == 1
    assert len(plan((0, MB), (2 * MB, MB))) == 2


@given(st.lists(st.tuples(st.integers(0, 2 * MB), st.integers(1, 3 * MB)), max_size=20))
def test_every_chunk_is_in_its_request(parts):
    """Once, whole, in order; and gaps stay few."""
    starts, sizes, at = [], [], 0
    for gap, size in parts:
        starts.append(at + gap)
        sizes.append(size)
        at += gap + size
    requests = plan_requests(np.array(starts, np.int64), np.array(sizes, np.int64))
    assert [i for r in requests for i in range(r.first, r.last)] == list(range(len(parts)))
    for start, stop, first, last in requests:
        useful = sum(sizes[first:last])
        assert start == starts[first]
        assert stop == starts[last - 1] + sizes[last - 1]
        assert stop - start <= MAX_REQUEST_BYTES or last - first == 1
        assert stop - start - useful <= min(MAX_WASTE * (stop - start), MAX_GAP_BYTES * 20)


def test_what_is_needed_last_leaves_first():
    """As much as is wanted; of what nobody has announced, the least recently used."""
    next_use = np.array([5.0, 9.0, UNKNOWN - 2, UNKNOWN - 1, 1.0])
    sizes = np.full(5, 10)
    assert choose_victims(next_use, sizes, 10).tolist() == [3]
    assert choose_victims(next_use, sizes, 25).tolist() == [3, 2, 1]
    assert sorted(choose_victims(next_use, sizes, 1000).tolist()) == [0, 1, 2, 3, 4]


@given(st.lists(st.tuples(st.binary(max_size=5), st.integers(0, 1)), max_size=12))
def test_chunks_are_written_where_they_belong(tmp_path_factory, parts):
    """Neighbours together, in as many calls as it takes, and nothing between them is touched."""
    file = tmp_path_factory.mktemp("slab") / "chunks"
    expected, positions = b"", []
    for data, gap in parts:
        expected += bytes(gap)
        positions.append(len(expected))
        expected += data
    slab = Slab(file)
    slab.write([memoryview(data) for data, _ in parts], np.array(positions, np.int64))
    assert file.read_bytes().rstrip(b"\0") == expected.rstrip(b"\0")
