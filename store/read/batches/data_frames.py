"""Scalars and texts as a pandas DataFrame or an Arrow table; pandas and pyarrow are imported here
only, when one is asked for."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from store.errors import NotFoundError, SchemaError
from store.format.schema import TRACE_ID

if TYPE_CHECKING:
    import pandas
    import pyarrow

__all__ = ["TableSource", "Tabular"]


@dataclass(frozen=True)
class TableSource:
    """What a table is made of: which columns have one number or one text a row, what reads one (an
    array may be a view of a file), the index (`trace_id` is no column of its own), and what error
    messages begin with.
    """

    has_one_value: Mapping[str, bool]
    read: Callable[[str], np.ndarray | list[str]]
    index_name: str
    index: np.ndarray | list[str]
    where: object


class Tabular(ABC):
    """What has columns with one number or one text a row."""

    @abstractmethod
    def _table_source(self, columns: Sequence[str] | None) -> TableSource:
        """What a table is made of; raises NotFoundError if there is no such column."""

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
        source = self._table_source(columns)
        chosen = _choose(source, columns, "a DataFrame")
        try:
            import pandas
        except ImportError as error:
            message = "to_pandas: the package pandas is not installed; run pip install pandas"
            raise NotFoundError(message) from error
        values = {name: _copied(source.read(name)) for name in chosen}
        labels = pandas.Index(_copied(source.index), name=source.index_name)
        return pandas.DataFrame(values, index=labels, columns=chosen)

    def to_arrow(self, columns: Sequence[str] | None = None) -> "pyarrow.Table":
        """The columns with one number or one text a row as an Arrow table; see `to_pandas`.

        Its first column is what `to_pandas` has as index. Texts are `large_string`, since together
        they may be more than 2 GB. NaN stays NaN: nothing is null.
        """
        source = self._table_source(columns)
        chosen = _choose(source, columns, "a table")
        try:
            import pyarrow
        except ImportError as error:
            message = "to_arrow: the package pyarrow is not installed; run pip install pyarrow"
            raise NotFoundError(message) from error
        values = [source.index, *map(source.read, chosen)]
        text = pyarrow.large_string()
        arrays = [
            pyarrow.array(part, text) if isinstance(part, list) else pyarrow.array(part.copy())
            for part in values
        ]
        return pyarrow.Table.from_arrays(arrays, names=[source.index_name, *chosen])


def _choose(source: TableSource, names: Sequence[str] | None, target: str) -> list[str]:
    """The columns to convert, each once, without `trace_id`, which is the index."""
    for name in names or ():
        if not source.has_one_value[name]:
            raise SchemaError(
                f"{source.where}, column {name!r}: {target} has one number or one text a row, "
                "and this column an array; leave it out"
            )
    if names is None:
        names = [name for name, fits in source.has_one_value.items() if fits]
    return [name for name in dict.fromkeys(names) if name != TRACE_ID]


def _copied(values: np.ndarray | list[str]) -> np.ndarray | list[str]:
    return values if isinstance(values, list) else values.copy()
