"""Traces in memory, read as a run reads those of a store: the same layers, tokens and batches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from store import Batch, Column, Ragged, Schema, SchemaError, TraceStore
from store.format.schema import TRACE_ID
from store.read.batches.tensors import ColumnValues, as_tensor
from store.read.plan import RowRanges, Span, slice_ranges
from store.traces.columns import TRACE_COLUMNS, TraceColumn
from store.traces.layers import LAYERS_AXIS, format_layers
from store.write.blocks import encode_block
from train.config import Config
from train.data.batches import TrainingData, as_roles, is_of_tokens
from train.data.splits import all_as_test
from train.errors import DataError

__all__ = ["ANSWER", "DataInMemory", "data_in_memory"]

WHERE = "traces in memory"
EXPECTED = "expected numbers (n_traces, ...), a list of those of each trace, or of texts"
ANSWER = ("prompt_len", "answer_len")
Rows = NDArray[np.int64]
Layers = Mapping[str, Sequence[int]]  # column -> its layers, as the model numbers them
Known = Mapping[str, TraceColumn]  # what is known of columns, by their names in the run's store


class MemoryStore:
    """A packed batch with what a run asks of a `TraceStore`.

    DataError for other `layers`, or what no store would hold.
    """

    path = location = WHERE
    uuid = ""

    def __init__(self, batch: Batch, layers: Layers, known: Known) -> None:
        self.batch = batch
        columns = {name: one for name, one in batch.columns.items() if name != TRACE_ID}
        self.provenance: dict[str, object] = {}
        own = list(map(str, range(len(batch))))
        self.ids = cast(list[str], batch.columns.get(TRACE_ID, own))
        self._layers = layers
        try:
            described = {
                name: describe(name, one, layers, known.get(name)) for name, one in columns.items()
            }
            self.schema = Schema(described)
            self.axis_lengths = encode_block(self.ids, columns, self.schema).lengths
        except SchemaError as error:
            raise DataError(f"{WHERE}: {error}") from error

    def __len__(self) -> int:
        return len(self.batch)

    def layers(self, name: str) -> list[int]:
        return list(self._layers.get(name, []))

    def lengths(self, name: str) -> Rows:
        """Items of each row, of a text its bytes."""
        self.schema.column(name, WHERE)  # raises
        axis = self.schema.axis_of(name)
        return self.axis_lengths[axis] if axis else np.ones(len(self), np.int64)

    def column_array(self, name: str) -> NDArray:
        return self.batch.numbers(name)

    def read(self, rows: Rows, columns: Sequence[str]) -> Batch:
        found = {name: take(self.batch[name], rows, None) for name in columns}
        return Batch(torch.from_numpy(rows), found)


def describe(name: str, values: ColumnValues, layers: Layers, known: TraceColumn | None) -> Column:
    """The column of a store that would hold these values."""
    if isinstance(values, list):
        return Column("utf8")
    items = values.values if isinstance(values, Ragged) else values
    shape = tuple(items.shape[1:])
    numbers = layers.get(name)
    if numbers is not None and shape[:1] != (len(numbers),):
        raise SchemaError(
            f"column {name!r}: expected the layers that the run read, {format_layers(numbers)}, "
            f"first of the axes of an item, found items of shape {shape}"
        )
    names = [LAYERS_AXIS, *(f"axis_{i}" for i in range(1, len(shape)))]
    axis = (known and known.axis) or name
    try:
        return Column(
            str(items.dtype).removeprefix("torch."),
            shape,
            axis if isinstance(values, Ragged) else None,
            () if numbers is None else tuple(names),
        )
    except SchemaError as error:
        raise SchemaError(f"column {name!r}: {error}") from error


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
        self, part: str | Rows, roles: Sequence[str], *_: object, **__: object
    ) -> Iterator[Batch]:
        """Batches of the rows of a split, or of some rows, in order."""
        rows = self.splits.rows(part) if isinstance(part, str) else part
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

    def check_answers(self) -> None:
        """Raise DataError for an answer that is not within the tokens of its trace."""
        store = cast(MemoryStore, self.store)
        start, length = (
            store.column_array(name).astype(np.int64) for name in self.names(ANSWER).values()
        )
        n_tokens = store.axis_lengths.get("tokens", start + length)
        is_wrong = (start >= 0) & ((length < 0) | (length > n_tokens - start))
        for row in np.flatnonzero(is_wrong)[:1]:
            raise DataError(
                f"{WHERE}: column {self.column('answer_len')!r}, trace {store.ids[row]!r}: "
                f"expected 0 to {n_tokens[row] - start[row]:,} tokens, found {length[row]:,}"
            )


def data_in_memory(traces: object, layers: Layers, config: Config) -> TrainingData:
    """Traces in memory as the test split: a `Batch`, or arrays by the columns of the run's store.

    Arrays are of all traces (n_traces, ...), or a list of one for each, or of texts. `layers` are
    those that the run read of each column, as detectors call it; there are no others. Raises
    DataError for arrays that are no columns.
    """
    layers = {config.replaced.get(role, role): numbers for role, numbers in layers.items()}
    known = {config.replaced.get(role, role): one for role, one in TRACE_COLUMNS.items()}
    store = cast(TraceStore, MemoryStore(as_batch(traces, known), layers, known))
    return DataInMemory(store, all_as_test(store, config.seed), replace(config, layers=None))


def as_batch(traces: object, known: Known) -> Batch:
    given = traces.columns if isinstance(traces, Batch) else traces
    if not isinstance(given, Mapping):
        expected = "expected a store, its traces, a Batch, or arrays by column"
        raise TypeError(f"{expected}, found {type(given).__name__}")
    columns = {str(name): as_column(name, one, known.get(name)) for name, one in given.items()}
    counts = {
        name: len(one.offsets) - 1 if isinstance(one, Ragged) else len(one)
        for name, one in columns.items()
    }
    if len(set(counts.values())) != 1:
        raise DataError(f"{WHERE}: expected arrays of equally many traces, found {counts}")
    return Batch(torch.arange(next(iter(counts.values()))), columns)


def as_column(name: str, values: object, known: TraceColumn | None) -> ColumnValues:
    """Texts, an array of all traces, or one of each."""
    if isinstance(values, Ragged):
        return Ragged(as_array(name, values.values), as_array(name, values.offsets))
    if isinstance(values, np.ndarray) and values.dtype.kind in "OUT":  # objects, texts
        values = values.tolist()
    if not isinstance(values, list | tuple):
        return as_array(name, values)
    if all(isinstance(one, str) for one in values):
        return list(values)
    parts = [as_array(name, one, 0) for one in values]
    is_ragged = all(one.ndim for one in parts) and (known is None or known.axis is not None)
    shapes = sorted({tuple(one.shape[is_ragged:]) for one in parts})
    if len(shapes) > 1:
        raise DataError(
            f"{WHERE}: column {name!r}: expected items of one shape, found {shapes[0]} and "
            f"{shapes[1]}"
        )
    if is_ragged:
        return Ragged(torch.cat(parts), torch.tensor([0, *map(len, parts)]).cumsum(0))
    return torch.stack(parts)


def as_array(name: str, values: object, n_axes: int = 1) -> Tensor:
    """Numbers as a tensor of at least so many axes, in memory."""
    try:
        if isinstance(values, np.ndarray):
            array = as_tensor(np.asarray(values, order="C"))
        else:
            array = torch.as_tensor(values, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        found = f"{type(values).__name__}: {error}".partition("\n")[0]
        raise DataError(f"{WHERE}: column {name!r}: {EXPECTED}, found {found:.200}") from error
    if array.ndim < n_axes:
        raise DataError(f"{WHERE}: column {name!r}: {EXPECTED}, found a single number")
    return array
