"""Flat stores: a row is a token of another store; their order is that of a `TokenLoader`.

Shuffled, it is that of the loader's first epoch. Where the tokens fit in memory they are gathered
from there, in one pass. Where they do not, a first pass reads them in sequence and scatters them to
buckets on the disk, by their places in the order; a second one reads bucket after bucket into
memory and gathers each from there.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from store.errors import SchemaError
from store.feed.order import EpochOrder
from store.feed.token_loader import TokenLoader
from store.format.schema import TRACE_ID, Column, Schema
from store.read.batch import as_numbers
from store.read.plan import Select
from store.read.store import Rows, TraceStore
from store.traces.identity import COMMAND
from store.traces.layers import LAYERS_AXIS, choose_layers, layer_numbers
from store.traces.origin import COMMON, LAYERS, PARTS
from store.write.blocks import Columns

__all__ = ["POSITION", "ROW", "FlatSource"]

ROW, POSITION = "row", "position"  # of a token: its trace, and its place in it
BLOCK_BYTES = 8 * 1024 * 1024  # of rows that are written together
SCATTER_BYTES = 64 * 1024 * 1024  # of tokens that are scattered together, at most
ORDER_BYTES = 32  # of the order of a bucket, for each token


class FlatSource:
    """Tokens of a store as rows, in blocks.

    The `trace_id` is "<id of the trace>:<position>". Columns of the tokens' axis have the token's
    item, those of traces what its trace has.

    Parameters
    ----------
    store, columns, tokens, rows, shuffle, seed
        Those of the `TokenLoader` whose first epoch the rows are.
    layers
        Of each column that has some, as `store.traces.layers` names them; all if None.
    memory_bytes
        What the order and the tokens may take in memory, about.
    working
        Where buckets are put, a folder that is there while blocks are read.
    where
        The filter that chose the rows, for the provenance.

    Raises
    ------
    SchemaError
        The columns have no ragged axis, or several, or names that the flat store needs.
    """

    def __init__(
        self,
        store: TraceStore,
        columns: Sequence[str],
        working: Path,
        memory_bytes: int,
        *,
        layers: str | None = None,
        tokens: str = "all",
        rows: Rows | None = None,
        where: str | None = None,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        for name in (ROW, POSITION):
            if name in columns:
                raise SchemaError(
                    f"{store.location}: a flat store has a column {name!r} of its own; leave it out"
                )
        self.store = store
        self.select = _layers_of(store, columns, layers)
        plan = store.plan(columns, self.select)
        of_tokens = [part for part in plan.parts if part.column.axis is not None]
        self._names = [part.name for part in of_tokens] or columns  # the loader refuses the latter
        self._of_traces = [part.name for part in plan.parts if part.column.axis is None]
        self._options: dict[str, Any] = {"tokens": tokens, "rows": rows, "arrays": "numpy"}
        self.token_bytes = math.ceil(sum(part.item_bytes for part in of_tokens)) or 1
        self._block = max(1, BLOCK_BYTES // self.token_bytes)
        self._loader = self._load(self._block, shuffle, seed)
        self.schema = Schema(
            {ROW: Column("int64"), POSITION: Column("int64")}
            | {
                name: _flat(
                    store.schema.column(name), store, layers if name in self.select else None
                )
                for name in columns
            }
        )
        made = {"generation": store.generation, "chosen": tokens, "where": where}
        if COMMAND in store.provenance:
            made["of_command"] = store.provenance[COMMAND]
        self.provenance = _provenance(store, self.select, layers) | {
            "flat": self._loader.state_dict() | made
        }
        self._buckets = _Buckets(
            working,
            len(self),
            max(1, memory_bytes // 2 // (self.token_bytes + ORDER_BYTES)),
            {name: self.schema.columns[name] for name in self._names},
        )
        is_raw = all(part.column.codec is None for part in of_tokens)
        is_one_pass = is_raw and store.mirror is None and self._buckets.n == 1
        self.is_scattered = shuffle and not is_one_pass

    def __len__(self) -> int:
        return len(self._loader.tokens)

    def _load(self, batch_size: int, shuffle: bool = False, seed: int = 0) -> TokenLoader:
        return TokenLoader(
            self.store,
            self._names,
            batch_size,
            shuffle,
            seed,
            select={name: part for name, part in self.select.items() if name in self._names},
            num_workers=1,
            **self._options,
        )

    def blocks(self, start: int = 0) -> Iterator[tuple[list[str], Columns]]:
        """See `BlockSource`."""
        if start >= len(self):
            return
        if self.is_scattered:
            yield from self._from_buckets(start)
            return
        if self._loader.shuffle:  # from the disk in sequence, which puts them into memory
            for _ in self._load(self._block):
                pass
        self._loader.load_state_dict(self._loader.state_dict() | {"epoch": 0, "position": start})
        for batch in self._loader:
            yield self._block_of(np.asarray(batch.rows), np.asarray(batch.positions), batch.columns)

    def _from_buckets(self, start: int) -> Iterator[tuple[list[str], Columns]]:
        """Blocks of what is scattered to buckets first."""
        order = self._loader.order_of(len(self), 0)
        n_together = max(1, min(SCATTER_BYTES, self._buckets.n_bytes // 4) // self.token_bytes)
        done = 0
        try:
            for batch in self._load(n_together):
                numbers = np.arange(done, done + len(batch.rows))
                done += len(numbers)
                self._buckets.put(order.positions_of(numbers), batch.columns, start)
            for numbers, values in self._buckets.gathered(order, start, self._block):
                found = self._loader.tokens.find(numbers)
                yield self._block_of(found.rows, found.positions, values)
        finally:
            self._buckets.remove()

    def _block_of(
        self, rows: np.ndarray, positions: np.ndarray, values: Mapping[str, Any]
    ) -> tuple[list[str], Columns]:
        traces, of_token = np.unique(rows, return_inverse=True)
        select = {name: self.select[name] for name in self._of_traces if name in self.select}
        read = self.store.read_arrays(traces, [TRACE_ID, *self._of_traces], select)
        ids = list(map(read[TRACE_ID].__getitem__, of_token.tolist()))
        repeated = {name: _taken(read[name], of_token) for name in self._of_traces}
        names = [f"{one}:{at}" for one, at in zip(ids, positions.tolist(), strict=True)]
        return names, {ROW: rows, POSITION: positions, **repeated, **values}


class _Region(NamedTuple):
    """Where a bucket's file has the items of a column, and how many bytes each has."""

    first: int
    item_bytes: int


class _Buckets:
    """Files of a number of places in the order each, with the tokens of these places as they come:
    those of lower numbers first, so that their places need not be kept.

    `n` files, of `n_bytes` at most.
    """

    def __init__(
        self, working: Path, n_tokens: int, size: int, columns: Mapping[str, Column]
    ) -> None:
        self.working = working
        self.columns = columns
        self.n = max(1, -(-n_tokens // size))
        self._n_tokens = n_tokens
        self._size = -(-n_tokens // self.n)
        self._regions: dict[str, _Region] = {}
        self.n_bytes = 0
        for name, column in columns.items():
            self._regions[name] = _Region(self.n_bytes, column.item_bytes)
            self.n_bytes += self._size * column.item_bytes
        self._counts = np.zeros(self.n, np.int64)

    def _file(self, bucket: int) -> Path:
        return self.working / f"bucket-{bucket}"

    def put(self, positions: np.ndarray, columns: Mapping[str, Any], start: int) -> None:
        """Put tokens of these places, int64 `(n,)`, behind those before; none of buckets that end
        before `start`."""
        buckets = positions // self._size
        order = np.argsort(buckets, kind="stable")
        cuts = np.searchsorted(buckets[order], np.arange(self.n + 1))
        values = {name: np.asarray(columns[name])[order] for name in self.columns}
        for bucket in range(start // self._size, self.n):
            first, stop = cuts[bucket], cuts[bucket + 1]
            with self._file(bucket).open("r+b" if self._counts[bucket] else "wb") as file:
                for name, items in values.items():
                    begin, item_bytes = self._regions[name]
                    file.seek(begin + int(self._counts[bucket]) * item_bytes)
                    file.write(items[first:stop].view(np.uint8).data)
            self._counts[bucket] += stop - first

    def gathered(
        self, order: EpochOrder, start: int, block: int
    ) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """The numbers of the tokens from a place on, in their order, and their items, in blocks."""
        for bucket in range(start // self._size, self.n):
            first = bucket * self._size
            numbers = order[range(first, min(first + self._size, self._n_tokens))]
            places = np.empty(len(numbers), np.int64)
            places[np.argsort(numbers)] = np.arange(len(numbers))
            items = {name: self._read(bucket, name, len(numbers)) for name in self.columns}
            self._file(bucket).unlink()
            for at in range(max(0, start - first), len(numbers), block):
                chosen = slice(at, at + block)
                yield (
                    numbers[chosen],
                    {name: np.take(values, places[chosen], 0) for name, values in items.items()},
                )

    def _read(self, bucket: int, name: str, n: int) -> np.ndarray:
        column, region = self.columns[name], self._regions[name]
        data = np.fromfile(self._file(bucket), np.uint8, n * region.item_bytes, offset=region.first)
        items = data.view(column.storage_dtype).reshape(n, *column.item_shape)
        return as_numbers(items, column.dtype)

    def remove(self) -> None:
        """Remove the files that are there."""
        self._counts[:] = 0
        for bucket in range(self.n):
            with suppress(OSError):
                self._file(bucket).unlink(missing_ok=True)


def _layers_of(store: TraceStore, columns: Sequence[str], layers: str | None) -> Select:
    """What is read of columns that have layers."""
    if layers is None:
        return {}
    chosen = [
        name
        for name in columns
        if LAYERS_AXIS in store.schema.column(name, store.location).axis_names
    ]
    if not chosen:
        raise SchemaError(f"--layers: expected a column with layers, found {', '.join(columns)}")
    return {name: {LAYERS_AXIS: layers} for name in chosen}


def _flat(column: Column, store: TraceStore, layers: str | None) -> Column:
    """A column of single items, of these layers."""
    shape = list(column.item_shape)
    if layers is not None:
        axis = column.axis_names.index(LAYERS_AXIS)
        shape[axis] = len(_chosen(store, column, layers))
    chosen: Any = None  # by the constructor
    return replace(
        column, axis=None, item_shape=tuple(shape), chunk_items=chosen, shard_items=chosen
    )


def _chosen(store: TraceStore, column: Column, layers: str) -> list[int]:
    """The numbers of the chosen layers of a column, as the model numbers them."""
    n_layers = column.item_shape[column.axis_names.index(LAYERS_AXIS)]
    numbers = layer_numbers(store.provenance, n_layers)
    return [numbers[at] for at in choose_layers(layers, numbers, store.location)]


def _taken(values: Any, numbers: np.ndarray) -> Any:
    """Texts or items by their numbers, int64 `(n,)`."""
    if isinstance(values, list):
        return list(map(values.__getitem__, numbers.tolist()))
    return np.asarray(values)[numbers]


def _provenance(store: TraceStore, columns: Select, layers: str | None) -> dict[str, Any]:
    """The provenance of a store, with the layers that are kept of these columns."""
    inherited = {key: value for key, value in store.provenance.items() if key != COMMAND}
    if layers is None or not columns:
        return inherited
    name = next(iter(columns))
    kept = {LAYERS: _chosen(store, store.schema.columns[name], layers)}
    if PARTS not in inherited:
        return inherited | kept
    return inherited | {COMMON: {**inherited.get(COMMON, {}), **kept}}
