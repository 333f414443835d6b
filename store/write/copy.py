"""Rows of stores that are there, passed on bit for bit: a source whose rows another store has."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from store.read.store import TraceStore

__all__ = ["CopySource"]


class CopySource:
    """Rows of one store after the other.

    Parameters
    ----------
    parts
        Stores of the same columns, each with its row numbers in the order to copy them.
    provenance
        Where the rows come from.
    renamed
        (part, row of its store) -> the id in the copy, where it is another.
    """

    def __init__(
        self,
        parts: Sequence[tuple[TraceStore, Sequence[int]]],
        provenance: dict[str, Any],
        renamed: Mapping[tuple[int, int], str] | None = None,
    ) -> None:
        self.parts, self.provenance, self.renamed = parts, provenance, renamed or {}
        self.remarks: dict[str, Any] = {}
        self.schema = parts[0][0].schema

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self.parts)

    def rows(self, start: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield `(trace_id, row)` from row number `start` of the copy on."""
        for part, (store, rows) in enumerate(self.parts):
            for row in rows[start:]:
                trace = store[int(row)]
                yield self.renamed.get((part, int(row)), trace.id), dict(trace)
            start = max(0, start - len(rows))
