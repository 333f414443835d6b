"""The bytes of a store that is planned are those that a writer makes."""

from pathlib import Path

import numpy as np
import pytest

from store import Column, Schema, StoreWriter
from store.sources.plan.sizes import BLOCK_BYTES, OVERHEAD, ROOT_BYTES, plan_store

SCHEMA = Schema(
    {
        "label": Column("int8"),
        "question": Column("utf8"),
        "states": Column("float16", (4, 8), "tokens", ("layers", "hidden"), chunk_items=16),
        "planes": Column(
            "float16", (4, 8), "tokens", ("layers", "hidden"), ("layers",), None, 8, 32
        ),
        "packed": Column("int32", (3,), "tokens", codec="zstd:1", chunk_items=16, shard_items=64),
    }
)


def write(path, n_rows, schema=SCHEMA):
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


def bytes_of(path):
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def disk_bytes_of(path):
    """Whole blocks of the files, and a block of each folder, as `du` counts on ext4."""
    places = [path, *path.rglob("*")]
    sizes = [place.stat().st_size if place.is_file() else 1 for place in places]
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes)


@pytest.mark.parametrize("n_rows", [1, 7, 200, 1100])
def test_raw_bytes_and_files_are_exact(n_rows, tmp_path):
    """Whatever the shards, planes and tails; the root's JSON alone is estimated."""
    path = tmp_path / "s.zarr"
    items = write(path, n_rows)
    planned = plan_store(SCHEMA, n_rows, items, {})
    sizes = planned.columns
    for name in SCHEMA.stored:
        if name != "packed":
            assert sizes[name] == bytes_of(path / name), name
    internal = sum(map(bytes_of, (path / "_offsets", path / "_checksums", path / "_index")))
    assert sizes[OVERHEAD] == internal + ROOT_BYTES
    assert planned.n_files == sum(file.is_file() for file in path.rglob("*"))
    assert planned.n_folders == sum(place.is_dir() for place in (path, *path.rglob("*")))


def test_the_disk_loses_whole_blocks(tmp_path):
    """Of files and of folders, as `du` counts them; of a small store a multiple of its bytes."""
    columns = {name: column for name, column in SCHEMA.columns.items() if name != "packed"}
    items = write(tmp_path / "s.zarr", 200, Schema(columns))
    planned = plan_store(Schema(columns), 200, items, {})
    root = BLOCK_BYTES * -(-ROOT_BYTES // BLOCK_BYTES) - BLOCK_BYTES  # it is smaller here
    assert planned.disk_bytes == disk_bytes_of(tmp_path / "s.zarr") + root
    assert planned.disk_bytes > planned.n_bytes


def test_a_compressed_column_shrinks_as_it_is_told(tmp_path):
    """By the factor of its values; the tables of its shards do not."""
    path = tmp_path / "s.zarr"
    items = write(path, 400)
    raw = plan_store(SCHEMA, 400, items, {}).columns["packed"]
    table = bytes_of(path / "packed") - sum(len(data) for data in chunks_of(path))
    values = items["tokens"] * 12
    shrink = values / sum(len(data) for data in chunks_of(path))
    sizes = plan_store(SCHEMA, 400, items, {"packed": shrink}).columns
    assert sizes["packed"] == pytest.approx(bytes_of(path / "packed"), rel=0.02)
    assert raw > sizes["packed"] > table


def chunks_of(path):
    """The bytes of the chunks of the compressed column, without the tables of 4 entries."""
    files = Path(path / "packed" / "c").rglob("*")
    return [file.read_bytes()[: -(4 * 16 + 4)] for file in files if file.is_file()]


def test_parts_have_files_of_their_own(tmp_path):
    """Three parts of ten rows are two stores of three and one of four."""
    items = {"tokens": 60, "question": 120, "trace_id": 30}
    parts = plan_store(SCHEMA, 10, items, {}, 3)
    alone = [
        plan_store(SCHEMA, n, {k: v * n // 10 for k, v in items.items()}, {}) for n in (3, 3, 4)
    ]
    assert parts.n_bytes == sum(part.n_bytes for part in alone)
    assert parts.n_files == sum(part.n_files for part in alone)
    assert plan_store(SCHEMA, 2, items, {}, 5) == plan_store(SCHEMA, 2, items, {}, 2)


def test_a_store_without_rows():
    """It has its metadata."""
    planned = plan_store(SCHEMA, 0, {"tokens": 0, "question": 0, "trace_id": 0}, {})
    assert planned.n_bytes > ROOT_BYTES
