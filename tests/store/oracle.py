"""Rows in memory, and how a store must show them.

It runs with earlier revisions of the package as well: only with the names that outside code has.
"""

from pathlib import Path

import numpy as np
import torch
import zarr

from store import Batch, Column, Ragged, Schema, StoreWriter

SCHEMA = Schema(
    {
        "tokens": Column("int32", axis="tokens", chunk_items=4, shard_items=16),
        "hidden_states": Column(
            "float16",
            (3, 5),
            axis="tokens",
            axis_names=("layers", "hidden"),
            split=("layers",),
            chunk_items=4,
            shard_items=12,
        ),
        "attn_mean": Column("float32", (2,), axis="pairs", chunk_items=8, shard_items=64),
        "states": Column("bfloat16", (2, 3), chunk_items=3, shard_items=6),
        "zipped": Column(
            "float16", (2,), axis="tokens", codec="zstd", chunk_items=4, shard_items=16
        ),
        "planes": Column(
            "int16",
            (2, 3),
            axis="pairs",
            axis_names=("layers", "heads"),
            split=("layers",),
            codec="blosc",
            chunk_items=4,
            shard_items=12,
        ),
        "label": Column("int8", chunk_items=5, shard_items=10),
        "flag": Column("bool"),
        "question": Column("utf8"),
    }
)
# for a test whose expectations are those of one array without segments; see `MERGED` in conftest.py
WRITTEN = [False]
TEXTS = ("", "plain", "naïve ✓ 中文 🙂", "two\nlines\x00")


def make_value(column: Column, n: int, rng: np.random.Generator) -> object:
    """A random value; floats include NaN, infinities and signed zeros."""
    if column.is_text:
        return TEXTS[rng.integers(len(TEXTS))] * int(rng.integers(1, 3))
    shape = (n, *column.item_shape) if column.axis else column.item_shape
    if column.dtype == "bfloat16":
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32)).bfloat16()
    raw = np.frombuffer(rng.bytes(int(np.prod(shape)) * column.storage_dtype.itemsize), np.uint8)
    values = raw.view(column.storage_dtype) if column.dtype != "bool" else raw % 2 == 1
    return values.reshape(shape)


def make_rows(schema: Schema, n_rows: int, seed: int) -> list[tuple[str, dict]]:
    """Rows with 0, 1, a few or many items an axis."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n_rows):
        lengths = {
            axis: int(rng.choice([0, 1, 3, 7, 40], p=[0.2, 0.2, 0.3, 0.2, 0.1]))
            for axis in schema.axes
        }
        values = {
            name: make_value(c, lengths.get(c.axis, 0), rng) for name, c in schema.columns.items()
        }
        rows.append((f"trace {i} é", values))
    return rows


ROWS = make_rows(SCHEMA, 17, seed=5)


def write_store(path: Path, schema: Schema, rows: list[tuple[str, dict]], commits: int = 1) -> Path:
    """Write rows in equal commits; a new writer takes up the store in the middle."""
    StoreWriter.create(path, schema, {"model": "none"}).close()
    step = -(-max(len(rows), 1) // commits)
    for half in (rows[: step * (commits // 2)], rows[step * (commits // 2) :]):
        with StoreWriter.open(path) as writer:
            for i, (trace_id, row) in enumerate(half):
                writer.append(trace_id, row)
                if (i + 1) % step == 0:
                    writer.commit()
    return path


def bits(value: object) -> bytes | str:
    """Exact content, NaN payloads included."""
    if isinstance(value, torch.Tensor):
        value = value.view(torch.int16) if value.dtype == torch.bfloat16 else value
        value = value.numpy()
    return value if isinstance(value, str) else np.ascontiguousarray(value).tobytes()


def assert_same_row(found: object, expected: dict) -> None:
    """Every column of a trace or row, bit for bit and of the same shape."""
    for name, value in expected.items():
        assert bits(found[name]) == bits(value), name
        if not isinstance(value, str):
            assert tuple(found[name].shape) == tuple(value.shape), name


def assert_batch(batch: Batch, expected: list[dict]) -> None:
    """A packed batch holds exactly these rows, in this order."""
    assert len(batch) == len(expected)
    for found, row in zip(batch, expected, strict=True):
        assert_same_row(found, row)
    for name, value in batch.columns.items():
        if isinstance(value, Ragged):
            assert value.offsets[0] == 0
            assert value.offsets[-1] == len(value.values) == sum(len(row[name]) for row in expected)


def assert_zarr_shows(path, schema, rows):
    group = zarr.open_group(path, mode="r")
    for name, column in schema.columns.items():
        assert group[name][...].tobytes() == expected_bytes(
            column, [row[name] for _, row in rows]
        ), name


def expected_bytes(column, values):
    return b"".join(value.encode() if column.is_text else bits(value) for value in values)
