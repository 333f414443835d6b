"""A trace and the list of ids as they look to a user: names for rows, read when asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, overload

import numpy as np

from store.errors import CorruptError, NotFoundError, closest
from store.format.ids import hash_ids
from store.format.schema import TRACE_ID, Schema
from store.read.batches.batch import Batch
from store.read.row_keys import ManyRows, Rows, is_many
from store.read.row_reader import RowReader
from store.traces.notebook import trace_html

if TYPE_CHECKING:
    import torch

__all__ = ["Trace", "TraceIds"]

Found = TypeVar("Found")
_IDS_BLOCK = 4096  # ids read at once when iterating
_COMPARED_IDS = 20_000  # enough to find a misspelled id, at any size of a store


class Store(Protocol):
    """What a trace and the ids ask of a `TraceStore`."""

    path: Path
    schema: Schema
    reader: RowReader

    @property
    def location(self) -> str: ...

    @property
    def ids(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def read_arrays(self, rows: Rows, columns: Sequence[str] | None) -> Batch: ...

    def read_value(self, name: str, row: int) -> "np.ndarray | torch.Tensor | str": ...


class Trace(Mapping[str, "np.ndarray | torch.Tensor | str"]):
    """One row, read when asked for: `trace[column]`.

    A ragged column is an array `(n, *item_shape)`, a fixed one `item_shape` or a NumPy scalar, a
    utf8 column a string. Arrays are read-only; where one shard holds the row they are views of the
    mapped file, no copy. NumPy has no bfloat16: an array of it comes as a torch tensor (a copy), a
    scalar as one of ml_dtypes.
    """

    def __init__(self, store: Store, row: int) -> None:
        self.store = store
        self.row = row

    @property
    def id(self) -> str:
        return self.store.ids[self.row]

    def __getitem__(self, name: str) -> "np.ndarray | torch.Tensor | str":
        return self.store.read_value(name, self.row)

    def __contains__(self, name: object) -> bool:
        return name in self.store.schema.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self.store.schema.columns)

    def __len__(self) -> int:
        return len(self.store.schema.columns)

    def __repr__(self) -> str:
        return f"Trace({self.id!r}, row {self.row} of {self.store.location!r})"

    def _repr_html_(self) -> str:
        """For notebooks: its numbers, and its tokens shaded by their log-probabilities."""
        title = f"{self.id}, row {self.row} of {self.store.location}"
        return trace_html(title, self, self.store.schema.columns)


class TraceIds(Sequence[str]):
    """The trace ids by row, read from the store when asked for; never a list of a million strings.

    Looking up the row of an id takes the same time in a store of any size.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store)

    @overload
    def __getitem__(self, key: int) -> str: ...

    @overload
    def __getitem__(self, key: ManyRows) -> list[str]: ...

    def __getitem__(self, key: int | ManyRows) -> str | list[str]:
        if is_many(key):
            return self._store.read_arrays(key, [TRACE_ID]).texts(TRACE_ID)
        return str(self._store.read_value(TRACE_ID, range(len(self))[cast("int", key)]))

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
        rows = self._store.reader.id_table.rows_with_hash(hash_ids([trace_id])[0])
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
        reader = self._store.reader
        try:
            return reader.id_table.following(look)
        except CorruptError as error:
            raise reader.explain(error) from error

    def _find_all(self, trace_ids: Sequence[str]) -> np.ndarray:
        rows = self._store.reader.id_table.rows_of_hashes(hash_ids(trace_ids))
        places = np.flatnonzero((rows >= 0) & (rows < len(self)))
        there = self._store.read_arrays(rows[places], [TRACE_ID]).texts(TRACE_ID)
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
                f"{self._store.location}: expected one of its {len(self)} trace ids, "
                f"found {trace_id!r:.200}{self.like(str(trace_id))}"
            )
        return row

    def like(self, trace_id: str) -> str:
        """The ids most like one that is not here, as the tail of an error message."""
        return closest(trace_id, self[:_COMPARED_IDS])

    def __repr__(self) -> str:
        return f"TraceIds({len(self)} ids)"
