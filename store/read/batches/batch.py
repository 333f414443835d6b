"""What a read gives: rows packed into arrays, each ragged column as values and offsets.

The arrays are torch tensors, or, where a reader asks for `arrays="numpy"`, NumPy's; then torch is
never imported, and numbers of bfloat16 are of ml_dtypes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import numpy as np

from store.errors import NotFoundError, SchemaError, closest
from store.format.schema import TRACE_ID
from store.format.values import without_bfloat16
from store.read.batches.tabular import (
    Tabular,
    Values,
    choose_single,
    column_lines,
    shape_text,
)
from store.read.batches.tensors import (
    Change,
    ColumnValues,
    Ragged,
    as_array,
    as_tensor,
    dtype_name,
    map_columns,
    namespace_of,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Batch", "Row", "as_numpy", "as_torch"]


Kind = TypeVar("Kind")


class Row(dict):
    """One row: column name -> tensor `(n, *item_shape)` or `item_shape`, or string.

    Attributes
    ----------
    number
        The row's number in the store.
    ragged
        Names of the ragged columns.
    """

    def __init__(
        self, values: "dict[str, Tensor | str]", number: int, ragged: frozenset[str]
    ) -> None:
        super().__init__(values)
        self.number = number
        self.ragged = ragged

    def __reduce__(self) -> tuple:
        return Row, (dict(self), self.number, self.ragged)


class Batch(Tabular):
    """Packed rows, in the order they were asked for.

    `batch[name]` is a `Ragged`, a tensor `(n_rows, *item_shape)` for a fixed column, or a list of
    strings. `batch[i]` with an integer is row i as a `Row` of views, -1 for the last.

    Attributes
    ----------
    rows
        int64 `(n_rows,)`: the row numbers in the store.
    columns
        Name -> value, as `batch[name]` gives it.
    positions
        Of a batch of tokens, their places in their rows, int64 `(n_rows,)`; else None.
    """

    def __init__(
        self,
        rows: "Tensor | np.ndarray",
        columns: "Mapping[str, ColumnValues | np.ndarray]",
        positions: "Tensor | np.ndarray | None" = None,
    ) -> None:
        # annotated as tensors: NumPy's arrays are used alike
        self.rows = cast("Tensor", rows)
        self.columns = cast("dict[str, ColumnValues]", columns)
        self.positions = cast("Tensor | None", positions)

    @property
    def arrays(self) -> str:
        """What its arrays are: "torch" or "numpy"."""
        return "numpy" if isinstance(self.rows, np.ndarray) else "torch"

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> "Batch":
        """Pack rows that were read one by one; raises SchemaError if they differ in a column."""
        columns: dict[str, Any] = {}
        for name in dict.fromkeys(name for row in rows for name in row):
            _check_alike(name, rows)
            values = [row[name] for row in rows]
            if isinstance(values[0], str):
                columns[name] = values
                continue
            xp = namespace_of(values[0])
            if name in rows[0].ragged:
                lengths = xp.asarray([0, *map(len, values)], dtype=xp.int64)
                columns[name] = Ragged(xp.concatenate(values), xp.cumsum(lengths, 0))
            else:
                columns[name] = xp.stack(values)
        parts = (part for row in rows for part in row.values() if not isinstance(part, str))
        xp = namespace_of(next(parts, None))
        return cls(xp.asarray([row.number for row in rows], dtype=xp.int64), columns)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, key: int) -> Row: ...

    @overload
    def __getitem__(self, key: str) -> "ColumnValues": ...

    def __getitem__(self, key: str | int) -> "ColumnValues | Row":
        if isinstance(key, int | np.integer):
            return self._row(int(key))
        if not isinstance(key, str) or key not in self.columns:
            like = closest(str(key), self.columns)
            raise NotFoundError(
                f"batch: expected a column of {list(self.columns)}, found {key!r:.200}{like}"
            )
        return self.columns[key]

    def ragged(self, name: str) -> Ragged:
        """A ragged column; TypeError if it is of another kind."""
        return self._column(name, Ragged, "a ragged column")

    def fixed(self, name: str) -> "Tensor":
        """A fixed column, `(n_rows, *item_shape)`; TypeError if it is of another kind."""
        return self._column(name, type(self.rows), "a fixed column")

    def texts(self, name: str) -> list[str]:
        """A column of strings, one a row; TypeError if it is of another kind."""
        return self._column(name, list, "a column of texts")

    def numbers(self, name: str) -> np.ndarray:
        """A column's values as an array of NumPy's own dtypes: bfloat16 as float32, a copy."""
        values = self[name]
        if isinstance(values, list):
            raise TypeError(f"batch, column {name!r}: expected numbers, found texts")
        return without_bfloat16(as_array(values.values if isinstance(values, Ragged) else values))

    def float32(self, name: str) -> np.ndarray:
        """A column's values as a float32 array; a copy, unless they are of it."""
        return self.numbers(name).astype(np.float32, copy=False)

    def _column(self, name: str, kind: type[Kind], expected: str) -> Kind:
        values = self[name]
        if not isinstance(values, kind):
            dtype, shape = _describe(values)
            found = f"{shape} of {dtype}" if shape else dtype
            raise TypeError(f"batch, column {name!r}: expected {expected}, found {found}")
        return values

    def _row(self, i: int) -> Row:
        if not -len(self) <= i < len(self):
            first = 0 if i > 0 else -len(self)
            raise IndexError(
                f"batch: expected a position from {first} to {len(self) - 1}, found {i}"
            )
        i %= len(self)
        row: dict[str, Any] = {}
        ragged = []
        for name, values in self.columns.items():
            if isinstance(values, Ragged):
                row[name] = values.row(i)
                ragged.append(name)
            else:
                row[name] = values[i]
        return Row(row, int(self.rows[i]), frozenset(ragged))

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[Row]:
        return (self._row(i) for i in range(len(self)))

    def keys(self) -> Sequence[str]:
        return list(self.columns)

    def padded(self, name: str, value: float = 0) -> "tuple[Tensor, Tensor]":
        """A ragged column as a rectangle, on the device where it is, with its mask.

        Returns
        -------
        values, mask
            `(n_rows, longest, *item_shape)`, a copy, with `value` in the places after a row's end;
            and bool `(n_rows, longest)`, True where there is an item.
        """
        values, _ = ragged = self.ragged(name)
        lengths = ragged.lengths
        longest = int(lengths.max()) if len(self) else 0
        xp = namespace_of(values)
        on = {"device": values.device}
        mask = xp.arange(longest, **on) < lengths[:, None]
        padded = xp.full((len(self), longest, *values.shape[1:]), value, dtype=values.dtype, **on)
        padded[mask] = values
        return padded, mask

    def _table(self, columns: Sequence[str] | None) -> list[tuple[str, Values]]:
        for name in columns or ():
            self[name]  # raises
        single = (name for name, values in self.columns.items() if _is_single(values))
        names = choose_single(columns, single, "batch")
        if TRACE_ID in self.columns:
            index: tuple[str, Values] = (TRACE_ID, self.texts(TRACE_ID))
        else:
            index = ("row", as_array(self.rows))
        return [index, *((name, self._values(name)) for name in names)]

    def _values(self, name: str) -> Values:
        values = self[name]
        return values if isinstance(values, list) else self.numbers(name)

    def to(self, device: "torch.device | str", non_blocking: bool = False) -> "Batch":
        """The batch with its tensors on a device; `rows` and strings stay."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self, device: str | None = None) -> "Batch":
        """The batch in page-locked memory, for torch's DataLoader; `rows` and strings stay."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: "Callable[[Tensor], Tensor]") -> "Batch":
        if self.arrays == "numpy":
            raise TypeError('a batch of NumPy arrays has no device: read with arrays="torch"')
        return Batch(self.rows, map_columns(self.columns, change), self.positions)

    def __repr__(self) -> str:
        described = {name: _describe(values) for name, values in self.columns.items()}
        return column_lines(f"Batch: {len(self):,} rows", described)


def _check_alike(name: str, rows: Sequence[Row]) -> None:
    """Raise SchemaError unless all rows have the same kind of value in a column."""
    kinds = [_kind(row, name) for row in rows]
    other = next((kind for kind in kinds if kind != kinds[0]), None)
    if other is not None:
        others = [row.number for row, kind in zip(rows, kinds, strict=True) if kind == other]
        raise SchemaError(
            f"batch, column {name!r}: expected one kind of value in all rows, found {kinds[0]} in "
            f"row {rows[0].number}, {other} in rows {others[:5]}; read the same columns of all"
        )


def _kind(row: Row, name: str) -> str:
    """What a row has in a column: what must be equal to be packed."""
    value = row.get(name)
    if value is None or isinstance(value, str):
        return "none" if value is None else "a text"
    if name in row.ragged:
        return f"ragged {dtype_name(value)} {tuple(value.shape[1:])}"
    return f"{dtype_name(value)} {tuple(value.shape)}"


def _is_single(values: "ColumnValues") -> bool:
    return isinstance(values, list) or (not isinstance(values, Ragged) and values.ndim == 1)


def _describe(values: "ColumnValues") -> tuple[str, str]:
    """Dtype and shape of a column, for `repr`; of a ragged one, the shape of its values."""
    if isinstance(values, list):
        return "utf8", ""
    tensor = values.values if isinstance(values, Ragged) else values
    shape = shape_text(tensor.shape[0], tensor.shape[1:])
    return dtype_name(tensor), f"{shape} ragged" if isinstance(values, Ragged) else shape


def as_torch(batch: Batch) -> Batch:
    """A batch of NumPy arrays as one of tensors over the same memory."""
    return _converted(batch, as_tensor)


def as_numpy(batch: Batch) -> Batch:
    """A batch of tensors as one of NumPy arrays, without a copy of those in memory."""
    return batch if batch.arrays == "numpy" else _converted(batch, as_array)


def _converted(batch: Batch, change: Change) -> Batch:
    positions = None if batch.positions is None else change(batch.positions)
    return Batch(change(batch.rows), map_columns(batch.columns, change), positions)
