"""The columns with one value a row, of a store and of the scores of runs: what a table shows."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.format.schema import TRACE_ID
from store.read.filters.single_values import SingleValues
from store.read.store import TraceStore
from store.view.histograms import histogram
from store.view.pieces import StoredPieces

__all__ = ["CELL_CHARACTERS", "LISTED", "N_GROUPS", "SEARCHED", "Table"]
__all__ += ["array_headers", "json_number", "json_object"]

CELL_CHARACTERS = 300  # of a text in a table
UTF8_BYTES = 4  # of a character, at most
SEARCHED = ("question", "answer", "references")
N_GROUPS = 200  # texts that are counted one by one
LISTED = ("trace_id", "question", "answer", "label")  # of a trace in a list
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
        """The texts of some rows; raises SchemaError for a column of numbers."""
        if self.kind(name) != "text":
            raise SchemaError(f"column {name!r}: expected texts, found numbers")
        return self.store.read_arrays(rows, [name]).texts(name)

    def cells(self, names: Iterable[str], rows: np.ndarray) -> dict[str, list]:
        """Columns in some rows, as JSON has them: beginnings of texts, numbers, None for NaN."""
        return {name: self._cells(name, rows) for name in names}

    def _cells(self, name: str, rows: np.ndarray) -> list:
        if self.kind(name) == "text":
            data, offsets = self.store.text_bytes(name, rows, UTF8_BYTES * CELL_CHARACTERS)
            parts = [data[start:stop] for start, stop in pairwise(offsets.tolist())]
            # the last character may be cut
            return [part.decode("utf-8", "ignore")[:CELL_CHARACTERS] for part in parts]
        return [json_number(value) for value in self.numbers(name)[rows].tolist()]

    @property
    def has_labels(self) -> bool:
        return self.kinds.get("label") == "number"

    def value_counts(self, name: str, rows: np.ndarray) -> dict[str, Any]:
        """How often some rows have which values, for each label, as JSON has it."""
        groups = {"all": np.ones(len(rows), bool)}
        if self.has_labels:
            labels = self.numbers("label")[rows]
            groups = {"0": labels == 0, "1": labels == 1, "none": (labels != 0) & (labels != 1)}
        found = histogram(self.numbers(name)[rows], list(groups.values()))
        counts = dict(zip(groups, found.counts.tolist(), strict=True))
        edges = [json_number(edge) for edge in found.edges.tolist()]
        return {"edges": edges, "counts": counts, "missing": found.n_missing}

    def find(self, text: str) -> np.ndarray:
        """Which rows have a text in a column of `SEARCHED`, or are called so: bool `(n_rows,)`."""
        row = self.store.ids.find(text)
        found = np.zeros(len(self), bool)
        if row is not None:
            found[row] = True
            return found
        for name in (TRACE_ID, *SEARCHED):
            if self.kinds.get(name) == "text":
                found |= self.rows_with(name, text)
        return found


def json_number(value: float) -> float | str | None:
    """A number as JSON has it: None for NaN; a text for infinity, and where JavaScript rounds.

    A truth value is 0 or 1, as labels, classes and bars are.
    """
    if value != value:
        return None
    if isinstance(value, bool):
        return int(value)
    is_rounded = isinstance(value, int) and abs(value) > LARGEST_EXACT
    return str(value) if is_rounded or value in (math.inf, -math.inf) else value


def json_object(found: Any) -> dict[str, Any] | None:
    """A named tuple as JSON has it, with lists in place of arrays; None for None."""
    if found is None:
        return None
    values = found._asdict().items()
    return {name: _as_list(one) if isinstance(one, np.ndarray) else one for name, one in values}


def _as_list(values: np.ndarray) -> list:
    """Integers of any shape, or floats `(n,)`, as JSON has them."""
    return [*map(json_number, values.tolist())] if values.dtype.kind == "f" else values.tolist()


def array_headers(values: np.ndarray) -> dict[str, str]:
    """The dtype and the shape of an array."""
    return {"X-Dtype": values.dtype.name, "X-Shape": ",".join(map(str, values.shape))}
