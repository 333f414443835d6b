"""The columns of a store with one value a row, as filters and tables ask for them.

Columns of numbers are read once and kept; texts are searched as bytes, block by block, so that a
store of millions of rows never becomes a list of strings.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from store.errors import NotFoundError, SchemaError, closest
from store.format.schema import Schema
from store.read.filters.text_search import count_characters, equal_rows, find_rows, row_blocks
from store.traces.maps import find_maps
from store.traces.notes import Note, notes_path, read_notes

__all__ = ["NOTED", "SingleValues"]

# what was noted beside the store: name -> "number", or "noted" for texts
NOTED = {"tag": "noted", "note": "noted", "noted": "number"}
KEPT_BYTES = 128 * 1024 * 1024  # columns of numbers, and masks of searches


class Ids(Protocol):
    """What is asked of its ids."""

    def find_all(self, trace_ids: Sequence[str]) -> np.ndarray: ...


class Store(Protocol):
    """What is asked of a `TraceStore`."""

    path: Path
    schema: Schema
    provenance: dict[str, Any]

    @property
    def parts(self) -> Sequence["Store"]: ...

    @property
    def location(self) -> str: ...

    @property
    def ids(self) -> Ids: ...

    def __len__(self) -> int: ...

    def column_array(self, name: str) -> np.ndarray | list[str]: ...

    def offsets(self, axis: str) -> np.ndarray: ...

    def text_bytes(self, name: str, rows: slice) -> tuple[bytes, np.ndarray]: ...


class SingleValues:
    """The numbers and the texts of the rows of a store.

    `added` are columns of numbers `(n_rows,)` beside its own. `kinds` says "number" or "text" for
    each column with one value a row, `counts` has the axis of each name that counts a row's items,
    such as n_tokens, `ragged` are the columns with another number of items in each row, and `maps`
    says what each column with two coordinates a row or more is a map of. Threads may share it.
    """

    def __init__(self, store: Store, added: Mapping[str, np.ndarray] | None = None) -> None:
        self.store = store
        self._added = dict(added or {})
        stored = store.schema.stored
        self.kinds: dict[str, str] = {}
        for name, column in stored.items():
            if column.is_single:
                self.kinds[name] = "text" if column.is_text else "number"
        self.kinds |= dict.fromkeys(self._added, "number")
        self.ragged = {name: column.axis for name, column in stored.items() if column.axis}
        counts = {f"n_{axis}": axis for axis in self.ragged.values()}
        self.counts = {name: axis for name, axis in counts.items() if name not in self.kinds}
        self.maps = find_maps(store.schema, store.provenance)
        self._kept: OrderedDict[object, np.ndarray] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.store)

    def kind(self, name: str) -> str:
        """Whether a column has a "number" or a "text" in each row.

        Raises NotFoundError if there is no such column, or it has an array in each row.
        """
        if name not in self.kinds:
            like = closest(name[:200], self.kinds)
            raise NotFoundError(
                f"{self.store.location}: expected a column with one value a row, "
                f"found {name!r:.80}{like}"
            )
        return self.kinds[name]

    def numbers(self, name: str) -> np.ndarray:
        """A column of numbers, `(n_rows,)`, of its dtype; bfloat16 as float32.

        Raises NotFoundError if there is no such column, and SchemaError if it is one of texts.
        """
        if name in self.counts:
            return self.lengths(self.counts[name])
        if self.is_noted(name):
            return self._of_notes(lambda note: float(note.label or "nan"), np.float32)
        if self.kind(name) != "number":
            raise SchemaError(f"column {name!r}: expected numbers, found texts; compare with ~")
        if name in self._added:
            return self._added[name]
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
                f"{self.store.location}: expected a column of coordinates, found "
                f"{name!r:.80}{like}; python -m store project makes one"
            )
        return self._once(("points", name), lambda: self._read_points(name))

    def _read_points(self, name: str) -> np.ndarray:
        with np.errstate(over="ignore"):  # beyond float32 is as far as infinity
            return self._read(name)[:, :2].astype(np.float32)

    def lengths(self, name: str) -> np.ndarray:
        """Characters of a text, or items of a ragged column or of an axis, in every row.

        int64 `(n_rows,)`, read-only.
        """
        if self.kinds.get(name) == "text":
            return self._once(("length", name), lambda: self._count_characters(name))
        axis = self.ragged.get(name, name)
        return self._once(("length", axis), lambda: np.diff(self.store.offsets(axis)))

    def _count_characters(self, name: str) -> np.ndarray:
        counts = np.zeros(len(self), np.int64)
        for start, stop in row_blocks(self.store.offsets(name)):
            counts[start:stop] = count_characters(*self.store.text_bytes(name, slice(start, stop)))
        return counts

    def rows_with(self, name: str, needle: str, whole: bool = False) -> np.ndarray:
        """Which rows have a text in a column: bool `(n_rows,)`, read-only.

        Upper and lower case are the same unless `whole`, which means that the row's text must be
        the needle and no more. Raises SchemaError for a column of numbers.
        """
        if self.is_noted(name):
            return self._of_notes(lambda note: _has_text(note, name, needle, whole), bool)
        if self.kind(name) != "text":
            raise SchemaError(f"column {name!r}: expected texts, found numbers; compare with ==")
        return self._once((name, needle, whole), lambda: self._search(name, needle, whole))

    def is_noted(self, name: str) -> bool:
        """Whether a name means what was noted, and no column."""
        return name in NOTED and name not in self.store.schema.stored and name not in self._added

    def _of_notes(self, value_of: Callable[[Note], float], dtype: DTypeLike) -> np.ndarray:
        """A value of the note of each row, `(n_rows,)`; nothing is kept: notes come and go."""
        values = np.full(len(self), value_of(Note()), dtype)
        first = 0
        for part in self.store.parts:  # each has notes of its own, by its own ids
            notes = read_notes(notes_path(part.path))
            rows = part.ids.find_all([*notes])
            is_here = rows >= 0
            noted = np.array([*map(value_of, notes.values())], dtype)
            values[first + rows[is_here]] = noted[is_here]
            first += len(part)
        return values

    def _search(self, name: str, needle: str, whole: bool) -> np.ndarray:
        found = np.zeros(len(self), bool)
        look = equal_rows if whole else find_rows
        for start, stop in row_blocks(self.store.offsets(name)):
            data, offsets = self.store.text_bytes(name, slice(start, stop))
            found[start:stop] = look(data, offsets, needle)
        return found

    def _once(self, key: object, make: Callable[[], np.ndarray]) -> np.ndarray:
        """An array, made unless it is kept; those that were asked for longest ago go."""
        found = self._kept.get(key)
        if found is None:
            found = make()
            found.flags.writeable = False
        with self._lock:  # not while it is made: that may wait for a server
            self._kept[key] = found
            self._kept.move_to_end(key)
            kept = self._kept.values()
            while len(kept) > 1 and sum(each.nbytes for each in kept) > KEPT_BYTES:
                self._kept.popitem(last=False)
        return found


def _has_text(note: Note, name: str, needle: str, whole: bool) -> bool:
    """Whether a note, or one of its tags, contains or is a text."""
    texts = [note.note] if name == "note" else note.tags.split() or [""]
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)])
    look = equal_rows if whole else find_rows
    return bool(look(b"".join(encoded), offsets, needle).any())
