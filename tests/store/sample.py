"""Stores of format 1 and 2, written once and committed: they must read for ever. Run as a script,
this file makes the second again."""

import shutil
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from store import Column, Schema, StoreWriter, TraceStore
from store.transform.merge import merge_stores

# 1 MB each, most of it zeros, in files of 50 to 80 kB
PACKED = Path(__file__).parents[1] / "data"
LAYERS = {"axis_names": ("layers", "hidden"), "split": ("layers",)}
FIRST = Schema(
    {
        "tokens": Column("int32", axis="tokens", chunk_items=4, shard_items=16),
        "hidden": Column("float16", (3, 5), axis="tokens", **LAYERS, chunk_items=4, shard_items=32),
        "zipped": Column("float64", axis="tokens", codec="zstd", chunk_items=4, shard_items=16),
        "attn": Column("float32", (2,), axis="pairs", chunk_items=8, shard_items=64),
        "planes": Column(
            "int16", (2, 3), axis="pairs", **LAYERS, codec="blosc", chunk_items=4, shard_items=64
        ),
        "states": Column("bfloat16", (2, 3), chunk_items=3, shard_items=12),
        "gzipped": Column("uint16", codec="gzip:1", chunk_items=4, shard_items=16),
        "byte": Column("uint8", chunk_items=32, shard_items=64),
        "word": Column("uint32", (2,), codec="blosc:lz4:5:shuffle"),
        "long": Column("uint64", chunk_items=32, shard_items=64),
        "flag": Column("bool", chunk_items=32, shard_items=64),
        "label": Column("int8"),
        "question": Column("utf8", chunk_items=16, shard_items=1024),
        "answer": Column("utf8", codec="zstd:9", chunk_items=16, shard_items=1024),
    }
)
REPLACED = Column("int64", chunk_items=4, shard_items=8)
SCHEMA = Schema(FIRST.columns | {"label": REPLACED})
TEXTS = ("", "plain", "naïve ✓ 中文 🙂", "two\nlines\x00")
N_ROWS, COMMITS = 19, (5, 6, 13, 19)


def value_of(name: str, column: Column, row: int) -> object:
    """The value of a column in a row: bits from a multiplication; in some rows no items."""
    if column.is_text:
        return TEXTS[(row + len(name)) % len(TEXTS)] * (1 + row % 2)
    shape = (row * 5 % 7 * (column.axis == "pairs") + row * 3 % 4,) if column.axis else ()
    shape += column.item_shape
    numbers = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) + np.uint64(
        1000 * row + sum(name.encode())
    )
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
    if column.dtype == "bool":
        return (mixed >> np.uint64(63)).astype(bool).reshape(shape)
    n_bytes = column.storage_dtype.itemsize
    bits = (mixed >> np.uint64(64 - 8 * n_bytes)).astype(f"<u{n_bytes}").reshape(shape)
    if column.dtype == "bfloat16":
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    return bits.view(column.storage_dtype)


def row_of(schema: Schema, row: int) -> tuple[str, dict]:
    return f"trace {row} é", {
        name: value_of(name, column, row) for name, column in schema.columns.items()
    }


ROWS = [row_of(SCHEMA, row) for row in range(N_ROWS)]


def make(path: Path) -> None:
    """Four commits by two writers, and a column replaced between them."""
    StoreWriter.create(path, FIRST, {"model": "none", "naïve": [1, 2.5, None]}).close()
    with StoreWriter.open(path) as writer:
        for row in range(COMMITS[1]):
            writer.append(*row_of(FIRST, row))
            if row + 1 in COMMITS:
                writer.commit()
        writer.set_columns({"label": REPLACED}, (values for _, values in ROWS[: COMMITS[1]]))
    with StoreWriter.open(path) as writer:
        for row in range(COMMITS[1], N_ROWS):
            writer.append(*ROWS[row])
            if row + 1 in COMMITS:
                writer.commit()


def make_merged(path: Path) -> None:
    """Three parts merged by reference, with segments in every column but the ids; and a commit
    after that."""
    parts = []
    for first, stop in zip((0, *COMMITS[:2]), COMMITS[:3], strict=True):
        part = path.with_name(f"{first}.zarr")
        with StoreWriter.create(part, SCHEMA, {"model": "none"}) as writer:
            for row in range(first, stop):
                writer.append(*ROWS[row])
        parts.append(TraceStore.open(part, check=True))
    with patch("store.write.link.SMALL_ITEM_BYTES", 0):
        merge_stores(path, parts, lambda done: None)
    with StoreWriter.open(path) as writer:
        for row in range(COMMITS[2], N_ROWS):
            writer.append(*ROWS[row])
    for part in parts:
        shutil.rmtree(part.path)


def unpack(folder: Path, version: int = 1) -> Path:
    name = f"format{version}.zarr"
    shutil.unpack_archive(PACKED / f"{name}.zip", folder)
    return folder / name


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make_merged(Path(folder, "format2.zarr"))
        shutil.make_archive(str(PACKED / "format2.zarr"), "zip", folder)
