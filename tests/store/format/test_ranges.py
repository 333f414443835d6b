import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.format.ranges import (
    build_run,
    hash_ids,
    packed_offsets,
    plan_pieces,
    plan_runs,
    rows_with_hash,
)


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


def test_packed_offsets():
    assert packed_offsets(np.array([5, 0, 7]), np.array([8, 0, 9])).tolist() == [0, 3, 3, 5]
    assert packed_offsets(np.empty(0, int), np.empty(0, int)).tolist() == [0]


def test_a_run_finds_every_row_even_of_equal_hashes():
    hashes, rows = build_run(np.array([7, 3, 7, 9], "u8"), np.array([0, 1, 2, 3]))
    assert hashes.tolist() == [3, 7, 7, 9]
    assert rows_with_hash(hashes, rows, np.uint64(7)) == [0, 2]
    assert rows_with_hash(hashes, rows, np.uint64(8)) == []
    assert rows_with_hash(hashes, rows, np.uint64(10)) == []


def test_hashes_are_the_format_s():
    """A change here would make every existing store lose its ids."""
    assert hash_ids(["tc_33", ""]).tolist() == [4032421054400188549, 13020603013274838756]


@pytest.mark.parametrize("commit_rows", [1, 3, 100])
def test_runs_stay_few_and_cover_every_row(commit_rows):
    """However often one commits: at most log2(n) + 1 runs, without gaps, and O(log n) rewrites of
    an id."""
    runs, written, n = (), 0, 0
    for n in range(commit_rows, 1000 * commit_rows + 1, commit_rows):
        kept, first = plan_runs(runs, n)
        runs = (*kept, (first, n))
        written += n - first
        assert [a for a, _ in runs] == [0, *(b for _, b in runs[:-1])]
    assert len(runs) <= 11
    assert written <= n * 11
