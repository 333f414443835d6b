"""What a read will read, checked once against the schema. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from store.errors import NotFoundError
from store.format.layers import LAYERS_AXIS, choose_layers, layer_numbers
from store.format.schema import Column, Schema
from store.format.values import is_integer

__all__ = ["ColumnPart", "ReadPlan", "Select", "Span", "cover", "plan_read", "slice_ranges"]

Select = Mapping[str, Mapping[str, slice | int | str]]


class Span(NamedTuple):
    """Which items of each row are read: those of `row[start:stop]` on a ragged axis; None: of fixed
    columns."""

    axis: str | None
    start: int | None = None
    stop: int | None = None


class ColumnPart(NamedTuple):
    """What is read of one column.

    Attributes
    ----------
    name, column
        Which.
    span
        Which items of a row.
    select
        A slice an item axis; empty: whole items.
    picked
        (item axis, positions in its slice) of what is kept of an axis whose slice holds more than
        was asked for.
    """

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
        """Bytes that are read of a row of so many items."""
        n = max(1, round(mean_items))
        items = mean_items * len(range(n)[self.span.start : self.span.stop]) / n
        axes = zip(self.select, self.column.item_shape, strict=False)
        return (
            items * self.column.item_bytes * math.prod(len(range(n)[part]) / n for part, n in axes)
        )


class ReadPlan(NamedTuple):
    """What is read of a row, checked against the schema: the columns, and the spans they need, each
    once."""

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
                f"select: expected one of the columns read, {names}, found {name!r:.200}"
            )
    number = partial(layer_numbers, provenance or {})
    parts = [
        _part(
            name,
            schema.column(name, where),
            schema.axis_of(name),
            dict(select.get(name) or {}),
            number,
        )
        for name in names
    ]
    return ReadPlan(tuple(parts), tuple(dict.fromkeys(part.span for part in parts)))


def _part(
    name: str,
    column: Column,
    axis: str | None,
    select: dict[str, slice | int | str],
    number: Callable[[int], list[int]],
) -> ColumnPart:
    """A slice for every item axis, nothing if whole items are read; and the span of the ragged
    axis."""
    for wanted in select:
        known = [*filter(None, [column.axis]), *column.axis_names]
        if wanted not in known:
            raise NotFoundError(
                f"column {name!r}: expected an axis of {known or 'none'}, found {wanted!r:.200}"
            )
    where = f"column {name!r}, axis"
    span = Span(axis)
    if column.axis in select:
        span = Span(axis, *_as_span(select.pop(column.axis), f"{where} {column.axis!r}"))
    if not select:
        return ColumnPart(name, column, span, ())
    slices: list[slice] = []
    picked: list[tuple[int, tuple[int, ...]]] = []
    for i, (key, n) in enumerate(zip(column.axis_names, column.item_shape, strict=True)):
        part = select.get(key, slice(None))
        if isinstance(part, str) and key == LAYERS_AXIS:
            covering, positions = cover(choose_layers(part, number(n), f"column {name!r}"))
            slices.append(covering)
            picked += [(i, positions)] if positions else []
        else:
            slices.append(_as_slice(part, n, f"{where} {key!r}"))
    return ColumnPart(name, column, span, tuple(slices), tuple(picked))


def cover(positions: Sequence[int]) -> tuple[slice, tuple[int, ...]]:
    """The smallest slice that holds some rising positions, and where in it they are (empty: they
    are all of it)."""
    step = math.gcd(*(other - one for one, other in pairwise(positions))) or 1
    covering = slice(positions[0], positions[-1] + 1, step)
    inside = tuple((position - positions[0]) // step for position in positions)
    is_all = len(inside) == inside[-1] + 1
    return covering, () if is_all else inside


def _as_span(part: slice | int, where: str) -> tuple[int | None, int | None]:
    """A selection of a ragged axis: (start, stop), applied to each row as Python's slicing does."""
    part = _slice_of(part, where)
    if part.step not in (None, 1):
        raise IndexError(
            f"{where}: expected a slice of step 1, found {part.start}:{part.stop}:{part.step}"
        )
    return part.start, part.stop


def slice_ranges(
    starts: np.ndarray, stops: np.ndarray, span: Span
) -> tuple[np.ndarray, np.ndarray]:
    """The part of each item range `starts:stops`, int64 `(n,)`, that a span reads, as Python slices
    a list."""
    if span.start is None and span.stop is None:
        return starts, stops
    n = stops - starts
    first, last = (
        _border(border, n, default) for border, default in ((span.start, 0), (span.stop, n))
    )
    return starts + first, starts + np.maximum(first, last)


def _border(border: int | None, n: np.ndarray, default: np.ndarray | int) -> np.ndarray | int:
    if border is None:
        return default
    return np.clip(border if border >= 0 else n + border, 0, n)


def _as_slice(part: slice | int, n: int, where: str) -> slice:
    """A selection of an axis of length n as a non-empty slice inside it."""
    part = _slice_of(part, where)
    borders = [border for border in (part.start, part.stop) if border is not None]
    if any(not -n <= border <= n for border in borders) or not len(range(n)[part]):
        raise IndexError(
            f"{where}: expected a selection from 0 to {n}, found {part.start}:{part.stop}:{part.step}"
        )
    return part


def _slice_of(part: slice | int | str, where: str) -> slice:
    """A slice with whole numbers as borders; an index becomes one of length one."""
    if is_integer(part):
        part = slice(int(part), int(part) + 1 if part != -1 else None)
    if not isinstance(part, slice):
        hint = "; only layers can be named by a text, as '8,16,24'"
        raise TypeError(f"{where}: expected a slice or an integer, found {part!r:.100}{hint}")
    for border in (part.start, part.stop, part.step):
        if border is not None and not isinstance(border, int | np.integer):
            raise TypeError(
                f"{where}: expected whole numbers as borders of a slice, found {border!r:.100}"
            )
    return part
