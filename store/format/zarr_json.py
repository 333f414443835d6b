"""What other Zarr clients read: the `zarr.json` files, with dimension names and attributes.

Our own readers need neither. The names are chosen so that xarray opens a store: a dimension never
has the name of a column, or xarray would take that column's values for coordinates; and one name
has one size in all columns. The files are as zarr-python itself writes them; this is the only
module that imports zarr. Nothing here touches a store's files: zarr writes into a dictionary, and
we take the text. Zarr is imported when a writer first needs it, so that readers, and worker
processes among them, start without it.
"""

import json
from collections.abc import Collection, Iterator
from functools import cache
from typing import NamedTuple

from store.format.codecs import parse_codec
from store.format.layout import ArrayLayout, offsets_layout
from store.format.schema import Schema

__all__ = [
    "RUN_INFO",
    "ArrayInfo",
    "array_infos",
    "array_json",
    "column_paths",
    "earlier_infos",
    "group_json",
]


class ArrayInfo(NamedTuple):
    """What our readers do not need of an array's metadata: names of its dimensions (none if empty),
    and attributes, a JSON object."""

    names: tuple[str | None, ...] = ()
    attributes: dict[str, str] = {}  # noqa: RUF012 - never changed


RUN_INFO = ArrayInfo(("ids",))  # of the arrays of the id table


def column_paths(schema: Schema) -> dict[str, str]:
    """Column -> path of its array in the group, `trace_id` included."""
    return {name: schema.layout(name).path for name in schema.stored}


def array_infos(schema: Schema, segmented: Collection[str] = ()) -> dict[str, ArrayInfo]:
    """Path of an array -> its names and attributes, for all columns and offsets.

    `segmented` are the paths of the arrays that have several segments.
    """
    names = _dimension_names(schema, segmented)
    infos = {}
    for name, path in column_paths(schema).items():
        attributes = _attributes(schema, name)
        if path in segmented:
            attributes["segments"] = f"trace_store/segments/{path}"  # in the group's attributes
        infos[path] = ArrayInfo(names[name], attributes)
    offsets_name = _unlike("offsets", set(schema.axes))
    for axis in schema.axes:
        infos[_offsets_path(axis)] = ArrayInfo((offsets_name,))
    return infos


def _attributes(schema: Schema, name: str) -> dict[str, str]:
    """The column's name; its dtype, where that is not the stored one; where its offsets are."""
    column = schema.stored[name]
    axis = schema.axis_of(name)
    attributes = {"column": name}
    if column.dtype != column.storage_dtype.name:
        attributes["dtype"] = column.dtype
    if axis is not None:
        attributes["offsets"] = _offsets_path(axis)
    return attributes


def _dimension_names(schema: Schema, segmented: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Column -> names of its array's dimensions.

    Rows are `rows`; items of a ragged axis `<axis>_items`, of a text `<column>_bytes`. An array
    with segments has a size of its own, so its first one is `<column>_places`. A named item
    axis keeps its name where all columns that have it agree in its size, else it is
    `<column>_<axis>`; an unnamed one is `<column>_axis<i>`. Underscores are appended to a name that
    a column or another dimension has.
    """
    taken = set(schema.stored)

    def new_name(wanted: str) -> str:
        name = _unlike(wanted, taken)
        taken.add(name)
        return name

    first_names: dict[str | None, str] = {None: new_name("rows")}  # by ragged axis
    for axis in schema.axes:
        is_text = axis in schema.stored and schema.stored[axis].is_text
        first_names[axis] = new_name(f"{axis}_bytes" if is_text else f"{axis}_items")
    shared = {axis: new_name(axis) for axis in _shared_axes(schema)}

    names = {}
    for name, column in schema.stored.items():
        is_segmented = schema.layout(name).path in segmented
        first = new_name(f"{name}_places") if is_segmented else first_names[schema.axis_of(name)]
        own = [first]
        for i in range(len(column.item_shape)):
            axis = column.axis_names[i] if column.axis_names else f"axis{i}"
            is_shared = axis in column.axis_names and axis in shared
            own.append(shared[axis] if is_shared else new_name(f"{name}_{axis}"))
        names[name] = tuple(own)
    return names


def _shared_axes(schema: Schema) -> Iterator[str]:
    sizes: dict[str, set[int]] = {}
    for column in schema.columns.values():
        for axis, size in zip(column.axis_names, column.item_shape, strict=False):
            sizes.setdefault(axis, set()).add(size)
    return (axis for axis, sizes_of_axis in sizes.items() if len(sizes_of_axis) == 1)


def _unlike(wanted: str, taken: Collection[str]) -> str:
    """A name that is not taken: `wanted`, with underscores appended if need be."""
    name = wanted
    while name in taken:
        name += "_"
    return name


def _offsets_path(axis: str) -> str:
    return offsets_layout(axis).path


def earlier_infos(schema: Schema) -> dict[str, ArrayInfo]:
    """Path -> names of the columns and offsets of the first stores of format 1; they are whole."""
    infos = {_offsets_path(axis): ArrayInfo(("borders",)) for axis in schema.axes}
    for name, column in schema.stored.items():
        item_axes = column.axis_names or [None] * len(column.item_shape)
        first = schema.axis_of(name) or "rows"
        infos[schema.layout(name).path] = ArrayInfo((first, *item_axes))
    return infos


def group_json(attributes: dict | None = None) -> bytes:
    """The metadata of a Zarr v3 group with these attributes."""
    return _text(_empty_group() | {"attributes": attributes or {}})


def array_json(layout: ArrayLayout, n_items: int, info: ArrayInfo) -> bytes:
    """The metadata of a sharded Zarr v3 array of `n_items` items."""
    metadata = _empty_array(layout, info.names)
    shape = [n_items, *layout.item_shape]
    return _text(metadata | {"shape": shape, "attributes": info.attributes})


@cache
def _empty_group() -> dict:
    import zarr

    memory: dict = {}
    zarr.create_group(zarr.storage.MemoryStore(memory), zarr_format=3)
    return json.loads(memory["zarr.json"].to_bytes())


@cache
def _empty_array(layout: ArrayLayout, names: tuple[str | None, ...]) -> dict:
    import zarr
    from zarr.codecs import BytesCodec

    cell = [1 if i in layout.split_axes else size for i, size in enumerate(layout.item_shape)]
    compressors: list[dict] | None = None
    if layout.codec is not None:
        codec = parse_codec(layout.codec)
        compression = {"name": codec.name, "configuration": codec.configuration}
        compressors = [compression, {"name": "crc32c"}]
    memory: dict = {}
    zarr.create_array(
        zarr.storage.MemoryStore(memory),
        shape=(0, *layout.item_shape),
        shards=(layout.shard_items, *layout.item_shape),
        chunks=(layout.chunk_items, *cell),
        dtype=layout.dtype,
        serializer=BytesCodec(),
        compressors=compressors,
        filters=None,
        fill_value=0,
        dimension_names=names or None,
        zarr_format=3,
    )
    return json.loads(memory["zarr.json"].to_bytes())


def _text(metadata: dict) -> bytes:
    return json.dumps(metadata, indent=1, allow_nan=False).encode()
