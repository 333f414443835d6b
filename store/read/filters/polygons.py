"""Polygons that a filter draws on a map: their text, and which points lie inside. Pure."""

import re
from itertools import pairwise

import numpy as np

from store.errors import SchemaError

__all__ = ["MAX_CORNERS", "inside_polygon", "parse_polygon"]

MAX_CORNERS = 100
LARGEST = float(np.finfo(np.float32).max)  # no point of a map lies further out
BLOCK_ROWS = 1 << 16  # points that a processor keeps at hand
NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
CORNER = re.compile(rf"({NUMBER}),({NUMBER})", re.ASCII)


def parse_polygon(text: str, where: str) -> np.ndarray:
    """Read the corners of a polygon: `0,0 1.5,0 1,2`.

    A corner is two numbers with a comma, and spaces are between corners; the last corner is joined
    with the first. Messages begin with `where`, which says what has this text. Returns float64
    `(n_corners, 2)`, finite. Raises SchemaError where there are fewer than 3 corners or more than
    `MAX_CORNERS`, or one is no two numbers.
    """
    pieces = text.split()
    if not 3 <= len(pieces) <= MAX_CORNERS:
        raise SchemaError(
            f'{where}: expected 3 to {MAX_CORNERS} corners, as in "0,0 1,0 1,1", '
            f"found {len(pieces)}"
        )
    return np.array([_parse_corner(piece, where) for piece in pieces])


def _parse_corner(piece: str, where: str) -> tuple[float, float]:
    match = CORNER.fullmatch(piece)
    x, y = map(float, match.groups()) if match else (np.inf, np.inf)
    if max(abs(x), abs(y)) > LARGEST:
        raise SchemaError(f"{where}: expected a corner x,y of finite numbers, found {piece!r:.40}")
    return x, y


def inside_polygon(points: np.ndarray, polygon: np.ndarray) -> np.ndarray:
    """Which points lie inside a polygon: bool `(n,)`.

    A point is inside if a line from it to the right crosses the sides an odd number of times (the
    even-odd rule): where a polygon crosses itself, parts that it goes round twice are outside.

    `points` are floating numbers `(n, 2)`, and one with NaN is outside; `polygon` is as
    `parse_polygon` returns it.
    """
    inside = np.empty(len(points), bool)
    for start in range(0, len(points), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        inside[block] = _inside_block(points[block], polygon)
    return inside


def _inside_block(points: np.ndarray, polygon: np.ndarray) -> np.ndarray:
    """The same for as many points as a processor keeps at hand."""
    low_x, low_y = polygon.min(axis=0)
    high_x, high_y = polygon.max(axis=0)
    x, y = points.T
    is_near = (x >= low_x) & (x <= high_x) & (y >= low_y) & (y <= high_y)
    near = np.flatnonzero(is_near)
    inside = np.zeros(len(points), bool)
    inside[near] = _crosses_oddly(x[near].astype(np.float64), y[near].astype(np.float64), polygon)
    return inside


def _crosses_oddly(x: np.ndarray, y: np.ndarray, polygon: np.ndarray) -> np.ndarray:
    """Whether lines from points to the right cross the sides an odd number of times."""
    is_odd = np.zeros(len(x), bool)
    for (x1, y1), (x2, y2) in pairwise([*polygon.tolist(), polygon[0].tolist()]):
        if y1 == y2:
            continue  # no line to the right crosses a level side
        # the lower end of a side belongs to it, the upper one to the next: corners count once
        spans = (y >= min(y1, y2)) & (y < max(y1, y2))
        with np.errstate(over="ignore", invalid="ignore"):  # a side may be almost level
            is_left = x < x1 + (y - y1) * ((x2 - x1) / (y2 - y1))
        is_odd ^= spans & is_left
    return is_odd
