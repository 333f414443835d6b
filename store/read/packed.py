"""What a read gives before anyone asks for tensors: rows packed into NumPy arrays.

Nothing here imports torch, which takes seconds and 200 MB: who only looks at numbers and texts
waits for neither.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from store.format.halves import to_float32

__all__ = ["PackedColumn", "PackedRows"]


class PackedColumn(NamedTuple):
    """A column of some rows, one after the other.

    Attributes
    ----------
    values
        As stored, `(n_items, *item_shape)`; bfloat16 as its bits, uint16, of which
        `values.view(ml_dtypes.bfloat16)` are the numbers.
    offsets
        int64 `(n_rows + 1,)`: row i is `values[offsets[i] : offsets[i + 1]]`. Columns of one axis
        share it. None for a fixed column, which has an item a row.
    dtype
        The column's, by its name in the schema.
    """

    values: np.ndarray
    offsets: np.ndarray | None
    dtype: str

    def row(self, i: int) -> np.ndarray:
        """Row i of a ragged column, `(n, *item_shape)`, as `numbers` gives it."""
        if self.offsets is None:
            raise TypeError("expected a ragged column, found a fixed one")
        values = self.values[self.offsets[i] : self.offsets[i + 1]]
        return self._replace(values=values).numbers()

    def numbers(self) -> np.ndarray:
        """The values as NumPy has them: bfloat16 as float32, a copy; else no copy."""
        return self.float32() if self.dtype == "bfloat16" else self.values

    def float32(self) -> np.ndarray:
        """The values as float32; a copy, unless they are of it."""
        return to_float32(self.values, self.dtype)


@dataclass(frozen=True)
class PackedRows:
    """Rows in the order they were asked for.

    Attributes
    ----------
    rows
        int64 `(n_rows,)`: their numbers in the store.
    columns
        Name -> packed numbers, or a list of strings.
    """

    rows: np.ndarray
    columns: dict[str, PackedColumn | list[str]]

    def packed(self, name: str) -> PackedColumn:
        """A column of numbers; TypeError if it holds texts."""
        values = self.columns[name]
        if isinstance(values, list):
            raise TypeError(f"column {name!r}: expected numbers, found texts")
        return values

    def texts(self, name: str) -> list[str]:
        """A column's texts, one a row; TypeError if it holds numbers."""
        values = self.columns[name]
        if not isinstance(values, list):
            raise TypeError(f"column {name!r}: expected texts, found {values.dtype}")
        return values
