"""The columns with one value a row, of a store and of the scores of runs: what a table shows."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from store.errors import SchemaError
from store.format.schema import TRACE_ID
from store.read.filters.single_values import SingleValues
from store.read.store import TraceStore
from store.view.pieces import StoredPieces

__all__ = ["Table", "json_number"]

UTF8_BYTES = 4  # of a character, at most
LARGEST_EXACT = 2**53  # whole numbers beyond it are rounded where numbers are floats of 64 bits


class Table(SingleValues):
    """The numbers and the texts of the rows of a store, a committed state of it.

    `scores` are columns beside its own, float32 `(n_rows,)`, NaN for a row without a score, and
    `thresholds` those of their detectors, where they have one. Raises SchemaError for scores of
    another length, or of a name that the store has.
    """

    def __init__(
        self,
        store: TraceStore,
        scores: Mapping[str, np.ndarray] | None = None,
        thresholds: Mapping[str, float] | None = None,
    ) -> None:
        self.store: TraceStore = store
        self.scores = dict(scores or {})
        self.thresholds = dict(thresholds or {})
        for name, values in self.scores.items():
            if name in store.schema.stored or len(values) != len(store):
                raise SchemaError(
                    f"{store.location}: scores {name!r}: expected a new name and {len(store)} "
                    f"values, found {len(values)}; leave out the run"
                )
        self.pieces = StoredPieces(store)
        super().__init__(store, self.scores)

    def texts(self, name: str, rows: Sequence[int] | np.ndarray) -> list[str]:
        """The texts of some rows."""
        return self.store.read_arrays(rows, [name]).texts(name)

    def cells(self, name: str, rows: np.ndarray, n_characters: int) -> list:
        """A column in some rows, as JSON has it: beginnings of texts, numbers, None for NaN."""
        if self.kind(name) == "text":
            data, offsets = self.store.text_starts(name, rows, UTF8_BYTES * n_characters)
            parts = [data[start:stop] for start, stop in pairwise(offsets.tolist())]
            # the last character may be cut
            return [part.decode("utf-8", "ignore")[:n_characters] for part in parts]
        return [json_number(value) for value in self.numbers(name)[rows].tolist()]

    def find(self, text: str, columns: Sequence[str]) -> np.ndarray:
        """Which rows have a text in any of some columns, or are called so: bool `(n_rows,)`."""
        row = self.store.ids.find(text)
        found = np.zeros(len(self), bool)
        if row is not None:
            found[row] = True
            return found
        for name in (TRACE_ID, *columns):
            if self.kinds.get(name) == "text":
                found |= self.rows_with(name, text)
        return found


def json_number(value: float) -> float | str | None:
    """A number as JSON has it: None for NaN; a text for infinity, and where JavaScript rounds."""
    if value != value:
        return None
    is_rounded = isinstance(value, int) and abs(value) > LARGEST_EXACT
    return str(value) if is_rounded or value in (math.inf, -math.inf) else value
