"""The ids of the rows as a user sees them: a list, read when asked for."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar, cast, overload

import numpy as np

from store.errors import NotFoundError, closest
from store.format.ids import hash_ids
from store.format.schema import TRACE_ID
from store.format.values import decode_texts
from store.read.plan import ManyRows, is_many, row_numbers
from store.read.row_reader import RowReader

__all__ = ["TraceIds"]

Found = TypeVar("Found")
_IDS_BLOCK = 4096  # ids read at once when iterating
_COMPARED_IDS = 20_000  # enough to find a misspelled id, at any size of a store


class TraceIds(Sequence[str]):
    """The trace ids by row, read from the store when asked for; never a list of a million strings.

    Looking up the row of an id takes the same time in a store of any size.
    """

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return self._reader.manifest.n_rows

    @overload
    def __getitem__(self, key: int) -> str: ...

    @overload
    def __getitem__(self, key: ManyRows) -> list[str]: ...

    def __getitem__(self, key: int | ManyRows) -> str | list[str]:
        if is_many(key):
            return self._texts(row_numbers(key, len(self), self.row_of, self._reader.source.where))
        return str(self._reader.value(TRACE_ID, range(len(self))[cast("int", key)]))

    def _texts(self, rows: np.ndarray) -> list[str]:
        items, offsets = self._reader.text_items(TRACE_ID, rows)
        return decode_texts(items, offsets, f"column {TRACE_ID!r}")

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _IDS_BLOCK):
            yield from self[start : start + _IDS_BLOCK]

    def __contains__(self, trace_id: object) -> bool:
        return self.find(trace_id) is not None

    def find(self, trace_id: object) -> int | None:
        """The row of a trace, or None; raises CorruptError."""
        if not isinstance(trace_id, str) or not len(self):  # hashing takes 3 us
            return None
        return self._look(partial(self._find, trace_id))

    def _find(self, trace_id: str) -> int | None:
        rows = self._reader.id_table.rows_with_hash(hash_ids([trace_id])[0])
        return next((row for row in rows if self[row] == trace_id), None)

    def find_all(self, trace_ids: Sequence[str]) -> np.ndarray:
        """The rows of many traces at once: int64 `(n,)`, -1 for those that are not here.

        Raises
        ------
        CorruptError
            The table of ids is damaged.
        """
        return self._look(partial(self._find_all, trace_ids))

    def _look(self, look: Callable[[], Found]) -> Found:
        with self._reader.explained():
            return self._reader.id_table.following(look)

    def _find_all(self, trace_ids: Sequence[str]) -> np.ndarray:
        rows = self._reader.id_table.rows_of_hashes(hash_ids(trace_ids))
        places = np.flatnonzero((rows >= 0) & (rows < len(self)))
        there = self._texts(rows[places])
        is_same = np.zeros(len(rows), bool)
        is_same[places] = [
            trace_ids[place] == found for place, found in zip(places.tolist(), there, strict=True)
        ]
        for place in np.flatnonzero((rows >= 0) & ~is_same).tolist():  # ids that share a hash
            row = self._find(trace_ids[place])
            rows[place] = -1 if row is None else row
        return rows

    def own(self) -> list[str]:
        """All ids as the store of each trace has them, without a name of the store before them."""
        return list(self)

    def row_of(self, trace_id: str) -> int:
        """The row of a trace; see `TraceStore.row_of`."""
        row = self.find(trace_id)
        if row is None:
            raise NotFoundError(
                f"{self._reader.source.where}: expected one of its {len(self)} trace ids, "
                f"found {trace_id!r:.200}{self.like(str(trace_id))}"
            )
        return row

    def like(self, trace_id: str) -> str:
        """The ids most like one that is not here, as the tail of an error message."""
        return closest(trace_id, self[:_COMPARED_IDS])

    def __repr__(self) -> str:
        return f"TraceIds({len(self)} ids)"
