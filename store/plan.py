"""What a read will read, checked once against the schema. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from store.errors import NotFoundError
from store.schema import Column, Schema

__all__ = ["ColumnPart", "ReadPlan", "Select", "plan_read"]

Select = Mapping[str, Mapping[str, slice | int]]


class ColumnPart(NamedTuple):
    """What is read of one column."""

    name: str
    column: Column
    axis: str | None
    select: tuple[slice, ...]

    @property
    def share(self) -> float:
        """Of an item, how much is read."""
        axes = zip(self.select, self.column.item_shape, strict=False)
        return math.prod(len(range(n)[part]) / n for part, n in axes)


class ReadPlan(NamedTuple):
    """What is read of a row, checked against the schema: the columns, and the ragged axes they need, each once."""

    parts: tuple[ColumnPart, ...]
    axes: tuple[str, ...]


def plan_read(schema: Schema, columns: Sequence[str] | None, select: Select | None, where: str) -> ReadPlan:
    """The plan of a read; see `TraceStore.read` for the arguments and errors."""
    if isinstance(columns, str):
        raise TypeError(f"columns: expected a sequence of names, found the string {columns!r}")
    names = list(schema.columns) if columns is None else list(dict.fromkeys(columns))
    select = select or {}
    for name in select:
        if name not in names:
            raise NotFoundError(f"select: expected one of the columns read, {names}, found {name!r:.200}")
    parts = []
    for name in names:
        column = schema.column(name, where)
        parts.append(ColumnPart(name, column, schema.axis_of(name), _item_slices(name, column, select.get(name))))
    return ReadPlan(tuple(parts), tuple(dict.fromkeys(part.axis for part in parts if part.axis)))


def _item_slices(name: str, column: Column, axes: Mapping[str, slice | int] | None) -> tuple[slice, ...]:
    """A slice for every item axis; nothing if whole items are read."""
    slices = [slice(None)] * len(column.item_shape)
    for axis, part in (axes or {}).items():
        if axis not in column.axis_names:
            known = list(column.axis_names) or "none"
            raise NotFoundError(f"column {name!r}: expected an item axis of {known}, found {axis!r:.200}")
        position = column.axis_names.index(axis)
        slices[position] = _as_slice(part, column.item_shape[position], f"column {name!r}, axis {axis!r}")
    return tuple(slices) if axes else ()


def _as_slice(part: slice | int, n: int, where: str) -> slice:
    """A selection of an axis of length n as a non-empty slice inside it."""
    if isinstance(part, int | np.integer) and not isinstance(part, bool):
        part = slice(part, part + 1 if part != -1 else None)
    if not isinstance(part, slice):
        raise TypeError(f"{where}: expected a slice or an integer, found {part!r:.100}")
    borders = [border for border in (part.start, part.stop) if border is not None]
    if any(not -n <= border <= n for border in borders) or not len(range(n)[part]):
        raise IndexError(f"{where}: expected a selection from 0 to {n}, found {part.start}:{part.stop}:{part.step}")
    return part
