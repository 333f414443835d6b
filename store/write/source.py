"""Where traces come from: one file per kind of source, all behind the one small interface `Source`.

A source knows its columns (`schema`), where its numbers come from (`provenance`, JSON-able: model,
layer convention, prompt template, thresholds, decoding settings, package versions) and how to make
its traces (`rows`). The order of the rows is deterministic, and `rows(start)` begins at trace
number `start`, so a build that was interrupted after n committed rows goes on with `rows(n)` and
gives the same store as one that was not.

A source never writes a file of the store. This module imports neither torch nor transformers; those
that need them (`huggingface` with `generation`, `forward`, `prompts` and `extract`; `reductions`,
`example`) do.
"""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from store.format.schema import Schema

__all__ = ["ADDED_LATER", "COMMAND", "LABELS_BEFORE", "LABEL_KEYS", "REMARKS", "Source"]

REMARKS = "left_out"  # the key in the provenance of what a source could not use
# keys that a build begun by an earlier version lacks, and goes on all the same
ADDED_LATER = ("weights_crc32c",)
# the key in the provenance of the command line that made the store, or goes on making it
COMMAND = "command"
# the keys of how labels came about
LABEL_KEYS = ("label_rule", "label_rule_before", "score_threshold")
# the key of the labels that were replaced last, once the store was labelled anew
LABELS_BEFORE = "labels_before"


@runtime_checkable
class Source(Protocol):
    """Traces in a deterministic order, with their columns and their origin.

    Attributes
    ----------
    schema : Schema
        Columns of every row; the implicit `trace_id` is not among them.
    provenance : dict
        JSON-able description of how the values were made; it is written once, into the store's
        attributes.
    """

    schema: Schema
    provenance: dict[str, Any]

    @property
    def remarks(self) -> dict[str, Any]:
        """What to say of the traces so far, `{REMARKS: ...}` or nothing; it is committed with them,
        as provenance."""
        return {}

    def rows(self, start: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield `(trace_id, row)` from trace number `start` on.

        Parameters
        ----------
        start : int
            Number of traces to leave out. The rows after them are bit for bit the same as those of
            `rows(0)`.

        Yields
        ------
        trace_id : str
            Unique within the source.
        row : dict
            One value per column of `schema`: an array of the column's dtype and shape, or an int,
            float or str.
        """
        ...
