"""What stores have in common that are to be one: their columns, their origin, one manifest.

Only numbers of fields that differ are read.

A merge writes what is planned here, and `store.read.joined.joined_store` reads it where it lies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.format.manifest import Manifest
from store.format.schema import Column, Schema
from store.format.segments import count_shards, joined_firsts
from store.read.store import TraceStore
from store.traces.columns import TRACE_COLUMNS
from store.traces.fields import ALL
from store.traces.origin import (
    COMMON,
    FINAL_NORM,
    LAYERS,
    PARTS,
    as_compared,
    origins_of,
    share_equal,
)

__all__ = [
    "check_ids",
    "check_origin",
    "find_shared_id",
    "has_one_layout",
    "have_dtype",
    "joined_provenance",
    "plan_joined",
    "unite_columns",
]

EXACT = 2**53  # whole numbers up to it are those of float64
RECORDED = {  # what tells whether traces are comparable, where any store records it
    "weights_sha256": "the model of its traces",
    LAYERS: "the numbers of its layers",
    FINAL_NORM: "whether its last layer is after the output norm",
}


def unite_columns(stores: Sequence[TraceStore], *, shared: bool = False) -> Schema:
    """The columns of all stores, or those that all have; raises SchemaError for other data."""
    names = dict.fromkeys(name for store in stores for name in store.schema.columns)
    if shared:
        names = {name: None for name in names if all(name in one.schema.columns for one in stores)}
    return Schema({name: _unite_column(name, stores) for name in names})


def _unite_column(name: str, stores: Sequence[TraceStore]) -> Column:
    """The column of all stores; of a field that differs, one that has all values and their lack."""
    found = [store.schema.columns.get(name) for store in stores]
    present = [column for column in found if column is not None]
    meanings = list(map(_meaning, found))
    if len(set(meanings)) == 1:
        return present[0]
    kinds = {column.dtype for column in present}
    if name not in TRACE_COLUMNS and all(column.is_single for column in present):
        if len(kinds) == 1 and min(kinds).startswith(("utf8", "float")):
            return present[0]
        if kinds.isdisjoint(("utf8", "bfloat16")):
            _check_exact(name, stores)
            return Column("float64")
    other = next(i for i, meaning in enumerate(meanings) if meaning != meanings[0])
    shared = "--shared, for the columns that all stores have"
    field = f"leave out a field (--fields {ALL},-{name})"
    raise SchemaError(
        f"{stores[other].path}: expected column {name!r} as in {stores[0].path}, {meanings[0]}, "
        f"found {meanings[other]}; make both with the same --columns, or "
        f"{shared if None in found else field}"
    )


def _check_exact(name: str, stores: Sequence[TraceStore]) -> None:
    """Raise SchemaError for whole numbers of a field that float64, which has NaN, rounds."""
    for store in stores:
        column = store.schema.columns.get(name)
        is_wide = column is not None and column.dtype in ("int64", "uint64")
        numbers = np.asarray(store.column_array(name)).tolist() if is_wide else []
        largest = max(map(abs, numbers), default=0)
        if largest > EXACT:
            raise SchemaError(
                f"{store.location}: column {name!r}: expected numbers up to 2**53, as other stores "
                f"lack it or have fractions, found {largest}; make it a text, or leave it out "
                f"(--fields {ALL},-{name})"
            )


def _meaning(column: Column | None) -> str:
    """What the values of a column are, however they are stored."""
    if column is None:
        return "no such column"
    axis = f"for each of {column.axis}" if column.axis else "one a row"
    sizes = " x ".join(map(str, column.item_shape))
    parts = (column.dtype, sizes, " ".join(column.axis_names), axis)
    return " ".join(filter(None, parts))


def check_origin(stores: Sequence[TraceStore]) -> None:
    """Raise SchemaError if what the stores record of their model, layers or prompts differs."""
    for key, meaning in RECORDED.items():
        silent = [store for store in stores if not _records(store, key)]
        if 0 < len(silent) < len(stores):
            raise SchemaError(
                f"{silent[0].path}: it does not record {meaning}, and others do: they may not be "
                "comparable (--mixed merges them all the same)"
            )
    seen: dict[str, tuple[TraceStore, Any]] = {}
    for store in stores:
        for origin in origins_of(store.provenance):
            for key, found in as_compared(origin).items():
                first, expected = seen.setdefault(key, (store, found))
                if found != expected:
                    raise SchemaError(
                        f"{store.location}: expected {key} as in {first.location}, "
                        f"{expected!r:.80}, found {found!r:.80}; traces of different models, "
                        "layers or prompts are not comparable (--mixed merges them all the same)"
                    )


def check_ids(stores: Sequence[TraceStore]) -> None:
    """Raise SchemaError if an id is in two stores."""
    shared = find_shared_id(stores)
    if shared is not None:
        trace_id, first, other = shared
        raise SchemaError(
            f"{other.location}: expected ids that are not in {first.location}, "
            f"found {trace_id!r} in both; copy one of them under other ids"
        )


def find_shared_id(stores: Sequence[TraceStore]) -> tuple[str, TraceStore, TraceStore] | None:
    """An id that two stores have, and these; compares the stored hashes first."""
    parts = [part for store in stores for part in store.reader.id_table.hashes()]
    hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))
    for hashed in hashes[1:][hashes[1:] == hashes[:-1]]:
        owners: dict[str, TraceStore] = {}
        for store in stores:
            for row in store.reader.id_table.rows_with_hash(hashed):
                trace_id = store[row].id
                if trace_id in owners:
                    return trace_id, owners[trace_id], store
                owners[trace_id] = store
    return None


def _records(store: TraceStore, key: str) -> bool:
    return all(key in as_compared(origin) for origin in origins_of(store.provenance))


def joined_provenance(stores: Sequence[TraceStore]) -> dict[str, object]:
    """The provenance of all stores, and the highest of their attention thresholds.

    What they have in common is there once.
    """
    own = ("uuid", "generation", "manifest_crc32c", "rows")
    records = []
    for store in stores:
        values = (store.uuid, store.generation, store.manifest.checksum, len(store))
        records.append(dict(zip(own, values, strict=True)) | store.provenance)
    common, rests = share_equal(records, own)
    merged: dict[str, object] = {"source": "merge", PARTS: rests, COMMON: common}
    thresholds = [store.provenance.get("attn_threshold") or 0.0 for store in stores]
    if any(thresholds):
        merged["attn_threshold"] = max(thresholds)
    return merged


def have_dtype(stores: Sequence[TraceStore], name: str, dtype: str) -> bool:
    """Whether all stores have a column, of this dtype."""
    found = [store.schema.columns.get(name) for store in stores]
    return all(column is not None and column.dtype == dtype for column in found)


def has_one_layout(stores: Sequence[TraceStore], name: str) -> bool:
    layouts = {replace(store.schema.layout(name), path=name) for store in stores}
    return len(layouts) == 1


def plan_joined(
    stores: Sequence[TraceStore],
    schema: Schema,
    linked: Sequence[str],
    provenance: Mapping[str, object],
) -> Manifest:
    """The manifest but for checksums, which are not known yet."""
    n_rows = sum(map(len, stores))
    n_items = {
        axis: sum(store.manifest.n_items.get(axis, 0) for store in stores) for axis in schema.axes
    }
    segments = {}
    for name in linked:
        layout = schema.layout(name)
        parts = []
        for store in stores:
            path = store.schema.layout(name).path
            parts.append((store.n_items(name), store.manifest.segments.get(path, [])))
        firsts, n = joined_firsts(parts, layout.shard_items)
        n_shards = count_shards(firsts, n, layout.shard_items)
        layout.check_size(n_shards * layout.shard_items)
        if len(firsts) > 1:
            segments[layout.path] = firsts
    return Manifest(
        schema,
        generation=1,
        n_rows=n_rows,
        n_items=n_items,
        runs=((0, n_rows),),
        provenance=dict(provenance),
        segments=segments,
    )
