"""What a read is asked for, rows, columns and parts of them, checked once. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import numpy as np

from store.errors import NotFoundError
from store.format.schema import Column, Schema
from store.format.values import is_integer
from store.read.arrays.read_options import ItemSlices, n_selected
from store.read.token_choice import TokenChoice
from store.traces.layers import LAYERS_AXIS, choose_layers, layer_numbers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["ColumnPart", "ManyRows", "ReadPlan", "RowRanges", "Rows", "Select", "Span"]
__all__ += ["as_span", "check_ranges", "is_many", "plan_read", "row_numbers", "slice_ranges"]

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


@dataclass(frozen=True, eq=False)
class RowRanges:
    """Items of each row of the store: `row[start:stop]`, both integers `(n_rows,)`.

    Ends are those of Python's slices: negative ones count from the end of the row, and what is
    beyond it is left out. Columns of one axis that are to share their offsets are given the same
    object. Raises ValueError for anything but two arrays of whole numbers, as long as each other.
    """

    starts: np.ndarray
    stops: np.ndarray

    def __post_init__(self) -> None:
        both = {"starts": np.asarray(self.starts), "stops": np.asarray(self.stops)}
        shape = both["starts"].shape
        for name, found in both.items():
            is_whole = found.dtype.kind in "iu" or not found.size
            if not is_whole or found.shape != shape or len(shape) != 1:
                raise ValueError(
                    f"RowRanges: expected as many starts as stops, integers (n_rows,), found "
                    f"{name} {found.dtype} {found.shape}"
                )
            object.__setattr__(self, name, found.astype(np.int64, copy=False))


AxisPart = slice | int | str | RowRanges
Select = Mapping[str, Mapping[str, AxisPart]]
"""Column -> axis -> what is read of it: a slice, an index, or layers as the model numbers them; of
a ragged axis also a range for each row."""


class Span(NamedTuple):
    """Which items of each row are read: `row[start:stop]`, or what `rows` says of each; the axis of
    fixed columns is None."""

    axis: str | None
    start: int | None = None
    stop: int | None = None
    rows: RowRanges | None = None


class ColumnPart(NamedTuple):
    """What is read of one column, and of its items."""

    name: str
    column: Column
    span: Span
    select: ItemSlices = ()

    def row_bytes(self, mean_items: float) -> float:
        """Bytes that are read of a row that has so many items."""
        ranges = self.span.rows
        if ranges is not None and len(ranges.starts):
            # of a negative range, counted from the end, as many as of the whole row
            asked = float(np.clip(ranges.stops - ranges.starts, 0, None).mean())
            return min(mean_items, asked or mean_items) * self.item_bytes
        n = max(1, round(mean_items))
        return mean_items * len(range(n)[self.span.start : self.span.stop]) / n * self.item_bytes

    @property
    def item_bytes(self) -> float:
        """Bytes that are read of an item."""
        sizes = zip(self.select, self.column.item_shape, strict=False)
        return self.column.item_bytes * math.prod(n_selected(part, n) / n for part, n in sizes)


class ReadPlan(NamedTuple):
    """What is read of a row, checked against the schema: columns, and their distinct spans.

    With `tokens`, what is read of a token: of columns of their axis its item, of others its row's.
    """

    parts: tuple[ColumnPart, ...]
    spans: tuple[Span, ...]
    tokens: TokenChoice | None = None

    def is_of_tokens(self, span: Span) -> bool:
        """Whether one item is read of the columns of this span."""
        return self.tokens is not None and span.axis == self.tokens.axis


def plan_read(
    schema: Schema,
    columns: Sequence[str] | None,
    select: Select | None,
    where: str,
    provenance: Mapping[str, object] | None = None,
) -> ReadPlan:
    """The plan of a read; see `TraceStore.read` for the arguments and errors.

    The provenance says how the layers are numbered.
    """
    if isinstance(columns, str):
        raise TypeError(f"columns: expected a sequence of names, found the string {columns!r}")
    names = list(schema.columns) if columns is None else list(dict.fromkeys(columns))
    select = select or {}
    for name in select:
        if name not in names:
            raise NotFoundError(
                f"select: expected one of the columns read, {names}, found {name!r:.200}; "
                "its form is {column: {axis: part}}"
            )
        if not isinstance(select[name], Mapping | None):
            raise TypeError(f"select: expected {{{name!r}: {{axis: part}}}}, found {select!r:.100}")
    parts = []
    for name in names:
        schema.column(name, where)  # raises
        wanted = dict(select.get(name) or {})
        parts.append(_part(schema, name, wanted, provenance or {}))
    return ReadPlan(tuple(parts), tuple(dict.fromkeys(part.span for part in parts)))


def _part(
    schema: Schema, name: str, select: dict[str, AxisPart], provenance: Mapping[str, object]
) -> ColumnPart:
    column = schema.stored[name]
    where = f"column {name!r}"
    axes = [*filter(None, [column.axis]), *column.axis_names]
    for key in select:
        if key not in axes:
            raise NotFoundError(
                f"{where}: expected an axis of {axes or 'none'}, found {key!r:.200}"
            )
    span = Span(schema.axis_of(name))
    if column.axis is not None and column.axis in select:
        span = as_span(select.pop(column.axis), column.axis, where)
    if not select:
        return ColumnPart(name, column, span)
    parts: list[slice | np.ndarray] = []
    for key, size in zip(column.axis_names, column.item_shape, strict=True):
        wanted = select.get(key, slice(None))
        if isinstance(wanted, str) and key == LAYERS_AXIS:
            parts.append(_positions(choose_layers(wanted, layer_numbers(provenance, size), where)))
        else:
            parts.append(_as_slice(wanted, size, f"{where}, axis {key!r}"))
    return ColumnPart(name, column, span, tuple(parts))


def _positions(rising: list[int]) -> slice | np.ndarray:
    """Positions as a slice, which takes no copy of items, if they are at equal distances."""
    first = rising[0]
    last = rising[-1]
    step = rising[1] - first if len(rising) > 1 else 1
    is_even = rising == list(range(first, last + 1, step))
    return slice(first, last + 1, step) if is_even else np.array(rising)


def check_ranges(spans: Sequence[Span], n_rows: int, where: str) -> None:
    """Raise ValueError unless ranges of rows have one for each row of the store."""
    for span in spans:
        if span.rows is not None and len(span.rows.starts) != n_rows:
            raise ValueError(
                f"{where}: RowRanges of axis {span.axis!r}: expected one for each of its {n_rows} "
                f"rows, found {len(span.rows.starts)}"
            )


def slice_ranges(
    starts: np.ndarray, stops: np.ndarray, span: Span, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The part of the item range of each row that a span reads, as Python slices a list.

    `starts`, `stops` and `rows` are int64 `(n,)`, as are those returned.
    """
    if span.rows is None and span.start is None and span.stop is None:
        return starts, stops
    lengths = stops - starts
    if span.rows is None:
        first = _end(span.start or 0, lengths)
        last = lengths if span.stop is None else _end(span.stop, lengths)
    else:
        first = _end(span.rows.starts[rows], lengths)
        last = _end(span.rows.stops[rows], lengths)
    return starts + first, starts + np.maximum(first, last)


def _end(end: int | np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """An end of a slice inside rows of these lengths; negative: from the rows' ends."""
    return np.clip(np.where(np.less(end, 0), lengths + end, end), 0, lengths)


def as_span(part: AxisPart, axis: str, where: str) -> Span:
    """A selection of a ragged axis, applied to each row as Python's slicing does."""
    if isinstance(part, RowRanges):
        return Span(axis, rows=part)
    wanted = _slice_of(part, f"{where}, axis {axis!r}")
    if wanted.step not in (None, 1):
        expected = f"{where}, axis {axis!r}: expected a slice of step 1"
        raise IndexError(f"{expected}, found {wanted}")
    return Span(axis, wanted.start, wanted.stop)


def _as_slice(part: AxisPart, n: int, where: str) -> slice:
    """A selection of an axis of length n as a non-empty slice inside it."""
    wanted = _slice_of(part, where)
    is_inside = all(end is None or -n <= end <= n for end in (wanted.start, wanted.stop))
    if not is_inside or not range(n)[wanted]:
        raise IndexError(f"{where}: expected a selection from 0 to {n}, found {wanted}")
    return wanted


def _slice_of(part: AxisPart, where: str) -> slice:
    """A slice of whole numbers; an index becomes one of length one."""
    if is_integer(part):
        index = int(part)
        return slice(index, index + 1 if index != -1 else None)
    if not isinstance(part, slice):
        raise TypeError(
            f"{where}: expected a slice or an integer, found {part!r:.100}; "
            "only layers can be named by a text, as '8,16,24'"
        )
    for number in (part.start, part.stop, part.step):
        if number is not None and not isinstance(number, int | np.integer):
            raise TypeError(
                f"{where}: expected whole numbers as ends of a slice, found {number!r:.100}"
            )
    return part
