"""Rows of existing stores, passed on bit for bit as a source."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from store.read.store import TraceStore
from store.write.source import Source

__all__ = ["CopySource", "Progress"]

Progress = Callable[[int], None]


class CopySource(Source):
    """Rows of one store after the other, of stores with the same columns, each with its row numbers
    in the order to copy them. `renamed` has the id in the copy, where it differs, by (part, row of
    its store).
    """

    def __init__(
        self,
        parts: Sequence[tuple[TraceStore, Sequence[int]]],
        provenance: dict[str, object],
        renamed: Mapping[tuple[int, int], str] | None = None,
    ) -> None:
        self.parts = parts
        self.provenance = provenance
        self.renamed = renamed or {}
        first_store, _ = parts[0]
        self.schema = first_store.schema

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self.parts)

    def rows(self, start: int = 0) -> Iterator[tuple[str, dict[str, object]]]:
        """Yield `(trace_id, row)` from row number `start` of the copy on."""
        for part, (store, rows) in enumerate(self.parts):
            for row in map(int, rows[start:]):
                trace = store[row]
                trace_id = self.renamed.get((part, row), trace.id)
                yield trace_id, dict(trace)
            start = max(0, start - len(rows))
