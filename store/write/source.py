"""Where traces come from: the small interface that every kind of source has, and stores as one.

A source knows its columns (`schema`), where its numbers come from (`provenance`, JSON-able: model,
layer convention, prompt template, thresholds, decoding settings, package versions) and how to make
its traces (`rows`). The order of the rows is deterministic, and `rows(start)` begins at trace
number `start`, so a build that was interrupted after n committed rows continues with `rows(n)` and
gives the same store as an uninterrupted one.

A source never writes a file of the store. This module imports neither torch nor transformers; the
sources that need them do.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from store.format.schema import Schema
from store.read.store import Trace, TraceStore
from store.write.blocks import Columns

__all__ = ["BlockSource", "CopySource", "Progress", "Source"]


@runtime_checkable
class Source(Protocol):
    """Traces in a deterministic order, with their columns and their origin.

    The implicit `trace_id` is no column of the schema. The provenance is a JSON-able description of
    how the values were made; it is written once, into the store's attributes.
    """

    schema: Schema
    provenance: dict[str, object]

    @property
    def remarks(self) -> dict[str, object]:
        """Remarks on the traces so far; committed as provenance."""
        return {}

    def rows(self, start: int = 0) -> Iterator[tuple[str, dict[str, object]]]:
        """Yield `(trace_id, row)` from trace number `start` on, bit for bit as `rows(0)` does after
        it.

        Ids are unique within the source. A row has one value per column of `schema`: an array of
        the column's dtype and shape, or an int, float or str.
        """
        ...


@runtime_checkable
class BlockSource(Protocol):
    """A `Source` that makes many small rows at once: their ids, and columns as
    `StoreWriter.append_many` takes them."""

    schema: Schema
    provenance: dict[str, object]

    def blocks(self, start: int = 0) -> Iterator[tuple[Sequence[str], Columns]]:
        """Yield blocks of rows from row number `start` on, wherever the blocks before it ended."""
        ...


Progress = Callable[[int], None]


class CopySource(Source):
    """Rows of one store after the other, each with its row numbers in the order to copy them.

    `renamed` has the id in the copy, where it differs, by (part, row of its store). Of the stores'
    columns those of the `schema` are copied, by default those of the first store; where one lacks a
    column of texts or floats, or has other numbers, values are empty, NaN, or converted.
    """

    def __init__(
        self,
        parts: Sequence[tuple[TraceStore, Sequence[int]]],
        provenance: dict[str, object],
        renamed: Mapping[tuple[int, int], str] | None = None,
        schema: Schema | None = None,
    ) -> None:
        self.parts = parts
        self.provenance = provenance
        self.renamed = renamed or {}
        first_store, _ = parts[0]
        self.schema = schema or first_store.schema

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self.parts)

    def rows(self, start: int = 0) -> Iterator[tuple[str, dict[str, object]]]:
        """Yield `(trace_id, row)` from row number `start` of the copy on."""
        for part, (store, rows) in enumerate(self.parts):
            for row in map(int, rows[start:]):
                trace = store[row]
                trace_id = self.renamed.get((part, row), trace.id)
                own = {name: trace[name] for name in trace if name in self.schema.columns}
                yield trace_id, own | self._converted(trace)
            start = max(0, start - len(rows))

    def _converted(self, trace: Trace) -> dict[str, object]:
        """What a trace's own store has not, or not as the schema."""
        own = trace.store.schema.columns
        missing = {
            name: "" if column.is_text else math.nan
            for name, column in self.schema.columns.items()
            if name not in own or own[name].dtype != column.dtype
        }
        return {name: float(trace[name]) if name in own else none for name, none in missing.items()}
