"""What a read will read, checked once against the schema. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from store.errors import NotFoundError
from store.format.schema import Column, Schema
from store.format.values import is_integer
from store.traces.layers import LAYERS_AXIS, choose_layers, layer_numbers

__all__ = ["ColumnPart", "ReadPlan", "Select", "Span", "cover", "plan_read", "slice_ranges"]

AxisPart = slice | int | str
Select = Mapping[str, Mapping[str, AxisPart]]
"""Column -> axis -> what is read of it: a slice, an index, or layers as the model numbers them."""


class Span(NamedTuple):
    """Which items of each row are read: `row[start:stop]`; the axis of fixed columns is None."""

    axis: str | None
    start: int | None = None
    stop: int | None = None


class ColumnPart(NamedTuple):
    """What is read of one column: a slice for each item axis (empty: whole items); and where a
    slice holds more than was asked for, the item axis, and which of its positions are kept."""

    name: str
    column: Column
    span: Span
    select: tuple[slice, ...]
    picked: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def pick(self, items: np.ndarray) -> np.ndarray:
        """Keep what was asked for of `(n, *selected item)`; a copy if that is less."""
        for axis, positions in self.picked:
            items = np.take(items, positions, axis=axis + 1)
        return items

    def row_bytes(self, mean_items: float) -> float:
        """Bytes that are read of a row that has so many items."""
        n = max(1, round(mean_items))
        return mean_items * len(range(n)[self.span.start : self.span.stop]) / n * self.item_bytes

    @property
    def item_bytes(self) -> float:
        """Bytes that are read of an item."""
        fraction = 1.0
        for part, size in zip(self.select, self.column.item_shape, strict=False):
            fraction *= len(range(size)[part]) / size
        return self.column.item_bytes * fraction


class ReadPlan(NamedTuple):
    """What is read of a row, checked against the schema: columns, and their distinct spans."""

    parts: tuple[ColumnPart, ...]
    spans: tuple[Span, ...]


def plan_read(
    schema: Schema,
    columns: Sequence[str] | None,
    select: Select | None,
    where: str,
    provenance: Mapping[str, Any] | None = None,
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
    schema: Schema, name: str, select: dict[str, AxisPart], provenance: Mapping[str, Any]
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
        part = _as_span(select.pop(column.axis), f"{where}, axis {column.axis!r}")
        span = Span(column.axis, part.start, part.stop)
    if not select:
        return ColumnPart(name, column, span, ())
    slices: list[slice] = []
    picked: list[tuple[int, tuple[int, ...]]] = []
    for i, (key, size) in enumerate(zip(column.axis_names, column.item_shape, strict=True)):
        wanted = select.get(key, slice(None))
        if isinstance(wanted, str) and key == LAYERS_AXIS:
            numbers = layer_numbers(provenance, size)
            wanted, positions = cover(choose_layers(wanted, numbers, where))
            if positions:
                picked.append((i, positions))
        slices.append(_as_slice(wanted, size, f"{where}, axis {key!r}"))
    return ColumnPart(name, column, span, tuple(slices), tuple(picked))


def cover(positions: Sequence[int]) -> tuple[slice, tuple[int, ...]]:
    """The smallest slice that holds some rising positions, and where in it they are (empty: they
    are all of it)."""
    first = positions[0]
    last = positions[-1]
    distances = [position - first for position in positions]
    step = math.gcd(*distances) or 1
    covering = slice(first, last + 1, step)
    if len(distances) == distances[-1] // step + 1:
        return covering, ()
    return covering, tuple(distance // step for distance in distances)


def slice_ranges(
    starts: np.ndarray, stops: np.ndarray, span: Span
) -> tuple[np.ndarray, np.ndarray]:
    """The part of each item range that a span reads, as Python slices a list.

    `starts` and `stops` are int64 `(n,)`, as are those returned.
    """
    if span.start is None and span.stop is None:
        return starts, stops
    lengths = stops - starts
    first = _end(span.start or 0, lengths)
    last = lengths if span.stop is None else _end(span.stop, lengths)
    return starts + first, starts + np.maximum(first, last)


def _end(end: int, lengths: np.ndarray) -> np.ndarray:
    """An end of a slice inside rows of these lengths; negative: from the rows' ends."""
    return np.clip(end if end >= 0 else lengths + end, 0, lengths)


def _as_span(part: AxisPart, where: str) -> slice:
    """A selection of a ragged axis, applied to each row as Python's slicing does."""
    wanted = _slice_of(part, where)
    if wanted.step not in (None, 1):
        raise IndexError(f"{where}: expected a slice of step 1, found {_text(wanted)}")
    return wanted


def _as_slice(part: AxisPart, n: int, where: str) -> slice:
    """A selection of an axis of length n as a non-empty slice inside it."""
    wanted = _slice_of(part, where)
    is_inside = all(end is None or -n <= end <= n for end in (wanted.start, wanted.stop))
    if not is_inside or not range(n)[wanted]:
        raise IndexError(f"{where}: expected a selection from 0 to {n}, found {_text(wanted)}")
    return wanted


def _text(part: slice) -> str:
    return f"{part.start}:{part.stop}:{part.step}"


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
