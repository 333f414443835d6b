"""Scalars and texts as a pandas DataFrame; pandas is imported here only, when a frame is asked
for."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from store.errors import NotFoundError, SchemaError
from store.format.schema import TRACE_ID

if TYPE_CHECKING:
    import pandas

__all__ = ["make_frame"]


def make_frame(
    has_one_value: Mapping[str, bool],
    names: Sequence[str] | None,
    read: Callable[[str], Any],
    index_name: str,
    index: Sequence,
    where: object,
) -> "pandas.DataFrame":
    """A DataFrame of columns that have one value a row; they keep their dtypes.

    But bfloat16 becomes float32, which holds all its values: NumPy does not have it.

    Parameters
    ----------
    has_one_value
        Column -> whether it has one number or one text a row.
    names
        Those asked for; None: all that have one value a row.
    read
        Column -> a tensor or a list of strings.
    index_name, index
        The index; `trace_id` is no column of its own.
    where
        What error messages begin with.

    Raises
    ------
    NotFoundError
        pandas is not installed.
    SchemaError
        A column that is asked for has an array a row.
    """
    for name in names or ():
        if not has_one_value[name]:
            raise SchemaError(
                f"{where}, column {name!r}: a DataFrame has one number or one text a row, "
                "and this column an array; leave it out"
            )
    try:
        import pandas
    except ImportError as error:
        message = "to_pandas: the package pandas is not installed; run pip install pandas"
        raise NotFoundError(message) from error
    if names is None:
        names = [name for name, fits in has_one_value.items() if fits]
    values = {name: _as_array(read(name)) for name in names if name != TRACE_ID}
    labels = pandas.Index(index, name=index_name)
    return pandas.DataFrame(values, index=labels, columns=list(values))


def _as_array(values: Tensor | list[str]) -> np.ndarray | list[str]:
    if isinstance(values, list):
        return values
    on_cpu = values.detach().cpu()
    numbers = on_cpu.float() if on_cpu.dtype == torch.bfloat16 else on_cpu
    return numbers.numpy().copy()
