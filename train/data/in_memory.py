"""Traces in memory, read as a run reads those of a store: the same layers, tokens and batches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from store import Batch, Column, Ragged, Schema, TraceStore
from store.format.schema import TRACE_ID
from store.read.batch import ColumnValues, as_torch
from store.read.plan import ColumnPart, Select, plan_read, slice_ranges
from store.reports import count
from store.traces.columns import TRACE_COLUMNS
from store.traces.layers import LAYERS_AXIS, format_layers
from train.config import Config
from train.data.batches import TrainingData
from train.data.splits import all_as_test
from train.errors import DataError

__all__ = ["MemoryStore", "as_batch", "data_in_memory"]

WHERE = "traces in memory"
FORMS = "traces of one, a Batch, or arrays by column"


class MemoryStore:
    """A packed batch in place of a store: what a run asks of one, of a `TraceStore`'s names.

    `layers` are those of each column as the model numbers them; columns that are not there have
    none. Raises DataError where a column has another number of layers.
    """

    path = location = WHERE
    uuid = ""

    def __init__(self, batch: Batch, layers: Mapping[str, Sequence[int]]) -> None:
        self.batch = as_torch(batch) if batch.arrays == "numpy" else batch
        columns = {name: describe(name, values, layers) for name, values in batch.columns.items()}
        self.schema = Schema({name: one for name, one in columns.items() if name != TRACE_ID})
        self.provenance: dict[str, object] = {}
        self.ids = batch.texts(TRACE_ID) if TRACE_ID in batch else list(map(str, range(len(batch))))
        self._layers = layers

    def __len__(self) -> int:
        return len(self.batch)

    def layers(self, name: str) -> list[int]:
        return list(self._layers.get(name, []))

    def lengths(self, name: str) -> NDArray[np.int64]:
        """Items of each row, of a text its bytes."""
        values = self.batch[name]
        if isinstance(values, list):
            return np.array([len(text.encode()) for text in values], np.int64)
        lengths = values.lengths if isinstance(values, Ragged) else torch.ones(len(self)).long()
        return lengths.numpy()

    def column_array(self, name: str) -> NDArray:
        return self.batch.numbers(name)

    def read(
        self, rows: NDArray[np.int64], columns: Sequence[str], select: Select | None = None
    ) -> Batch:
        """Some rows, as `TraceStore.read` gives them."""
        found = {}
        for name in columns:
            parts = {name: (select or {}).get(name, {})}
            plan = plan_read(self.schema, [name], parts, WHERE, {"layers": self.layers(name)})
            found[name] = take(self.batch[name], rows, plan.parts[0])
        return Batch(torch.from_numpy(rows), found)


def describe(name: str, values: ColumnValues, layers: Mapping[str, Sequence[int]]) -> Column:
    """The column of a store that would hold these values."""
    if isinstance(values, list):
        return Column("utf8")
    is_ragged = isinstance(values, Ragged)
    items = values.values if isinstance(values, Ragged) else values
    shape = tuple(items.shape[1:])
    names: tuple[str, ...] = ()
    if name in layers:
        names = tuple(LAYERS_AXIS if i == 0 else f"axis_{i}" for i in range(len(shape)))
        if shape[:1] != (len(layers[name]),):
            raise DataError(
                f"{WHERE}: column {name!r}: expected the {count(len(layers[name]), 'layer')} that "
                f"the run read, {format_layers(layers[name])}, found items of shape {shape}; give "
                f"these alone, which the `select` of store.read chooses"
            )
    known = TRACE_COLUMNS.get(name)
    axis = known.axis if known is not None and known.axis else "tokens"
    dtype = str(items.dtype).removeprefix("torch.")
    return Column(dtype, shape, axis if is_ragged else None, names)


def take(values: ColumnValues, rows: NDArray[np.int64], part: ColumnPart) -> ColumnValues:
    """Rows of a column, of which a part is read."""
    if isinstance(values, list):
        return [values[row] for row in rows.tolist()]
    if not isinstance(values, Ragged):
        return take_items(values[torch.from_numpy(rows)], part)
    offsets = values.offsets.numpy()
    starts, stops = slice_ranges(offsets[rows], offsets[rows + 1], part.span, rows)
    ranges = zip(starts.tolist(), stops.tolist(), strict=True)
    items = [take_items(values.values[start:stop], part) for start, stop in ranges]
    return Ragged(torch.cat(items), torch.from_numpy(np.append(0, np.cumsum(stops - starts))))


def take_items(items: torch.Tensor, part: ColumnPart) -> torch.Tensor:
    """Of items (n, ...) the layers that are read."""
    chosen = [items[(slice(None), *slices)] for slices in part.selects]
    return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=1 + part.joined)


class DataInMemory(TrainingData):
    """Training data whose store is a `MemoryStore`."""

    def loader(  # type: ignore[override]
        self, split: str, roles: Sequence[str], *_: Any, rows: Any = None, **__: Any
    ) -> Iterator[Batch]:
        """Batches of the rows of a split, or of some of them, in order."""
        rows = self.splits.rows(split) if rows is None else rows
        for first in range(0, len(rows), self.config.batch_size):
            yield self.read(rows[first : first + self.config.batch_size], roles)


def data_in_memory(
    traces: object, layers: Mapping[str, Sequence[int]], config: Config
) -> TrainingData:
    """Traces as the test split; `layers` are those that a run read, by the name of a detector.

    Columns may have the names of detectors or those of the run's store.
    """
    batch = as_batch(traces)
    names = {role: config.replaced.get(role, role) for role in layers}
    layers = {names[role]: numbers for role, numbers in layers.items()}
    store = cast(TraceStore, MemoryStore(batch, layers))
    config = replace(config, layers=None)  # no others are there
    return DataInMemory(store, all_as_test(store, config.seed), config)


def as_batch(traces: object) -> Batch:
    """Pack traces in memory, of one of the `FORMS`; raises TypeError for anything else."""
    if isinstance(traces, Batch):
        return traces
    if isinstance(traces, Mapping):
        columns = {str(name): as_column(name, values) for name, values in traces.items()}
        counts = {name: n_rows(values) for name, values in columns.items()}
        if len(set(counts.values())) != 1:
            raise DataError(f"{WHERE}: expected arrays of equally many traces, found {counts}")
        return Batch(torch.arange(next(iter(counts.values()))), columns)
    raise TypeError(f"expected a store, {FORMS}; found {type(traces).__name__}")


def n_rows(values: ColumnValues) -> int:
    return len(values.offsets) - 1 if isinstance(values, Ragged) else len(values)


def as_column(name: str, values: Any) -> ColumnValues:
    """Texts, one array of all traces, or one array for each."""
    if isinstance(values, Ragged):
        return values
    if isinstance(values, list | tuple):
        if all(isinstance(one, str) for one in values):
            return list(values)
        known = TRACE_COLUMNS.get(name)
        parts = [torch.as_tensor(one) for one in values]
        if not all(one.ndim for one in parts) or (known is not None and known.axis is None):
            return torch.stack(parts)
        return Ragged(torch.cat(parts), torch.tensor([0, *map(len, parts)]).cumsum(0))
    return torch.as_tensor(values)
