"""Flat stores: a row is a token of another store; their order is that of a `TokenLoader`.

Shuffled, it is that of the loader's first epoch. Where the tokens fit in memory they are gathered
from there, in one pass. Where they do not, a first pass reads them in sequence and scatters them to
buckets on the disk, by their places in the order; a second one reads bucket after bucket into
memory and gathers each from there.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.feed.order import EpochOrder
from store.feed.token_loader import TokenLoader
from store.format.schema import TRACE_ID, Column, Schema
from store.read.batches.tensors import Ragged, as_numbers
from store.read.plan import Select
from store.read.store import Rows, TraceStore
from store.traces.identity import COMMAND
from store.traces.layers import LAYERS_AXIS, choose_layers
from store.traces.origin import COMMON, LAYERS, PARTS
from store.write.blocks import Columns

__all__ = ["FlatSource"]

ROW, POSITION = "row", "position"  # of a token: its trace, and its place in it
BLOCK_BYTES = 8 * 1024 * 1024  # of rows that are written together
SCATTER_BYTES = 64 * 1024 * 1024  # of tokens that are scattered together, at most
ORDER_BYTES = 32  # of the order of a bucket, for each token


class FlatSource:
    """Tokens of a store as rows, in blocks.

    The `trace_id` is "<id of the trace>:<position>". Columns of the tokens' axis have the token's
    item, those of traces what its trace has.

    `store`, `columns`, `tokens`, `rows`, `shuffle` and `seed` are those of the loader; `layers` are
    read of each column that has some; `where` chose the rows. The tokens and their order take about
    `memory_bytes`; buckets are files in the folder `working`. Raises SchemaError for columns of no
    ragged axis or of several, or with names that the flat store needs.
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
        for name in {TRACE_ID, ROW, POSITION}.intersection(columns):
            raise SchemaError(
                f"{store.location}: a flat store has a column {name!r} of its own; leave it out"
            )
        self.store = store
        self.select = _layers_of(store, columns, layers)
        self._options: dict[str, Any] = {"tokens": tokens, "rows": rows, "arrays": "numpy"}
        plan = store.plan(columns, self.select)
        of_tokens = [part for part in plan.parts if part.column.axis is not None]
        self._names = [part.name for part in of_tokens] or columns  # the loader refuses the latter
        self._of_traces = [part.name for part in plan.parts if part.column.axis is None]
        self.token_bytes = math.ceil(sum(part.item_bytes for part in of_tokens)) or 1
        self._block = max(1, BLOCK_BYTES // self.token_bytes)
        self._loader = self._load(self._block, shuffle, seed)
        self.schema = _flat_schema(store, columns, self.select)
        made = {"generation": store.generation, "chosen": tokens, "where": where}
        if COMMAND in store.provenance:
            made["of_command"] = store.provenance[COMMAND]
        flat = {"flat": self._loader.state_dict() | made}
        self.provenance = _provenance(store, self.select) | flat
        in_memory = max(1, memory_bytes // 2 // (self.token_bytes + ORDER_BYTES))
        self._buckets = Buckets(working, len(self), in_memory)
        is_raw = all(part.column.codec is None for part in of_tokens)
        is_one_pass = is_raw and store.mirror is None and len(self) <= in_memory
        self.is_scattered = shuffle and not is_one_pass

    def __len__(self) -> int:
        return len(self._loader.tokens)

    def _load(self, batch_size: int, shuffle: bool = False, seed: int = 0) -> TokenLoader:
        select = {name: part for name, part in self.select.items() if name in self._names}
        return TokenLoader(
            self.store,
            self._names,
            batch_size,
            shuffle,
            seed,
            select=select,
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
        bucket_bytes = self._buckets.size * self.token_bytes
        n_together = max(1, min(SCATTER_BYTES, bucket_bytes // 4) // self.token_bytes)
        done = 0
        self._buckets.remove()  # of a process that was killed
        try:
            for batch in self._load(n_together):
                numbers = np.arange(done, done + len(batch.rows))
                done += len(numbers)
                self._buckets.put(order.positions_of(numbers), batch.columns, start)
            columns = {name: self.schema.columns[name] for name in self._names}
            for numbers, values in self._buckets.gathered(order, columns, start, self._block):
                found = self._loader.tokens.find(numbers)
                yield self._block_of(found.rows, found.positions, values)
        finally:
            self._buckets.remove()

    def _block_of(
        self, rows: np.ndarray, positions: np.ndarray, values: Mapping[str, object]
    ) -> tuple[list[str], Columns]:
        select = {name: part for name, part in self.select.items() if name in self._of_traces}
        repeated = dict(self.store.read_arrays(rows, [TRACE_ID, *self._of_traces], select).columns)
        ids: Any = repeated.pop(TRACE_ID)
        names = [f"{one}:{at}" for one, at in zip(ids, positions.tolist(), strict=True)]
        return names, {ROW: rows, POSITION: positions, **repeated, **values}


class Buckets:
    """Files with the tokens of `size` places in the order each, as they come: those of lower
    numbers first, so that their places need not be kept."""

    def __init__(self, working: Path, n_tokens: int, most: int) -> None:
        self._working = working
        self._n_tokens = n_tokens
        self._n = max(1, -(-n_tokens // most))
        self.size = max(1, -(-n_tokens // self._n))

    def _file(self, bucket: int, name: str) -> Path:
        return self._working / f"bucket-{bucket}-{name}"

    def put(self, positions: np.ndarray, columns: Mapping[str, object], start: int) -> None:
        """Put tokens of these places, int64 `(n,)`, behind those before; none of buckets that end
        before `start`."""
        buckets = positions // self.size
        order = np.argsort(buckets, kind="stable")
        cuts = np.searchsorted(buckets[order], np.arange(self._n + 1)).tolist()
        for name, values in columns.items():
            items = np.asarray(values)[order]
            for bucket in range(start // self.size, self._n):
                with self._file(bucket, name).open("ab") as file:
                    file.write(items[cuts[bucket] : cuts[bucket + 1]].view(np.uint8).data)

    def gathered(
        self, order: EpochOrder, columns: Mapping[str, Column], start: int, block: int
    ) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """The numbers of the tokens from a place on, in their order, and their items, in blocks."""
        for bucket in range(start // self.size, self._n):
            first = bucket * self.size
            numbers = order[range(first, min(first + self.size, self._n_tokens))]
            places = np.empty(len(numbers), np.int64)
            places[np.argsort(numbers)] = np.arange(len(numbers))
            items = {}
            for name, column in columns.items():
                data = np.fromfile(self._file(bucket, name), column.storage_dtype)
                items[name] = as_numbers(data.reshape(-1, *column.item_shape), column.dtype)
                self._file(bucket, name).unlink()
            for at in range(max(0, start - first), len(numbers), block):
                chosen = places[at : at + block]
                gathered = {name: np.take(values, chosen, 0) for name, values in items.items()}
                yield numbers[at : at + block], gathered

    def remove(self) -> None:
        """Remove the files that are there."""
        for file in self._working.glob("bucket-*"):
            with suppress(OSError):  # the next writer removes what remains
                file.unlink()


def _layers_of(store: TraceStore, columns: Sequence[str], layers: str | None) -> Select:
    """What is read of columns that have layers."""
    schema = store.schema
    having = [n for n in columns if LAYERS_AXIS in schema.column(n, store.location).axis_names]
    if layers is not None and not having:
        raise SchemaError(f"--layers: expected a column with layers, found {', '.join(columns)}")
    return {} if layers is None else {name: {LAYERS_AXIS: layers} for name in having}


def _flat_schema(store: TraceStore, columns: Sequence[str], select: Select) -> Schema:
    """The columns, of single items of their selected shape."""
    flat = {ROW: Column("int64"), POSITION: Column("int64")}
    for name, values in store.read_arrays([], columns, select).columns.items():
        items = values.values if isinstance(values, Ragged) else values
        shape = () if isinstance(items, list) else items.shape[1:]
        column = store.schema.columns[name]
        flat[name] = Column(
            column.dtype, shape, None, column.axis_names, column.split, column.codec
        )
    return Schema(flat)


def _provenance(store: TraceStore, select: Select) -> dict[str, Any]:
    """The provenance of a store, with the layers that are selected."""
    inherited = {key: value for key, value in store.provenance.items() if key != COMMAND}
    for name, part in select.items():
        numbers = store.layers(name)
        positions = choose_layers(str(part[LAYERS_AXIS]), numbers, store.location)
        kept = {LAYERS: [numbers[at] for at in positions]}
        if PARTS not in inherited:
            return inherited | kept
        return inherited | {COMMON: {**inherited.get(COMMON, {}), **kept}}
    return inherited
