"""Rows of stores that are there: a part of one, or several as one. Values are passed on bit for bit."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import FormatError, NotFoundError, SchemaError
from store.reader import TraceStore
from store.schema import Column, Schema
from store.sources.build import build_store, clear_partial, open_begun, partial_path
from store.split import SIDES, side_of_question
from store.writer import StoreWriter

__all__ = ["CopySource", "merge_stores", "read_ids", "rows_of_ids", "rows_of_questions", "rows_of_side"]


class CopySource:
    """Rows of one store after the other.

    Parameters
    ----------
    parts
        Stores of the same columns, each with its row numbers in the order to copy them.
    provenance
        Where the rows come from.
    """

    def __init__(self, parts: Sequence[tuple[TraceStore, Sequence[int]]], provenance: dict[str, Any]) -> None:
        self.parts, self.provenance = parts, provenance
        self.schema = parts[0][0].schema

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self.parts)

    def rows(self, start: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield `(trace_id, row)` from row number `start` of the copy on."""
        for store, rows in self.parts:
            for row in rows[start:]:
                trace = store[int(row)]
                yield trace.id, dict(trace)
            start = max(0, start - len(rows))


def merge_stores(path: Path, stores: Sequence[TraceStore], progress: Callable[[int], None]) -> TraceStore:
    """Make one store of the rows of several; the files of the first are copied as they are.

    Raises
    ------
    SchemaError
        Their columns differ, an id is in two of them, or something is at `path`.
    """
    _check_columns(stores)
    _check_ids(stores)
    source = CopySource([(store, range(len(store))) for store in stores], _merged_provenance(stores))
    if not path.exists() and open_begun(path) is None:
        clear_partial(partial_path(path))
        StoreWriter.copy(partial_path(path), stores[0], source.provenance).close()
    return build_store(path, source, progress)


def _merged_provenance(stores: Sequence[TraceStore]) -> dict[str, Any]:
    """What the stores say, and what readers look for, on the safe side."""
    merged = {
        "source": "merge",
        "stores": [{"uuid": s.uuid, "generation": s.generation, "rows": len(s), **s.provenance} for s in stores],
    }
    thresholds = [s.provenance.get("attn_threshold") for s in stores]
    return merged | ({"attn_threshold": max(t or 0.0 for t in thresholds)} if any(thresholds) else {})


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


def _check_ids(stores: Sequence[TraceStore]) -> None:
    """Raise SchemaError if an id is in two stores; compares hashes first, which are there already."""
    hashes = np.sort(np.concatenate([part for store in stores for part in store.id_hashes()]))
    for repeated in np.unique(hashes[1:][hashes[1:] == hashes[:-1]]):
        holders = [(store, store.ids[row]) for store in stores for row in store.rows_with_hash(repeated)]
        seen: dict[str, TraceStore] = {}
        for store, trace_id in holders:
            if seen.setdefault(trace_id, store) is not store:
                raise SchemaError(
                    f"{store.path}: expected ids that {seen[trace_id].path} has not, found {trace_id!r} in both"
                )


def rows_of_ids(store: TraceStore, ids: Sequence[str]) -> list[int]:
    """The rows of traces, in the order of their ids; raises NotFoundError for one that is not there."""
    return [store.row_of(trace_id) for trace_id in dict.fromkeys(ids)]


def read_ids(path: Path) -> list[str]:
    """Ids from a text file, one a line."""
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line]
    except OSError as error:
        raise NotFoundError(f"{path}: expected a file of ids, one a line, found: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: expected a file of ids, one a line, found: {error}") from error


def rows_of_questions(store: TraceStore, questions: Sequence[str]) -> list[int]:
    """All rows of some questions, ascending; raises NotFoundError for a question without one."""
    wanted, found = set(questions), _questions(store)
    missing = wanted - set(found)
    if missing:
        raise NotFoundError(f"{store.path}: expected traces of each question, found none of {min(missing)!r}")
    return [row for row, question in enumerate(found) if question in wanted]


def rows_of_side(store: TraceStore, side: str, seed: int) -> list[int]:
    """All rows of the questions on one side of the split, unlabelled ones included, ascending."""
    if side not in SIDES:
        raise SchemaError(f"expected one of the sides {SIDES}, found {side!r}")
    return [row for row, question in enumerate(_questions(store)) if side_of_question(question, seed) == side]


def _questions(store: TraceStore) -> list[str]:
    return store.read(range(len(store)), ["question_id"])["question_id"]
