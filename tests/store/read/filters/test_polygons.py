"""Polygons on a map: which points lie inside, and what is no polygon."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import SchemaError
from store.read.filters.polygons import MAX_CORNERS, inside_polygon, parse_polygon

# halves of whole numbers: many points lie on sides and level with corners
GRID = st.integers(-6, 6).map(lambda i: i / 2)
POLYGONS = st.lists(st.tuples(GRID, GRID), min_size=3, max_size=9)


def crossings(x, y, corners):
    """How many sides a line from a point to the right crosses, by plain arithmetic."""
    n = 0
    for (x1, y1), (x2, y2) in pairwise([*corners, corners[0]]):
        if (y1 > y) != (y2 > y):
            n += x < x1 + (y - y1) * ((x2 - x1) / (y2 - y1))
    return n


@given(POLYGONS, st.lists(st.tuples(GRID, GRID), max_size=20))
def test_points_inside_are_those_of_odd_crossings(corners, points):
    """Of any polygon, also of one that crosses itself."""
    polygon = np.array(corners)
    numbers = np.array(points, np.float32).reshape(-1, 2)
    expected = [crossings(x, y, corners) % 2 == 1 for x, y in points]
    assert inside_polygon(numbers, polygon).tolist() == expected


def test_what_is_not_finite_is_outside():
    """Of every polygon; blocks of points are looked at one after the other."""
    square = parse_polygon("-3e38,-3e38 3e38,-3e38 3e38,3e38 -3e38,3e38", "filter")
    points = np.zeros((150_000, 2), np.float32)
    points[[7, 70_000, 149_999], [0, 1, 0]] = [np.nan, np.inf, -np.inf]
    inside = inside_polygon(points, square)
    assert np.flatnonzero(~inside).tolist() == [7, 70_000, 149_999]


def test_sides_that_are_almost_level_do_not_overflow():
    """Warnings are errors."""
    polygon = parse_polygon("-3e38,0 3e38,1e-320 0,1", "filter")
    assert inside_polygon(np.zeros((1, 2)), polygon).shape == (1,)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "expected 3 to 100 corners"),
        ("0,0 1,1", "found 2"),
        ("0,0 " * (MAX_CORNERS + 1), "found 101"),
        ("0,0 1,0 1e999,1", "found '1e999,1'"),
        ("0,0 1,0 1", "found '1'"),
        ("0,0 1,0 ٣,1", "finite numbers"),
        ("0,0 1,0 " + "9" * 5000, "finite numbers"),
    ],
)
def test_what_is_no_polygon(text, message):
    """Said in a line, whatever its length."""
    with pytest.raises(SchemaError) as caught:
        parse_polygon(text, "filter")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200
