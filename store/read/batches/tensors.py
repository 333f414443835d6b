"""Tensors of torch and arrays of NumPy: one memory, seen as either, and what a batch is made of.

torch is imported when the first tensor is made; NumPy's numbers of bfloat16 are of ml_dtypes.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, cast

import numpy as np

from store.extras import needs_extra

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Change",
    "ColumnValues",
    "Ragged",
    "as_array",
    "as_numbers",
    "as_tensor",
    "check_arrays",
    "dtype_name",
    "map_columns",
    "namespace_of",
    "ragged_arrays",
]

KINDS = ("torch", "numpy")


class Ragged(NamedTuple):
    """Rows of different lengths, one after the other: row i is `values[offsets[i] : offsets[i +
    1]]`.

    Attributes
    ----------
    values
        `(n_items, *item_shape)`.
    offsets
        int64 `(n_rows + 1,)`, from 0 to n_items. Columns of one axis share it.
    """

    values: "Tensor"
    offsets: "Tensor"

    @property
    def lengths(self) -> "Tensor":
        """Items of every row: int64 `(n_rows,)`."""
        return self.offsets[1:] - self.offsets[:-1]

    def row(self, i: int) -> "Tensor":
        """Row i: `(n, *item_shape)`, a view."""
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def __array__(self, *arguments: object, **options: object) -> NoReturn:
        """Refused: NumPy would take the pair of values and offsets for two rows."""
        raise TypeError(
            "a ragged column is no array: use its .values and .offsets, or batch.padded(name)"
        )


Values: TypeAlias = "Tensor | np.ndarray"
Change: TypeAlias = Callable[[Any], Any]
"""Makes a tensor, or an array, of what stands for one."""
ColumnValues: TypeAlias = "Ragged | Tensor | list[str]"
"""What a batch holds of a column: ragged, fixed, or texts."""


def ragged_arrays(values: np.ndarray, offsets: np.ndarray) -> Ragged:
    """A ragged column of NumPy arrays."""
    return Ragged(cast("Tensor", values), cast("Tensor", offsets))


def check_arrays(arrays: str) -> None:
    """Raise ValueError unless `arrays` is one of `KINDS`, and NotFoundError if torch is not
    installed."""
    if arrays not in KINDS:
        raise ValueError(f'arrays: expected "torch" or "numpy", found {arrays!r:.80}')
    if arrays == "torch":
        with needs_extra("train", 'arrays="torch": '):
            import torch  # noqa: F401


def map_columns(columns: Mapping[str, ColumnValues], change: Change) -> dict[str, ColumnValues]:
    """The columns with every tensor, or what stands for one, changed; texts stay.

    Offsets that columns share change once, and stay shared.
    """
    offsets: dict[int, Tensor] = {}
    mapped: dict[str, ColumnValues] = {}
    for name, values in columns.items():
        if isinstance(values, list):
            mapped[name] = values
        elif isinstance(values, Ragged):
            items, cuts = values
            if id(cuts) not in offsets:
                offsets[id(cuts)] = change(cuts)
            mapped[name] = Ragged(change(items), offsets[id(cuts)])
        else:
            mapped[name] = change(values)
    return mapped


def as_numbers(array: np.ndarray, dtype: str) -> np.ndarray:
    """A stored array (no copy), with the dtype that its column has by name."""
    if dtype != "bfloat16":
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)


def as_tensor(array: np.ndarray) -> "Tensor":
    """A tensor over an array's memory (no copy)."""
    import torch

    if array.dtype.kind == "V":  # bfloat16, of ml_dtypes
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_array(values: "Values") -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    tensor = values.detach().cpu()
    dtype = dtype_name(tensor)
    bits = tensor.view(namespace_of(tensor).uint16) if dtype == "bfloat16" else tensor
    return as_numbers(bits.numpy(), dtype)


def dtype_name(values: "Values") -> str:
    return str(values.dtype).removeprefix("torch.")


def namespace_of(values: "Values | None") -> ModuleType:
    """The library of an array, numpy or torch, by whose names for the same functions it is used."""
    if values is None or isinstance(values, np.ndarray | np.generic):
        return np
    import torch

    return torch
