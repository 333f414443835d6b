"""What other Zarr clients are told of an array: names of its dimensions, and attributes. Pure.

No reader of ours looks here. The names are chosen so that xarray opens a store: a dimension is
never called like a column, or xarray would take that column's values for coordinates; and one name
has one size in all columns.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from store.format.layout import offsets_layout
from store.format.schema import Column, Schema

__all__ = ["RUN_INFO", "ArrayInfo", "array_infos", "column_paths", "earlier_infos"]


class ArrayInfo(NamedTuple):
    """The part of an array's metadata that our readers do not need.

    Attributes
    ----------
    names
        Names of the dimensions; none if empty.
    attributes
        A JSON object.
    """

    names: tuple[str | None, ...] = ()
    attributes: dict[str, str] = {}  # noqa: RUF012 - never changed


RUN_INFO = ArrayInfo(("ids",))  # of the arrays of the id table


def column_paths(schema: Schema) -> dict[str, str]:
    """Column -> path of its array in the group, `trace_id` included."""
    return {name: schema.layout(name).path for name in schema.stored}


def array_infos(schema: Schema) -> dict[str, ArrayInfo]:
    """Path of an array -> what is told of it, for all columns and offsets."""
    names = _dimension_names(schema)
    infos = {}
    for name, path in column_paths(schema).items():
        infos[path] = ArrayInfo(names[name], _attributes(schema, name))
    offsets = _unlike("offsets", set(schema.axes))
    return infos | {_offsets_path(axis): ArrayInfo((offsets,)) for axis in schema.axes}


def _attributes(schema: Schema, name: str) -> dict[str, str]:
    """The column's name; its dtype, where that is not the stored one; where its offsets are."""
    attributes = {"column": name}
    column, axis = schema.stored[name], schema.axis_of(name)
    if column.dtype != column.storage_dtype.name:
        attributes["dtype"] = column.dtype
    if axis is not None:
        attributes["offsets"] = _offsets_path(axis)
    return attributes


def _dimension_names(schema: Schema) -> dict[str, tuple[str, ...]]:
    """Column -> names of its array's dimensions.

    Rows are `rows`; items of a ragged axis `<axis>_items`, of a text `<column>_bytes`. A named item
    axis keeps its name where all columns that have it agree in its size, else it is
    `<column>_<axis>`; an unnamed one is `<column>_axis<i>`. A name that a column or another
    dimension has gets underscores behind it.
    """
    taken = set(schema.stored)

    def new_name(wanted: str) -> str:
        name = _unlike(wanted, taken)
        taken.add(name)
        return name

    rows = new_name("rows")
    items = {axis: new_name(_items_name(schema, axis)) for axis in schema.axes}
    shared = {axis: new_name(axis) for axis in _shared_axes(schema)}

    def item_axes(name: str, column: Column) -> list[str]:
        if column.axis_names:
            return [shared.get(axis) or new_name(f"{name}_{axis}") for axis in column.axis_names]
        return [new_name(f"{name}_axis{i}") for i in range(len(column.item_shape))]

    names = {}
    for name, column in schema.stored.items():
        first = items.get(schema.axis_of(name), rows)
        names[name] = (first, *item_axes(name, column))
    return names


def _items_name(schema: Schema, axis: str) -> str:
    owner = schema.stored.get(axis)
    is_text = owner is not None and owner.is_text
    return f"{axis}_bytes" if is_text else f"{axis}_items"


def _shared_axes(schema: Schema) -> Iterator[str]:
    """The named item axes that have one size in all columns."""
    sizes: dict[str, set[int]] = {}
    for column in schema.columns.values():
        for axis, size in zip(column.axis_names, column.item_shape, strict=False):
            sizes.setdefault(axis, set()).add(size)
    return (axis for axis, found in sizes.items() if len(found) == 1)


def _unlike(wanted: str, taken: Collection[str]) -> str:
    """A name that is not taken: `wanted`, or with underscores behind it."""
    name = wanted
    while name in taken:
        name += "_"
    return name


def _offsets_path(axis: str) -> str:
    return offsets_layout(axis).path


def earlier_infos(schema: Schema) -> dict[str, ArrayInfo]:
    """Path -> what the first stores of format 1 told of columns and offsets; they are whole."""
    infos = {_offsets_path(axis): ArrayInfo(("borders",)) for axis in schema.axes}
    for name, column in schema.stored.items():
        own = column.axis_names or [None] * len(column.item_shape)
        infos[schema.layout(name).path] = ArrayInfo((schema.axis_of(name) or "rows", *own))
    return infos
