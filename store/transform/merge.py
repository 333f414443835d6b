"""Merges stores of the same columns into one, bit for bit: by reference, or as a copy.

Fields may differ: where a store lacks one, texts are empty and numbers NaN.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from store.errors import SchemaError
from store.format.schema import TRACE_ID
from store.read.directory import check_outside
from store.read.joined.union import check_ids, check_origin, joined_provenance, unite_columns
from store.read.questions import QUESTION_ID, read_texts
from store.read.store import TraceStore
from store.traces.identity import identity
from store.traces.label_keys import without_labelling
from store.traces.trace_ids import TraceNumbers
from store.write.build import (
    build_store,
    check_new,
    check_partial,
    command_key,
    open_begun,
    partial_path,
)
from store.write.files import DISK, Files
from store.write.link import Linked, link_stores, linked_columns
from store.write.source import CopySource, Progress

__all__ = ["merge_stores"]

WITH_IDS = ("vLLM hidden states", "OpenHalDet")  # formats of imports that number no trace
NewIds = dict[tuple[int, int], str]  # (store, row) -> id in the merged store, where it is another


def merge_stores(
    path: Path,
    stores: Sequence[TraceStore],
    progress: Progress,
    *,
    mixed: bool = False,
    shared: bool = False,
    files: Files = DISK,
    command: str | None = None,
    copy: bool = False,
    report: Callable[[Linked], None] = lambda linked: None,
) -> TraceStore:
    """Make one store of the rows of several.

    The large files are those of the stores, under second names, where the file system can link.
    What exists already, made of the same stores, is left as it is.

    Each part of an import numbers the traces of a question from 1; here they get the ids that one
    import of all parts gives. Ids that were in the files stay.

    `mixed` merges stores of other models or layers as well; `shared` leaves out columns that not
    all have; `copy` copies all rows, into shards that are full and in no other store. `progress` is
    called with the number of traces in the store after each, or after those of each part.

    Raises SchemaError: their models differ, or their columns but for fields, an id is in two of
    them, or something is at `path`.
    """
    _check_paths(path, stores)
    schema = unite_columns(stores, shared=shared)
    if not mixed:
        check_origin(stores)
    renamed: NewIds = {}
    if _are_parts(stores) and not _have_own_ids(stores[0]):
        renamed = _renumber(stores)
    else:
        check_ids(stores)
    parts = [(store, range(len(store))) for store in stores]
    source = CopySource(parts, joined_provenance(stores), renamed, schema)
    begun = open_begun(path)
    partial = partial_path(path)
    if begun is None:
        check_new(path)
        check_partial(partial)
        if not copy and len(source) and linked_columns(stores):
            provenance = source.provenance | command_key(command)
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


def _have_own_ids(part: TraceStore) -> bool:
    """Return whether the ids of a part of an import are those in its files, not numbers."""
    of_import = part.provenance
    return of_import.get("format") in WITH_IDS or TRACE_ID in of_import.get("map", {})


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
