"""The columns with one value a row, of a store and of the scores of runs: what a table shows.

Columns of numbers are read once and kept; texts are read for the rows that are shown, and searched
as bytes, block by block, so that a store of millions of rows never becomes a list of strings.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from store.errors import NotFoundError, SchemaError, closest
from store.format.schema import TRACE_ID
from store.read.store import TraceStore
from store.view.maps import find_maps
from store.view.searches import equal_rows, find_rows, row_blocks

__all__ = ["Table", "json_number"]

UTF8_BYTES = 4  # of a character, at most
KEPT_BYTES = 128 * 1024 * 1024  # columns of numbers, and masks of searches
LARGEST_EXACT = 2**53  # whole numbers beyond it are rounded where numbers are floats of 64 bits


class Table:
    """The numbers and the texts of the rows of a store, a committed state of it.

    `scores` are columns beside its own, float32 `(n_rows,)`, NaN for a row without a score, and
    `thresholds` those of their detectors, where they have one. `kinds` says "number" or "text" for
    each column with one value a row, `maps` what each column with two coordinates a row or more is
    a map of. Raises SchemaError for scores of another length, or of a name that the store has.
    """

    def __init__(
        self,
        store: TraceStore,
        scores: Mapping[str, np.ndarray] | None = None,
        thresholds: Mapping[str, float] | None = None,
    ) -> None:
        self.store = store
        self.scores = dict(scores or {})
        self.thresholds = dict(thresholds or {})
        for name, values in self.scores.items():
            if name in store.schema.stored or len(values) != len(store):
                raise SchemaError(
                    f"{store.path}: scores {name!r}: expected a new name and {len(store)} values, "
                    f"found {len(values)}; leave out the run"
                )
        self.kinds: dict[str, str] = {}
        for name, column in store.schema.stored.items():
            if column.is_single:
                self.kinds[name] = "text" if column.is_text else "number"
        self.kinds |= dict.fromkeys(self.scores, "number")
        self.maps = find_maps(store)
        self._kept: OrderedDict[object, np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return len(self.store)

    def kind(self, name: str) -> str:
        """Whether a column has a "number" or a "text" in each row.

        Raises NotFoundError if there is no such column, or it has an array in each row.
        """
        if name not in self.kinds:
            like = closest(name[:200], self.kinds)
            raise NotFoundError(
                f"{self.store.path}: expected a column with one value a row, "
                f"found {name!r:.80}{like}"
            )
        return self.kinds[name]

    def numbers(self, name: str) -> np.ndarray:
        """A column of numbers, `(n_rows,)`, of its dtype; bfloat16 as float32.

        Raises NotFoundError if there is no such column, and SchemaError if it is one of texts.
        """
        if self.kind(name) != "number":
            raise SchemaError(f"column {name!r}: expected numbers, found texts; compare with ~")
        if name in self.scores:
            return self.scores[name]
        return self._once(name, lambda: self._read(name))

    def _read(self, name: str) -> np.ndarray:
        return np.asarray(self.store.column_array(name))

    def points(self, name: str) -> np.ndarray:
        """The first two coordinates of every row on a map: float32 `(n_rows, 2)`, read-only.

        Raises NotFoundError if there is no such map.
        """
        if name not in self.maps:
            like = closest(name[:200], self.maps)
            raise NotFoundError(
                f"{self.store.path}: expected a column of coordinates, found {name!r:.80}{like}; "
                "python -m store project makes one"
            )
        return self._once(("points", name), lambda: self._read_points(name))

    def _read_points(self, name: str) -> np.ndarray:
        with np.errstate(over="ignore"):  # beyond float32 is as far as infinity
            return self._read(name)[:, :2].astype(np.float32)

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

    def rows_with(self, name: str, needle: str, whole: bool = False) -> np.ndarray:
        """Which rows have a text in a column: bool `(n_rows,)`, read-only.

        Upper and lower case are the same unless `whole`, which means that the row's text must be
        the needle and no more. Raises SchemaError for a column of numbers.
        """
        if self.kind(name) != "text":
            raise SchemaError(f"column {name!r}: expected texts, found numbers; compare with ==")
        return self._once((name, needle, whole), lambda: self._search(name, needle, whole))

    def _search(self, name: str, needle: str, whole: bool) -> np.ndarray:
        found = np.zeros(len(self), bool)
        look = equal_rows if whole else find_rows
        for start, stop in row_blocks(self.store.offsets(name)):
            data, offsets = self.store.text_bytes(name, start, stop)
            found[start:stop] = look(data, offsets, needle)
        return found

    def _once(self, key: object, make: Callable[[], np.ndarray]) -> np.ndarray:
        """An array, made unless it is kept; those that were asked for longest ago go."""
        if key not in self._kept:
            self._kept[key] = make()
            self._kept[key].flags.writeable = False
        self._kept.move_to_end(key)
        found = self._kept[key]
        while len(self._kept) > 1 and sum(each.nbytes for each in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
        return found

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
