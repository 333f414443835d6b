"""The bytes of a store that is planned are those that a writer makes."""

import numpy as np
import pytest

from store import Column, Schema, StoreWriter
from store.sources.plan.extraction import BLOCK_BYTES, OVERHEAD, ROOT_BYTES, plan_store

STATES = ("float16", (4, 8), "tokens", ("layers", "hidden"))
RAW = {
    "label": Column("int8"),
    "question": Column("utf8"),
    "states": Column(*STATES, chunk_items=16),
    "planes": Column(*STATES, ("layers",), None, 8, 32),
}
PACKED = Column("int32", (3,), "tokens", codec="zstd:1", chunk_items=16, shard_items=64)


def write(path, n_rows, schema):
    """A store of rows of 0 to 6 tokens; the number of tokens and of bytes of text."""
    rng = np.random.default_rng(n_rows)
    items = {"tokens": 0, "question": 0, "trace_id": 0}
    with StoreWriter.create(path, schema) as writer:
        for i in range(n_rows):
            n = int(rng.integers(0, 7))
            states = np.ones((n, 4, 8), np.float16)
            row = {"label": 1, "question": "é" * n, "states": states, "planes": states}
            row["packed"] = rng.integers(0, 99, (n, 3), np.int32)
            writer.append(f"t{i}", {name: row[name] for name in schema.columns})
            items["tokens"] += n
            items["question"] += 2 * n
            items["trace_id"] += len(f"t{i}")
    return items


def sizes_of(path):
    return [file.stat().st_size for file in path.rglob("*") if file.is_file()]


@pytest.mark.parametrize("n_rows", [1, 7, 200, 1100])
def test_raw_bytes_and_files_are_exact(n_rows, tmp_path):
    """Whatever the shards, planes and tails; the root's JSON alone is estimated. The disk loses
    whole blocks of files and of folders, as `du` counts them on ext4."""
    path = tmp_path / "s.zarr"
    schema = Schema(RAW)
    planned = plan_store(schema, n_rows, write(path, n_rows, schema), {})
    for name in schema.stored:
        assert planned.columns[name] == sum(sizes_of(path / name)), name
    internal = sum(sum(sizes_of(path / name)) for name in ("_offsets", "_checksums", "_index"))
    assert planned.columns[OVERHEAD] == internal + ROOT_BYTES
    assert planned.n_files == len(sizes_of(path))
    assert planned.n_folders == sum(place.is_dir() for place in (path, *path.rglob("*")))
    root = (path / "zarr.json").stat().st_size
    n_blocks = sum(-(-size // BLOCK_BYTES) for size in [*sizes_of(path), ROOT_BYTES])
    n_blocks += planned.n_folders - -(-root // BLOCK_BYTES)
    assert planned.disk_bytes == n_blocks * BLOCK_BYTES


def test_a_compressed_column_shrinks_as_it_is_told(tmp_path):
    """By the factor of its values; the tables of its shards do not."""
    path, schema = tmp_path / "s.zarr", Schema({**RAW, "packed": PACKED})
    items = write(path, 400, schema)
    files = [file for file in (path / "packed" / "c").rglob("*") if file.is_file()]
    n_chunk_bytes = sum(file.stat().st_size - (4 * 16 + 4) for file in files)  # without its table
    shrink = items["tokens"] * 12 / n_chunk_bytes
    written = sum(sizes_of(path / "packed"))
    raw, planned = (
        plan_store(schema, 400, items, shrinks).columns["packed"]
        for shrinks in ({}, {"packed": shrink})
    )
    assert planned == pytest.approx(written, rel=0.02)
    assert raw > planned > written - n_chunk_bytes


def test_parts_have_files_of_their_own():
    """Three parts of ten rows are two stores of three and one of four; rows are not cut."""
    schema, items = Schema(RAW), {"tokens": 60, "question": 120, "trace_id": 30}
    of_rows = {n: {axis: total * n // 10 for axis, total in items.items()} for n in (3, 4)}
    parts = plan_store(schema, 10, items, {}, 3)
    alone = [plan_store(schema, n, of_rows[n], {}) for n in (3, 3, 4)]
    assert parts.n_bytes == sum(part.n_bytes for part in alone)
    assert parts[1:] == tuple(map(sum, zip(*(part[1:] for part in alone), strict=True)))
    assert plan_store(schema, 2, items, {}, 5) == plan_store(schema, 2, items, {}, 2)
    assert plan_store(schema, 0, dict.fromkeys(items, 0), {}).n_bytes > ROOT_BYTES
