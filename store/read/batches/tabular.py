"""What a store and a batch show of their columns: shapes, and a pandas DataFrame or an Arrow table
of scalars and texts. pandas and pyarrow are imported here only, when one is asked for."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np

from store.errors import SchemaError
from store.extras import needs_extra
from store.format.schema import TRACE_ID
from store.reports import aligned

if TYPE_CHECKING:
    import pandas
    import pyarrow

__all__ = ["Tabular", "Values", "choose_single", "column_lines", "shape_text"]

Values: TypeAlias = np.ndarray | list[str]
"""One number or one text a row."""


class Tabular(ABC):
    """What has columns with one number or one text a row."""

    @abstractmethod
    def _table(self, columns: Sequence[str] | None) -> list[tuple[str, Values]]:
        """The index and those columns, with their names; arrays may be views. See `to_pandas`."""

    def __array__(self, *arguments: object, **options: object) -> NoReturn:
        """Refused: NumPy and pandas would read all of it as objects, value by value."""
        raise TypeError(
            f"a {type(self).__name__} is no array: use to_pandas() or to_arrow() for scalars and "
            "texts, or take one column"
        )

    def to_pandas(self, columns: Sequence[str] | None = None) -> "pandas.DataFrame":
        """The columns with one number or one text a row as a DataFrame.

        Parameters
        ----------
        columns
            Names; all columns of that kind if None.

        Returns
        -------
        A DataFrame of `n_rows` rows, indexed by `trace_id`; of a batch without it, by the row's
        number in the store, as `row`. Each column keeps its dtype, but bfloat16, which NumPy does
        not have, becomes float32, which holds all its values.

        Raises
        ------
        NotFoundError
            There is no such column, or pandas is not installed.
        SchemaError
            A named column is ragged, or has an array a row.
        """
        (index_name, index), *values = self._table(columns)
        with needs_extra("frames", "to_pandas: "):
            import pandas
        labels = pandas.Index(index, name=index_name, copy=True)
        names = [name for name, _ in values]
        return pandas.DataFrame(dict(values), index=labels, columns=names, copy=True)

    def to_arrow(self, columns: Sequence[str] | None = None) -> "pyarrow.Table":
        """The columns with one number or one text a row as an Arrow table; see `to_pandas`.

        Its first column is what `to_pandas` has as index. Texts are `large_string`, since together
        they may be more than 2 GB. NaN stays NaN: nothing is null.
        """
        names, values = zip(*self._table(columns), strict=True)
        with needs_extra("frames", "to_arrow: "):
            import pyarrow
        text = pyarrow.large_string()
        arrays = [
            pyarrow.array(part, text) if isinstance(part, list) else pyarrow.array(part.copy())
            for part in values
        ]
        return pyarrow.Table.from_arrays(arrays, names=names)


def choose_single(names: Sequence[str] | None, single: Iterable[str], where: object) -> list[str]:
    """The columns of a table, each once, of those with one value a row; `trace_id` is its index."""
    fitting = list(single)
    for name in names or ():
        if name not in fitting:
            raise SchemaError(
                f"{where}, column {name!r}: a table has one number or one text a row, and this "
                "column an array; leave it out"
            )
    return [name for name in dict.fromkeys(fitting if names is None else names) if name != TRACE_ID]


def shape_text(first: int | str, item_shape: Sequence[int], axis_names: Sequence[str] = ()) -> str:
    """A shape as Python writes it, e.g. '(tokens, layers=32, hidden=4096)' or '(17,)'."""
    if not item_shape:
        return f"({first},)"
    sizes = [str(size) for size in item_shape]
    if axis_names:
        sizes = [f"{name}={size}" for name, size in zip(axis_names, sizes, strict=True)]
    return f"({first}, {', '.join(sizes)})"


def column_lines(headline: str, columns: Mapping[str, tuple[str, str]]) -> str:
    """A headline, and a line for each column with its dtype and shape, for `repr`."""
    lines = aligned([(name, *text) for name, text in columns.items()])
    return "\n".join([headline, *(f"  {line}" for line in lines)])
