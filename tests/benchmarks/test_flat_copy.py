"""The ceilings copy what they are said to copy."""

import numpy as np

from benchmarks.flat_copy import copy_rows, copy_share


def test_shares_of_a_batch_are_the_batch():
    """Wherever it is cut, also within a row; a row may have no items."""
    items = np.arange(20).reshape(10, 2)
    offsets = [0, 3, 3, 4, 10]
    rows = [3, 1, 0]
    whole = np.concatenate([items[4:10], items[0:3]])
    packed = np.empty_like(whole)
    copy_rows(packed, items, offsets, rows)
    assert np.array_equal(packed, whole)
    for cut in range(len(whole) + 1):
        shared = np.full_like(whole, -1)
        copy_share(shared, items, offsets, rows, 0, cut)
        assert np.array_equal(shared[:cut], whole[:cut])
        assert (shared[cut:] == -1).all()
        copy_share(shared, items, offsets, rows, cut, len(whole))
        assert np.array_equal(shared, whole)
