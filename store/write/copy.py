"""Rows of existing stores, passed on bit for bit as a source."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from store.format.schema import Schema
from store.read.store import TraceStore
from store.read.trace import Trace
from store.write.source import Source

__all__ = ["CopySource", "Progress"]

Progress = Callable[[int], None]


class CopySource(Source):
    """Rows of one store after the other, each with its row numbers in the order to copy them.

    `renamed` has the id in the copy, where it differs, by (part, row of its store). The stores have
    the columns of the `schema`, by default those of the first; where one lacks a column of texts or
    floats, or has other numbers, values are empty, NaN, or converted.
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
                yield trace_id, dict(trace) | self._converted(trace)
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
