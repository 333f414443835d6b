"""Many rows in one call: the same bytes as row by row, all of them or none."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from damage import content
from oracle import SCHEMA, make_rows, write_store
from sample import ROWS as SAMPLE_ROWS
from sample import SCHEMA as SAMPLE
from small import complaint

from store import Column, IncompleteError, Ragged, Schema, SchemaError, StoreWriter, TraceStore
from store.check.verify import verify_store
from store.write import writer as writer_module

# gzip writes the second in which it compressed
PLAIN = Schema({name: one for name, one in SAMPLE.columns.items() if name != "gzipped"})
PLAIN_ROWS = [
    (trace_id, {name: row[name] for name in PLAIN.columns}) for trace_id, row in SAMPLE_ROWS
]
TWO = Schema({"x": Column("int32", axis="t"), "y": Column("int8", (2,)), "text": Column("utf8")})
VALUES = {
    "x": Ragged(np.arange(5), np.array([0, 2, 2, 5])),
    "y": np.zeros((3, 2), int),
    "text": ["a", "", "é"],
}
IDS = ["r0", "r1", "r2"]


@pytest.mark.parametrize(
    ("schema", "rows", "arrays"),
    [
        (SCHEMA, make_rows(SCHEMA, 40, seed=3), "numpy"),
        (SCHEMA, make_rows(SCHEMA, 40, seed=3), "torch"),
        (PLAIN, PLAIN_ROWS, "torch"),
    ],
)
def test_blocks_of_any_size_give_the_bytes_of_single_rows(tmp_path, schema, rows, arrays):
    """Every dtype, ragged axes, empty rows, whole shards and tails; single rows between blocks."""
    one = TraceStore.open(write_store(tmp_path / "one.zarr", schema, rows))
    with StoreWriter.create(tmp_path / "many.zarr", schema) as writer:
        start = 0
        for size in (0, 1, 3, len(rows)):
            block = range(start, min(len(rows) - 1, start + size))
            batch = one.read(block, arrays=arrays)
            writer.append_many([rows[row][0] for row in block], batch)
            start = block.stop
        writer.append(*rows[-1])
    files = [content(path) for path in (tmp_path / "many.zarr", one.path)]
    for found in files:
        found.pop("zarr.json")  # which has the store's uuid
    assert files[0] == files[1]
    assert not verify_store(tmp_path / "many.zarr").problems


def test_an_arrow_table_is_appended(tmp_path):
    """Lists are rows of ragged columns, lists of one length items; its chunks need not agree."""
    values = {"x": [[0, 1], [], [2, 3, 4]], "y": [[1, 2], [3, 4], [5, 6]], "text": ["a", "", "é"]}
    chunks = [[[9], values["x"][0]], values["x"][1:]]
    table = pa.table(
        {
            "x": pa.chunked_array(chunks, pa.list_(pa.int32())).slice(1),
            "y": pa.array(values["y"], pa.list_(pa.int8(), 2)),
            "text": pa.array(values["text"]),
        }
    )
    with StoreWriter.create(tmp_path / "s.zarr", TWO) as writer:
        writer.append_many(IDS, table)
    batch = TraceStore.open(tmp_path / "s.zarr").read(range(3))
    found = {"x": [row["x"].tolist() for row in batch], "y": batch["y"].tolist()}
    assert found | {"text": batch["text"]} == values


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_empty_lists_of_an_arrow_table_have_the_shape_of_the_column(tmp_path, dtype):
    """Of no lists nobody knows how long they are, nor of what."""
    schema = Schema({"x": Column(dtype, (2, 3), "t")})
    for i, kind in enumerate([pa.list_(pa.list_(pa.list_(pa.int32()))), pa.list_(pa.null()), None]):
        table = pa.table({"x": pa.array([[], []], *filter(None, [kind]))})
        with StoreWriter.create(tmp_path / f"{i}.zarr", schema) as writer:
            writer.append_many(["a", "b"], table)
            writer.append_many([], table.slice(2))
        store = TraceStore.open(tmp_path / f"{i}.zarr")
        assert len(store) == 2
        assert store["b"]["x"].shape == (0, 2, 3)


FLATTENED = {
    "pairs": (
        np.array([1 + 2j, 3j], np.complex64)[..., None].view(np.float32),
        Column("float32", (2,), "u"),
    ),
    "data": (np.frombuffer(b"\xff\0", np.uint8), Column("uint8", axis="data")),
    "texts": (json.dumps(["a", "é"]), Column("utf8")),
}


def test_what_is_refused_is_stored_in_the_way_that_the_error_says(tmp_path):
    schema = Schema({name: column for name, (_, column) in FLATTENED.items()})
    row = {name: value for name, (value, _) in FLATTENED.items()}
    with StoreWriter.create(tmp_path / "s.zarr", schema) as writer:
        writer.append("a", row)
        for changed, message in (
            ({"texts": ["a", "é"]}, "found list; json.dumps makes one of several"),
            ({"texts": b"a"}, "found bytes; decode it, or store uint8"),
            ({"pairs": np.zeros((1, 2), np.complex64)}, "expected float32, found complex64"),
        ):
            assert message in complaint(SchemaError, writer.append, "b", row | changed)
    found = TraceStore.open(tmp_path / "s.zarr")["a"]
    assert np.asarray(found["pairs"]).view(np.complex64)[:, 0].tolist() == [1 + 2j, 3j]
    assert json.loads(found["texts"]) == ["a", "é"]
    assert np.asarray(found["data"]).tobytes() == b"\xff\0"


LISTS = pa.array([[1], None, [2]], pa.list_(pa.int32()))
UNEVEN = pa.array([[1, 2], [3], [4, 5]], pa.list_(pa.int8()))


@pytest.mark.parametrize(
    ("ids", "changed", "message"),
    [
        (["r0", "r1", "r0"], {}, "'r0': expected a new id, found it twice among the rows"),
        (["r0", "r1", "old"], {}, "'old': expected a new id, found it in the store already"),
        (["r0", "", "r2"], {}, "trace_id: expected a string of 1 to 1024 bytes, found ''"),
        (["r0", 1, "r2"], {}, "trace_id, row 1: expected a string, found int"),
        (["r0", "r1"], {}, "column 'x': expected 2 rows like ids, found 3"),
        (IDS, {"z": 1}, "rows: expected columns of the schema, found 'z'"),
        (IDS, {"text": ["a", None, "b"]}, "column 'text', row 1: expected a string, found NoneT"),
        (IDS, {"y": np.zeros((3, 3), int)}, r"column 'y': expected shape (n, 2), found (3, 3)"),
        (IDS, {"y": np.full((3, 2), 128)}, "column 'y': expected integers from -128 to 127"),
        (IDS, {"x": np.arange(5)}, "column 'x': expected Ragged(values, offsets), found ndarray"),
        (
            IDS,
            {"x": Ragged(np.arange(5), [0, 2, 1, 5])},
            "offsets that never fall, from 0 to its 5",
        ),
        (IDS, {"x": Ragged(np.arange(5), [0.0, 5.0])}, "expected offsets, integers (n_rows + 1,)"),
        (IDS, {"y": np.ma.masked_all((3, 2), int)}, "expected an array without a mask, found one"),
        (IDS, {"x": LISTS}, "column 'x': expected lists without nulls, found list"),
        (IDS, {"y": pa.array([1, None, 2])}, "column 'y': expected numbers without nulls, found"),
        (IDS, {"y": torch.zeros(3, 2).to(torch.float8_e5m2)}, "tensor.view(torch.uint8) as uint8"),
        ("abc", {}, "trace_ids: expected a list of ids, found the string 'abc'"),
        (IDS, {"y": UNEVEN}, "column 'y': expected inner lists of one length, found [1, 2]"),
    ],
)
def test_one_wrong_value_leaves_all_rows_out(tmp_path, ids, changed, message):
    """The store, and the writer, are as they were."""
    with StoreWriter.create(tmp_path / "s.zarr", TWO) as writer:
        row = {"x": [1], "y": [1, 2], "text": "t"}
        writer.append("old", row)
        writer.commit()
        writer.append("new", row)
        assert message in complaint(SchemaError, writer.append_many, ids, VALUES | changed)
        assert len(writer) == 2
        writer.append_many(IDS, VALUES)
    store = TraceStore.open(tmp_path / "s.zarr")
    assert store.ids[:] == ["old", "new", *IDS]
    assert store["r2"]["x"].tolist() == [2, 3, 4]


def test_columns_of_one_axis_have_rows_of_the_same_lengths(tmp_path):
    """The row and both lengths are named."""
    schema = Schema({"a": Column("int8", axis="t"), "b": Column("int8", axis="t")})
    values = {
        "a": Ragged(np.zeros(3, np.int8), [0, 1, 3]),
        "b": Ragged(np.zeros(3, np.int8), [0, 2, 3]),
    }
    with StoreWriter.create(tmp_path / "s.zarr", schema) as writer:
        said = complaint(SchemaError, writer.append_many, ["p", "q"], values)
    assert "column 'b', axis 't': expected 1 items in row 0" in said
    assert said.endswith("found 2")


def test_a_block_is_committed_when_it_is_time_and_a_closed_writer_refuses(tmp_path, monkeypatch):
    """As rows one by one are."""
    monkeypatch.setattr(writer_module, "COMMIT_ROWS", 3)
    writer = StoreWriter.create(tmp_path / "s.zarr", TWO)
    writer.append_many(IDS, VALUES)
    assert len(TraceStore.open(tmp_path / "s.zarr")) == 3
    writer.close()
    with pytest.raises(IncompleteError, match="it was closed"):
        writer.append_many(["r3", "r4", "r5"], VALUES)
