import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.format.ids import build_run, hash_ids, plan_runs, rows_of_hashes, rows_with_hash

HASHES = st.lists(st.integers(0, 9), max_size=20)


@given(HASHES, HASHES.map(sorted))
def test_a_run_finds_the_rows_of_its_hashes(held, wanted):
    """Every row of equal ones; of many at once the first row each, -1 where there is none."""
    hashes, rows = build_run(np.array(held, "u8"), np.arange(len(held)))
    assert hashes.tolist() == sorted(held)
    found = rows_of_hashes(hashes, rows, np.array(wanted, "u8"))
    for one, row in zip(wanted, found.tolist(), strict=True):
        expected = [i for i, other in enumerate(held) if other == one]
        assert rows_with_hash(hashes, rows, np.uint64(one)) == expected
        assert row == [*expected, -1][0]


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
