"""What a caller names rows by: numbers, a slice, or trace ids -> row numbers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["ManyRows", "Rows", "is_many", "row_numbers"]

Rows = Sequence[int] | np.ndarray | slice | Sequence[str]
"""Rows by number, by a mask of all rows, or by trace id."""

ManyRows = list[int] | list[str] | np.ndarray | slice
"""The same as a key between brackets, where a string is one id."""


def is_many(key: "ArrayLike | slice") -> TypeGuard[ManyRows]:
    """Whether a key names rows, as a slice, a list or a mask does, and not one row."""
    if isinstance(key, slice):
        return True
    return not isinstance(key, str | tuple) and np.ndim(key) > 0


def row_numbers(rows: Rows, n_rows: int, row_of: Callable[[str], int], where: str) -> np.ndarray:
    """Row numbers from 0 on, int64 `(n,)`, a copy.

    Raises IndexError for a row out of range, or a mask of another length than the store; TypeError
    if `rows` is something else.
    """
    if isinstance(rows, slice):
        return np.arange(*rows.indices(n_rows))
    array = np.asarray(rows)
    if array.ndim == 1 and array.dtype.kind in "OTU":  # also an array, or an index of pandas
        ids = rows if isinstance(rows, list | tuple) else array.tolist()
        if not all(isinstance(trace_id, str) for trace_id in ids):
            raise _not_rows(ids, where)
        return np.array([row_of(trace_id) for trace_id in ids], np.int64)
    if array.ndim == 1 and array.dtype == bool:
        if len(array) != n_rows:
            raise IndexError(
                f"{where}: expected a mask of its {n_rows} rows, found one of {len(array)}"
            )
        return np.flatnonzero(array)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise _not_rows(rows, where)
    numbers = array.astype(np.int64)
    if not array.size:
        return numbers
    lowest = array.min()
    if lowest < -n_rows or array.max() >= n_rows:
        outside = array[(array < -n_rows) | (array >= n_rows)]
        expected = "no row, the store is empty"
        if n_rows:
            expected = f"a row from {0 if outside[0] > 0 else -n_rows} to {n_rows - 1}"
        raise IndexError(f"{where}: expected {expected}, found {outside[0]}")
    if lowest < 0:
        numbers[numbers < 0] += n_rows
    return numbers


def _not_rows(rows: object, where: str) -> TypeError:
    if isinstance(rows, str):
        return TypeError(
            f"{where}: rows: expected a sequence of trace ids, found one; pass [{rows!r:.200}]"
        )
    expected = "expected a sequence of integers, one of trace ids, a mask, or a slice"
    return TypeError(f"{where}: rows: {expected}, found {rows!r:.100}")
