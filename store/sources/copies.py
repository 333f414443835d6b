"""Rows of stores that are there: a part of one, or several as one. Values are passed on bit for
bit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import FormatError, NotFoundError, SchemaError
from store.format.origin import origins_of
from store.format.schema import TRACE_ID, Column, Schema
from store.read.store import TraceStore
from store.sources.questions import TraceNumbers
from store.sources.split import SPLITS, split_of_question
from store.write.build import (
    LONGEST_COMMAND,
    build_store,
    check_partial,
    identity,
    open_begun,
    partial_path,
)
from store.write.copy import CopySource
from store.write.files import Files
from store.write.source import COMMAND, LABEL_KEYS, LABELS_BEFORE
from store.write.writer import StoreWriter

__all__ = [
    "merge_stores",
    "read_ids",
    "rows_of_ids",
    "rows_of_questions",
    "rows_of_split",
    "subset_provenance",
]


def merge_stores(
    path: Path,
    stores: Sequence[TraceStore],
    progress: Callable[[int], None],
    *,
    mixed: bool = False,
    files: Files | None = None,
    command: str | None = None,
) -> TraceStore:
    """Make one store of the rows of several; the files of the first are copied as they are.

    Parts of one import number the traces of a question each from 1; they get the numbers that the
    whole import gives.

    Parameters
    ----------
    path
        The store to make.
    stores
        Of the same columns, from the same model and layers.
    progress
        Called with the number of traces in the store after each.
    mixed
        Take stores of other models or layers, too.
    files
        The file operations to use.
    command
        The command line that goes on with this merge; see `build_store`.

    Raises
    ------
    SchemaError
        Their columns or models differ, an id is in two of them, or something is at `path`.
    """
    _check_columns(stores)
    if not mixed:
        _check_origin(stores)
    renamed = _renumbered(stores) if _are_parts(stores) else _check_ids(stores)
    parts = [(store, range(len(store))) for store in stores]
    source = CopySource(parts, _merged_provenance(stores), renamed)
    if open_begun(path) is None and not any(part == 0 for part, _ in renamed):
        check_partial(partial_path(path))
        remembered = {COMMAND: command[:LONGEST_COMMAND]} if command else {}
        StoreWriter.copy(
            partial_path(path), stores[0], source.provenance | remembered, files, progress
        ).close()
    return build_store(path, source, progress, files, command=command)


def subset_provenance(store: TraceStore, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Where the rows of a subset come from: what the store says, which rows of it, and the command
    that made it."""
    inherited = {key: value for key, value in store.provenance.items() if key != COMMAND}
    origin = {"of": store.uuid, "generation": store.generation}
    if COMMAND in store.provenance:
        origin["of_command"] = store.provenance[COMMAND]
    return inherited | {"subset": {**chosen, **origin}}


def _merged_provenance(stores: Sequence[TraceStore]) -> dict[str, Any]:
    """What the stores say, and what readers look for, on the safe side."""
    merged = {
        "source": "merge",
        "stores": [
            {"uuid": s.uuid, "generation": s.generation, "rows": len(s), **s.provenance}
            for s in stores
        ],
    }
    thresholds = [s.provenance.get("attn_threshold") for s in stores]
    return merged | (
        {"attn_threshold": max(t or 0.0 for t in thresholds)} if any(thresholds) else {}
    )


def _check_columns(stores: Sequence[TraceStore]) -> None:
    first = stores[0]
    for other in stores[1:]:
        for name in [*first.schema.columns, *other.schema.columns]:
            one, two = (_meaning(store.schema, name) for store in (first, other))
            if one != two:
                raise SchemaError(
                    f"{other.path}: expected column {name!r} as in {first.path}, {_text(one)}, found {_text(two)}"
                )


def _meaning(schema: Schema, name: str) -> tuple | None:
    """What a column's values are, however they are stored."""
    column: Column | None = schema.columns.get(name)
    return column and (column.dtype, column.item_shape, column.axis, column.axis_names)


def _text(meaning: tuple | None) -> str:
    if meaning is None:
        return "no such column"
    dtype, shape, axis, _ = meaning
    return f"{dtype} {(axis or 'fixed', *shape)}"


def _check_origin(stores: Sequence[TraceStore]) -> None:
    """Raise SchemaError if what the stores record of their model, layers or prompts differs."""
    seen: dict[str, tuple[TraceStore, Any]] = {}
    silent = [
        store
        for store in stores
        if any("weights_sha256" not in one for one in origins_of(store.provenance))
    ]
    if 0 < len(silent) < len(stores):
        raise SchemaError(
            f"{silent[0].path}: it does not record of which model its traces are, and others do: they may not be "
            "comparable (--mixed merges them all the same)"
        )
    for store in stores:
        for origin in origins_of(store.provenance):
            for key, found in origin.items():
                first, expected = seen.setdefault(key, (store, found))
                if found != expected:
                    raise SchemaError(
                        f"{store.path}: expected {key} as in {first.path}, {expected!r:.80}, found {found!r:.80}; "
                        "traces of different models, layers or prompts are not comparable (--mixed merges them all "
                        "the same)"
                    )


def _are_parts(stores: Sequence[TraceStore]) -> bool:
    """Whether these are different parts of one import."""
    told = [_without_labels(identity(store.provenance)) for store in stores]
    numbers = [tuple(one.pop("part", ())) for one in told]
    same = all(one == told[0] for one in told) and len({n for _, n in filter(None, numbers)}) == 1
    return (
        same
        and told[0].get("source") == "import"
        and len(set(numbers)) == len(numbers) > 1
        and all(numbers)
    )


def _without_labels(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Provenance without what `store label` adds, which is another in each part."""
    return {
        key: value for key, value in provenance.items() if key not in (*LABEL_KEYS, LABELS_BEFORE)
    }


def _renumbered(stores: Sequence[TraceStore]) -> dict[tuple[int, int], str]:
    """(store, row) -> new id, of the parts of an import: the ids that it gives as a whole, where
    graphs come first."""
    places: list[tuple[bool, Path, int, int, str]] = []
    for part, store in enumerate(stores):
        batch = {name: store.column(name) for name in ("question_id", "source_file")}
        ragged = next((name for name, column in store.schema.columns.items() if column.axis), None)
        # none: a sequence without graphs
        n_tokens = store.lengths(ragged).tolist() if ragged else [1] * len(store)
        rows = zip(n_tokens, batch["source_file"], batch["question_id"], strict=True)
        places += [
            (not n, Path(file), part, row, question) for row, (n, file, question) in enumerate(rows)
        ]
    numbers = TraceNumbers()
    given = {(part, row): numbers.give(question) for _, _, part, row, question in sorted(places)}
    old = [store.column(TRACE_ID) for store in stores]
    return {(part, row): new for (part, row), new in given.items() if old[part][row] != new}


def _check_ids(stores: Sequence[TraceStore]) -> dict[tuple[int, int], str]:
    """Raise SchemaError if an id is in two stores; compares hashes first, which are there already.
    Renames nothing."""
    hashes = np.sort(
        np.concatenate([np.empty(0, np.uint64), *(part for s in stores for part in s.id_hashes())])
    )
    for repeated in np.unique(hashes[1:][hashes[1:] == hashes[:-1]]):
        seen: dict[str, TraceStore] = {}
        for store in stores:
            for trace_id in [store.ids[row] for row in store.rows_with_hash(repeated)]:
                if trace_id in seen:
                    raise SchemaError(
                        f"{store.path}: expected ids that {seen[trace_id].path} has not, found {trace_id!r} in both"
                    )
                seen[trace_id] = store
    return {}


def rows_of_ids(store: TraceStore, ids: Sequence[str]) -> list[int]:
    """The rows of traces, in the order of their ids; raises NotFoundError for one that is not
    there."""
    return [store.row_of(trace_id) for trace_id in dict.fromkeys(ids)]


def read_ids(path: Path) -> list[str]:
    """Ids from a text file, one a line."""
    try:
        return [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line]
    except OSError as error:
        raise NotFoundError(
            f"{path}: expected a file of ids, one a line, found: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: expected a file of ids, one a line, found: {error}") from error


def rows_of_questions(store: TraceStore, questions: Sequence[str]) -> list[int]:
    """All rows of some questions, ascending; raises NotFoundError for a question without one."""
    wanted, found = set(questions), _questions(store)
    missing = wanted - set(found)
    if missing:
        raise NotFoundError(
            f"{store.path}: expected traces of each question, found none of {min(missing)!r}"
        )
    return [row for row, question in enumerate(found) if question in wanted]


def rows_of_split(store: TraceStore, split: str, seed: int) -> list[int]:
    """Return all rows of the questions of a split, unlabelled ones included, ascending."""
    if split not in SPLITS:
        raise SchemaError(f"expected one of the splits {SPLITS}, found {split!r}")
    return [
        row
        for row, question in enumerate(_questions(store))
        if split_of_question(question, seed) == split
    ]


def _questions(store: TraceStore) -> list[str]:
    return store.column("question_id")
