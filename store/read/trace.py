"""A trace and the list of ids as they look to a user: names for rows of a store, which read nothing
until asked."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from store.format.schema import TRACE_ID

if TYPE_CHECKING:
    from store.read.store import TraceStore

__all__ = ["Trace", "TraceIds"]

_IDS_BLOCK = 4096  # ids read at once when iterating


class Trace(Mapping):
    """One row, read when asked for: `trace[column]`.

    A ragged column is an array `(n, *item_shape)`, a fixed one `item_shape` or a NumPy scalar, a
    utf8 column a string. Arrays are read-only; where one shard holds the row they are views of the
    mapped file, no copy. bfloat16 comes as a torch tensor (a copy), since NumPy has no such dtype.
    """

    def __init__(self, store: "TraceStore", row: int) -> None:
        self.store, self.row = store, row

    @property
    def id(self) -> str:
        return self.store.read_value(TRACE_ID, self.row)

    def __getitem__(self, name: str) -> np.ndarray | torch.Tensor | str:
        return self.store.read_value(name, self.row)

    def __contains__(self, name: object) -> bool:
        return name in self.store.schema.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self.store.schema.columns)

    def __len__(self) -> int:
        return len(self.store.schema.columns)

    def __repr__(self) -> str:
        return f"Trace({self.id!r}, row {self.row} of {str(self.store.path)!r})"


class TraceIds(Sequence):
    """The trace ids by row, read from the store when asked for; never a list of a million
    strings."""

    def __init__(self, store: "TraceStore") -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, key: int | slice) -> str | list[str]:
        if isinstance(key, slice):
            return self._store.read(range(len(self))[key], [TRACE_ID])[TRACE_ID]
        return self._store.read_value(TRACE_ID, range(len(self))[key])

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _IDS_BLOCK):
            yield from self[start : start + _IDS_BLOCK]

    def __contains__(self, trace_id: object) -> bool:
        return trace_id in self._store

    def __repr__(self) -> str:
        return f"TraceIds({len(self)} ids)"
