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
from store.read.plan import RowRanges, Span, slice_ranges
from store.traces.columns import TRACE_COLUMNS
from store.traces.layers import LAYERS_AXIS, format_layers
from train.config import Config
from train.data.batches import TrainingData, as_roles, is_of_tokens
from train.data.splits import all_as_test
from train.errors import DataError

__all__ = ["DataInMemory", "data_in_memory"]

WHERE = "traces in memory"
Rows = NDArray[np.int64]
Layers = Mapping[str, Sequence[int]]  # column -> its layers, as the model numbers them


class MemoryStore:
    """A packed batch with what a run asks of a `TraceStore`; DataError for other `layers`."""

    path = location = WHERE
    uuid = ""

    def __init__(self, batch: Batch, layers: Layers) -> None:
        self.batch = as_torch(batch) if batch.arrays == "numpy" else batch
        columns = {name: one for name, one in self.batch.columns.items() if name != TRACE_ID}
        described = {name: describe(name, one, layers) for name, one in columns.items()}
        self.schema = Schema(described)
        self.provenance: dict[str, object] = {}
        self.ids = batch.texts(TRACE_ID) if TRACE_ID in batch else list(map(str, range(len(batch))))
        self._layers = layers

    def __len__(self) -> int:
        return len(self.batch)

    def layers(self, name: str) -> list[int]:
        return list(self._layers.get(name, []))

    def lengths(self, name: str) -> Rows:
        """Items of each row, of a text its bytes."""
        values = self.batch[name]
        if isinstance(values, Ragged):
            return values.lengths.numpy()
        return np.array([len(one.encode()) if isinstance(one, str) else 1 for one in values])

    def column_array(self, name: str) -> NDArray:
        return self.batch.numbers(name)

    def read(self, rows: Rows, columns: Sequence[str]) -> Batch:
        found = {name: take(self.batch[name], rows, None) for name in columns}
        return Batch(torch.from_numpy(rows), found)


def describe(name: str, values: ColumnValues, layers: Layers) -> Column:
    """The column of a store that would hold these values."""
    if isinstance(values, list):
        return Column("utf8")
    items = values.values if isinstance(values, Ragged) else values
    shape = tuple(items.shape[1:])
    numbers = layers.get(name)
    if numbers is not None and shape[:1] != (len(numbers),):
        raise DataError(
            f"{WHERE}: column {name!r}: expected the layers that the run read, "
            f"{format_layers(numbers)}, first of the axes of an item, found items of shape {shape}"
        )
    names = [LAYERS_AXIS, *(f"axis_{i}" for i in range(1, len(shape)))]
    axis = getattr(TRACE_COLUMNS.get(name), "axis", None) or "tokens"
    return Column(
        str(items.dtype).removeprefix("torch."),
        shape,
        axis if isinstance(values, Ragged) else None,
        () if numbers is None else tuple(names),
    )


def take(
    values: ColumnValues,
    rows: Rows,
    ranges: RowRanges | None,
    layers: list[int] | slice = slice(None),
) -> ColumnValues:
    """Rows of a column, of a ragged one the items in `ranges`; of each item some layers."""
    if isinstance(values, list):
        return [values[row] for row in rows.tolist()]
    if not isinstance(values, Ragged):
        return values[torch.from_numpy(rows)][:, layers] if values.ndim > 1 else values[rows]
    offsets = values.offsets.numpy()
    span = Span(None, rows=ranges)
    starts, stops = slice_ranges(offsets[rows], offsets[rows + 1], span, rows)
    kept = [values.values[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
    items = torch.cat(kept) if values.values.ndim == 1 else torch.cat(kept)[:, layers]
    return Ragged(items, torch.from_numpy(np.append(0, np.cumsum(stops - starts))))


class DataInMemory(TrainingData):
    """Training data whose store is a `MemoryStore`."""

    def loader(  # type: ignore[override]
        self, split: str, roles: Sequence[str], *_: object, rows: Rows | None = None, **__: object
    ) -> Iterator[Batch]:
        """Batches of the rows of a split, or of some of them, in order."""
        rows = self.splits.rows(split) if rows is None else rows
        for first in range(0, len(rows), self.config.batch_size):
            yield self.read(rows[first : first + self.config.batch_size], roles)

    def read(self, rows: Sequence[int] | Rows, roles: Sequence[str]) -> Batch:
        """Some rows, of which only the layers and tokens of `reading` are there."""
        rows = np.asarray(rows, np.int64)
        batch = cast(MemoryStore, self.store).batch
        names = self.names(roles)
        narrowed, positions = self.layers_of
        columns = {}
        for role, name in names.items():
            is_narrowed = role == narrowed and positions is not None and self.layer_numbers(role)
            layers = list(positions or ()) if is_narrowed else slice(None)
            ranges = self.ranges if is_of_tokens(role) else None
            columns[name] = take(batch[name], rows, ranges, layers)
        return as_roles(Batch(torch.from_numpy(rows), columns), names, self.ranges)


def data_in_memory(traces: object, layers: Layers, config: Config) -> TrainingData:
    """Traces in memory as the test split: a `Batch`, or arrays by the columns of the run's store.

    Arrays are of all traces (n_traces, ...), or a list of one for each, or of texts. `layers` are
    those that the run read of each column, as detectors call it; there are no others.
    """
    layers = {config.replaced.get(role, role): numbers for role, numbers in layers.items()}
    store = cast(TraceStore, MemoryStore(as_batch(traces), layers))
    return DataInMemory(store, all_as_test(store, config.seed), replace(config, layers=None))


def as_batch(traces: object) -> Batch:
    if isinstance(traces, Batch):
        return traces
    if not isinstance(traces, Mapping):
        expected = "expected a store, its traces, a Batch, or arrays by column"
        raise TypeError(f"{expected}, found {type(traces).__name__}")
    columns = {str(name): as_column(name, values) for name, values in traces.items()}
    counts = {
        name: len(one.offsets) - 1 if isinstance(one, Ragged) else len(one)
        for name, one in columns.items()
    }
    if len(set(counts.values())) != 1:
        raise DataError(f"{WHERE}: expected arrays of equally many traces, found {counts}")
    return Batch(torch.arange(next(iter(counts.values()))), columns)


def as_column(name: str, values: Any) -> ColumnValues:
    """Texts, an array of all traces, or one of each."""
    if not isinstance(values, list | tuple) or isinstance(values, Ragged):
        return values if isinstance(values, Ragged) else torch.as_tensor(values)
    if all(isinstance(one, str) for one in values):
        return list(values)
    parts = [torch.as_tensor(one) for one in values]
    known = TRACE_COLUMNS.get(name)
    if not all(one.ndim for one in parts) or (known is not None and known.axis is None):
        return torch.stack(parts)
    return Ragged(torch.cat(parts), torch.tensor([0, *map(len, parts)]).cumsum(0))
