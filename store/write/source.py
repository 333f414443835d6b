"""Where traces come from: the small interface that every kind of source has.

A source knows its columns (`schema`), where its numbers come from (`provenance`, JSON-able: model,
layer convention, prompt template, thresholds, decoding settings, package versions) and how to make
its traces (`rows`). The order of the rows is deterministic, and `rows(start)` begins at trace
number `start`, so a build that was interrupted after n committed rows continues with `rows(n)` and
gives the same store as an uninterrupted one.

A source never writes a file of the store. This module imports neither torch nor transformers; the
sources that need them do.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from store.format.schema import Schema
from store.write.blocks import Columns

__all__ = ["BlockSource", "Source"]


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
