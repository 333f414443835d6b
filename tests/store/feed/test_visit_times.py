import math

import numpy as np

from store.feed.visit_times import VisitTimes


def test_visit_times_reach_into_the_next_epoch():
    times = VisitTimes(3, np.array([2, 0, 1]), np.array([0, 2, 1]), n_rows=4)
    first, last = np.array([2, 0, 0, 3]), np.array([2, 1, 0, 3])
    # Row 2 was the first of this epoch, and is the second of the next; row 3 is visited in neither.
    assert times.after(0)(np.array([0, 0, 1, 0]), first, last).tolist() == [13, 10, 12, math.inf]
    assert times.after(0)(first[:0], first[:0], first[:0]).tolist() == []
