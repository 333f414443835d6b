"""A store of format 1, written once and committed: it must read for ever. Run as a script, this file makes it again."""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from damage import edit_record
from oracle import assert_batch, assert_same_row
from test_store import assert_zarr_shows

from store import Column, Schema, StoreWriter, TraceStore, VersionError
from store.manifest import FORMAT_VERSION
from store.verify import verify_store

PACKED = Path(__file__).parents[1] / "data" / "format1.zarr.zip"  # 1 MB, most of it zeros, in one file of 50 kB
LAYERS = {"axis_names": ("layers", "hidden"), "split": ("layers",)}
FIRST = Schema(
    {
        "tokens": Column("int32", axis="tokens", chunk_items=4, shard_items=16),
        "hidden": Column("float16", (3, 5), axis="tokens", **LAYERS, chunk_items=4, shard_items=32),
        "zipped": Column("float64", axis="tokens", codec="zstd", chunk_items=4, shard_items=16),
        "attn": Column("float32", (2,), axis="pairs", chunk_items=8, shard_items=64),
        "planes": Column("int16", (2, 3), axis="pairs", **LAYERS, codec="blosc", chunk_items=4, shard_items=64),
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
    numbers = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) + np.uint64(1000 * row + sum(name.encode()))
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
    if column.dtype == "bool":
        return (mixed >> np.uint64(63)).astype(bool).reshape(shape)
    n_bytes = column.storage_dtype.itemsize
    bits = (mixed >> np.uint64(64 - 8 * n_bytes)).astype(f"<u{n_bytes}").reshape(shape)
    if column.dtype == "bfloat16":
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    return bits.view(column.storage_dtype)


def row_of(schema: Schema, row: int) -> tuple[str, dict]:
    return f"trace {row} é", {name: value_of(name, column, row) for name, column in schema.columns.items()}


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


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The committed store."""
    return unpack(tmp_path_factory.mktemp("format"))


@pytest.fixture
def copy(tmp_path):
    """A copy of it for a test that changes it."""
    return unpack(tmp_path)


def unpack(folder: Path) -> Path:
    shutil.unpack_archive(PACKED, folder)
    return folder / "format1.zarr"


@pytest.mark.parametrize("check", [False, True])
def test_the_committed_store_reads_as_it_was_written(path, check):
    """Every value of every dtype, kind of column and codec; empty rows; one column was replaced."""
    store = TraceStore.open(path, check=check)
    assert store.schema == SCHEMA
    assert store.schema.layout("label").path.startswith("label@")
    assert store.provenance == {"model": "none", "naïve": [1, 2.5, None]}
    assert list(store.ids) == [trace_id for trace_id, _ in ROWS]
    for row, (trace_id, values) in enumerate(ROWS):
        assert store.row_of(trace_id) == row
        assert_same_row(store[row], values)
    order = [7, 0, 18, 3, 3]
    assert_batch(store.read(order), [ROWS[row][1] for row in order])


def test_the_committed_store_is_whole(path):
    assert verify_store(path).problems == []


def test_zarr_python_reads_the_committed_store(path):
    names = [name for name in SCHEMA.columns if name != "label"]  # which lies in the array label@<n>
    assert_zarr_shows(path, Schema({name: SCHEMA.columns[name] for name in names}), ROWS)


def test_a_copy_can_be_appended_to(copy):
    """Its tails are taken up, whatever wrote them."""
    more = [(f"new {row}", row_of(SCHEMA, row)[1]) for row in range(N_ROWS, N_ROWS + 9)]
    with StoreWriter.open(copy) as writer:
        for row in more:
            writer.append(*row)
    store = TraceStore.open(copy, check=True)
    assert_batch(store.read(range(len(store))), [values for _, values in ROWS + more])
    assert [store.row_of(trace_id) for trace_id, _ in more] == list(range(N_ROWS, N_ROWS + 9))
    assert verify_store(copy).problems == []


def test_the_first_stores_had_no_checksums_of_their_ids(copy):
    """They are read, verified and appended to; what is written now has them."""
    edit_record(copy, lambda record: record.pop("run_sums"))
    assert len(TraceStore.open(copy, check=True).ids[:]) == N_ROWS
    assert verify_store(copy).problems == []
    with StoreWriter.open(copy) as writer:
        writer.append("new", row_of(SCHEMA, 3)[1])
        writer.commit()
        writer.merge_runs()
    assert TraceStore.open(copy, check=True).row_of("new") == N_ROWS
    assert TraceStore.open(copy)._manifest.run_sums


def test_a_newer_format_is_refused_with_what_to_do(copy):
    edit_record(copy, lambda record: record.update(format_version=FORMAT_VERSION + 1))
    for use in (TraceStore.open, StoreWriter.open, verify_store):
        with pytest.raises(VersionError, match=r"expected format version 1 or older, found 2; upgrade this package"):
            use(copy)


if __name__ == "__main__":
    PACKED.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder, "format1.zarr"))
        shutil.make_archive(str(PACKED.with_suffix("")), "zip", folder)
