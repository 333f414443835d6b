import numpy as np

from store.format.ranges import packed_offsets


def test_packed_offsets():
    assert packed_offsets(np.array([5, 0, 7]), np.array([8, 0, 9])).tolist() == [0, 3, 3, 5]
    assert packed_offsets(np.empty(0, int), np.empty(0, int)).tolist() == [0]
