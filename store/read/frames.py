"""Scalars and texts as a pandas DataFrame; pandas is imported here only, when a frame is asked
for."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from store.errors import NotFoundError, SchemaError

if TYPE_CHECKING:
    import pandas

__all__ = ["frame_columns", "make_frame"]


def frame_columns(
    has_one_value: Mapping[str, bool],
    names: Sequence[str] | None,
    where: str,
) -> list[str]:
    """The columns of a DataFrame.

    Parameters
    ----------
    has_one_value
        Column -> whether it has one number or one text a row.
    names
        Those asked for; None: all that have one value a row.
    where
        What error messages begin with.

    Raises
    ------
    SchemaError
        A column that is asked for has an array a row.
    """
    if names is None:
        return [name for name, fits in has_one_value.items() if fits]
    for name in names:
        if not has_one_value[name]:
            raise SchemaError(
                f"{where}, column {name!r}: a DataFrame has one number or one text a row, "
                "and this column an array; leave it out"
            )
    return list(names)


def make_frame(
    columns: Mapping[str, Any],
    index: Sequence,
    index_name: str,
) -> "pandas.DataFrame":
    """A DataFrame of columns that have one value a row; they keep their dtypes.

    But bfloat16 becomes float32, which holds all its values: NumPy does not have it.

    Raises
    ------
    NotFoundError
        pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        message = "to_pandas: the package pandas is not installed; run pip install pandas"
        raise NotFoundError(message) from error
    values = {}
    for name, value in columns.items():
        values[name] = value if isinstance(value, list) else _as_array(value)
    labels = pandas.Index(index, name=index_name)
    return pandas.DataFrame(values, index=labels, columns=list(columns))


def _as_array(tensor: Tensor) -> np.ndarray:
    """A copy."""
    on_cpu = tensor.detach().cpu()
    numbers = on_cpu.float() if on_cpu.dtype == torch.bfloat16 else on_cpu
    return numbers.numpy().copy()
