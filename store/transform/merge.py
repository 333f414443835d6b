"""Merges stores of the same columns into one, bit for bit: by reference, or as a copy.

Fields may differ: where a store lacks one, texts are empty and numbers NaN.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.format.schema import TRACE_ID, Column, Schema
from store.read.directory import check_outside
from store.read.store import TraceStore
from store.read.whole_columns import QUESTION_ID, read_texts
from store.traces.columns import TRACE_COLUMNS
from store.traces.fields import ALL
from store.traces.identity import COMMAND, identity
from store.traces.label_keys import without_labelling
from store.traces.origin import (
    COMMON,
    FINAL_NORM,
    LAYERS,
    PARTS,
    as_compared,
    origins_of,
    share_equal,
)
from store.traces.trace_ids import TraceNumbers
from store.write.build import (
    LONGEST_COMMAND,
    build_store,
    check_new,
    check_partial,
    open_begun,
    partial_path,
)
from store.write.copy import CopySource, Progress
from store.write.files import DISK, Files
from store.write.link import Linked, link_stores, linked_columns

__all__ = ["merge_stores"]

NewIds = dict[tuple[int, int], str]  # (store, row) -> id in the merged store, where it is another
EXACT = 2**53  # whole numbers up to it are those of float64
RECORDED = {  # what tells whether traces are comparable, where any store records it
    "weights_sha256": "the model of its traces",
    LAYERS: "the numbers of its layers",
    FINAL_NORM: "whether its last layer is after the output norm",
}


def merge_stores(
    path: Path,
    stores: Sequence[TraceStore],
    progress: Progress,
    *,
    mixed: bool = False,
    files: Files = DISK,
    command: str | None = None,
    copy: bool = False,
    report: Callable[[Linked], None] = lambda linked: None,
) -> TraceStore:
    """Make one store of the rows of several.

    The large files are those of the stores, under second names, where the file system can link.
    What exists already, made of the same stores, is left as it is.

    Each part of an import numbers the traces of a question from 1; here they get the ids that one
    import of all parts gives.

    Parameters
    ----------
    progress
        Called with the number of traces in the store after each, or after those of each part.
    mixed
        Merge stores of other models or layers as well.
    copy
        Copy all rows, into shards that are full and shared with no other store.

    Raises
    ------
    SchemaError
        Their models differ, or their columns but for fields, an id is in two of them, or something
        is at `path`.
    """
    _check_paths(path, stores)
    schema = _unite_columns(stores)
    if not mixed:
        _check_origin(stores)
    renamed: NewIds = {}
    if _are_parts(stores):
        renamed = _renumber(stores)
    else:
        _check_ids(stores)
    parts = [(store, range(len(store))) for store in stores]
    source = CopySource(parts, _merged_provenance(stores), renamed, schema)
    begun = open_begun(path)
    partial = partial_path(path)
    if begun is None:
        check_new(path)
        check_partial(partial)
        if not copy and len(source) and linked_columns(stores):
            command_key = {COMMAND: command[:LONGEST_COMMAND]} if command else {}
            provenance = source.provenance | command_key
            report(link_stores(partial, stores, schema, provenance, renamed, files, progress))
            files.rename_durably(partial, path)
            return TraceStore.open(path)
    elif copy and begun.manifest.segments:
        raise SchemaError(
            f"{begun.path}: expected a new path for a copy, found a store that is merged by "
            "reference; choose another path"
        )
    return build_store(path, source, progress, files, command=command)


def _check_paths(path: Path, stores: Sequence[TraceStore]) -> None:
    """Raise SchemaError if a store is given twice, or is where the merged one is to be made."""
    check_outside(path)
    places = {}
    for place in (path, partial_path(path)):
        if place.exists():
            status = place.stat()
            places[status.st_dev, status.st_ino] = place
    seen = set()
    for store in stores:
        key = (store.directory.device, store.directory.inode)
        if key in places:
            raise SchemaError(
                f"{places[key]}: expected a new path, found a store that is to be merged; choose "
                "another path"
            )
        if key in seen:
            raise SchemaError(
                f"{store.path}: expected each store once, found it given twice: its ids would be "
                "in both"
            )
        if len(store):
            seen.add(key)


def _merged_provenance(stores: Sequence[TraceStore]) -> dict[str, Any]:
    """The provenance of all stores, and the highest of their attention thresholds.

    What they have in common is there once.
    """
    own = ("uuid", "generation", "manifest_crc32c", "rows")
    records = []
    for store in stores:
        values = (store.uuid, store.generation, store.manifest.checksum, len(store))
        records.append(dict(zip(own, values, strict=True)) | store.provenance)
    common, rests = share_equal(records, own)
    merged: dict[str, Any] = {"source": "merge", PARTS: rests, COMMON: common}
    thresholds = [store.provenance.get("attn_threshold") or 0.0 for store in stores]
    if any(thresholds):
        merged["attn_threshold"] = max(thresholds)
    return merged


def _unite_columns(stores: Sequence[TraceStore]) -> Schema:
    """The columns of all stores; raises SchemaError where they are of other data."""
    names = dict.fromkeys(name for store in stores for name in store.schema.columns)
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
    raise SchemaError(
        f"{stores[other].path}: expected column {name!r} as in {stores[0].path}, {meanings[0]}, "
        f"found {meanings[other]}; make both with the same --columns, or leave out a field "
        f"(--fields {ALL},-{name})"
    )


def _check_exact(name: str, stores: Sequence[TraceStore]) -> None:
    """Raise SchemaError for whole numbers of a field that float64, which has NaN, rounds."""
    for store in stores:
        column = store.schema.columns.get(name)
        numbers = [] if column is None or column.dtype != "int64" else store.column(name)
        largest = max(map(abs, map(int, numbers)), default=0)
        if largest > EXACT:
            raise SchemaError(
                f"{store.path}: column {name!r}: expected numbers up to 2**53, as other stores "
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


def _check_origin(stores: Sequence[TraceStore]) -> None:
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
                        f"{store.path}: expected {key} as in {first.path}, {expected!r:.80}, found "
                        f"{found!r:.80}; traces of different models, layers or prompts are not "
                        "comparable (--mixed merges them all the same)"
                    )


def _records(store: TraceStore, key: str) -> bool:
    return all(key in as_compared(origin) for origin in origins_of(store.provenance))


def _are_parts(stores: Sequence[TraceStore]) -> bool:
    parts = set()
    imports = []
    for store in stores:
        # `store label` may have been used on some of them
        provenance = without_labelling(identity(store.provenance))
        parts.add(tuple(provenance.pop("part", ())))
        imports.append(provenance)
    return (
        imports[0].get("source") == "import"
        and imports.count(imports[0]) == len(imports)
        and () not in parts
        and len(parts) == len(stores) > 1
        and len({n_parts for _, n_parts in parts}) == 1
    )


def _renumber(stores: Sequence[TraceStore]) -> NewIds:
    """The ids that a whole import gives: traces with graphs are numbered first."""
    traces: list[tuple[bool, Path, int, int, str, str]] = []
    for part, store in enumerate(stores):
        files = map(Path, read_texts(store, "source_file"))
        texts = (read_texts(store, QUESTION_ID), read_texts(store, TRACE_ID))
        of_part = [part] * len(store)
        rows = range(len(store))
        traces += zip(_lack_graphs(store), files, of_part, rows, *texts, strict=True)
    numbers = TraceNumbers()
    renamed = {}
    for _, _, part, row, question, old in sorted(traces):
        trace_id = numbers.give(question)
        if trace_id != old:
            renamed[part, row] = trace_id
    return renamed


def _lack_graphs(store: TraceStore) -> list[bool]:
    """For each trace whether it has no tokens: a sequence without graphs."""
    for name, column in store.schema.columns.items():
        if column.axis is not None:
            return (store.lengths(name) == 0).tolist()
    return [False] * len(store)


def _check_ids(stores: Sequence[TraceStore]) -> None:
    """Raise SchemaError if an id is in two stores; compares the stored hashes first."""
    parts = [part for store in stores for part in store.reader.id_table.hashes()]
    hashes, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]), return_counts=True)
    for hashed in hashes[counts > 1]:
        owners: dict[str, TraceStore] = {}
        for store in stores:
            for row in store.reader.id_table.rows_with_hash(hashed):
                trace_id = store[row].id
                if trace_id in owners:
                    raise SchemaError(
                        f"{store.path}: expected ids that are not in {owners[trace_id].path}, "
                        f"found {trace_id!r} in both"
                    )
                owners[trace_id] = store
