import numpy as np
import pytest

from store.format.ids import build_run, hash_ids, plan_runs, rows_of_hashes, rows_with_hash


def test_a_run_finds_every_row_even_of_equal_hashes():
    hashes, rows = build_run(np.array([7, 3, 7, 9], "u8"), np.array([0, 1, 2, 3]))
    assert hashes.tolist() == [3, 7, 7, 9]
    assert rows_with_hash(hashes, rows, np.uint64(7)) == [0, 2]
    assert rows_with_hash(hashes, rows, np.uint64(8)) == []
    assert rows_with_hash(hashes, rows, np.uint64(10)) == []


def test_many_hashes_are_found_at_once():
    """-1 for those that a run does not have; an empty run has none."""
    hashes, rows = build_run(np.array([7, 3, 9], "u8"), np.array([0, 1, 2]))
    wanted = np.array([0, 3, 3, 8, 9, 10], "u8")
    assert rows_of_hashes(hashes, rows, wanted).tolist() == [-1, 1, 1, -1, 2, -1]
    assert rows_of_hashes(hashes[:0], rows[:0], wanted).tolist() == [-1] * 6


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
