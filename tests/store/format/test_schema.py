import pytest
from small import store_columns

from store import Column, NotFoundError, Schema, SchemaError


def test_chosen_chunks_are_whole_in_a_shard_and_small_enough():
    """A trace's columns, from a byte to a megabyte an item."""
    for shape in [(), (32,), (32, 4096), (1000, 1000)]:
        column = Column("float16", shape)
        assert column.shard_items % column.chunk_items == 0
        assert column.chunk_items == 1 or column.chunk_items * column.item_bytes <= 65536


@pytest.mark.parametrize("codec", [None, "zstd:1"])
@pytest.mark.parametrize("split", [(), ("layers",)])
def test_a_shard_of_small_chunks_has_a_small_table(tmp_path, codec, split):
    """Three rows are a small file, however few items a chunk has."""
    options = {"axis_names": ("layers",), "split": split, "codec": codec}
    columns = {
        f"x{n}": (Column("int8", (3,), **options, chunk_items=n), [[1, 2, 3]] * 3)
        for n in (1, 8, 1000)
    }
    store = store_columns(tmp_path / "s.zarr", columns)
    for name in columns:
        assert store[1][name].tolist() == [1, 2, 3]
        assert store.file_bytes(name) < 2**21


@pytest.mark.parametrize(
    "column, shard_items",
    [
        (Column("int8"), 2**27),
        (Column("float16", (32, 40_000)), 52),
        (Column("float16", (40, 4096), axis_names=("a", "b"), split=("a",)), 408),
        (Column("float16", (20_000,), codec="zstd"), 3354),
        (Column("int8", chunk_items=8, shard_items=2**27), 2**27),
    ],
)
def test_items_of_a_shard_stay(column, shard_items):
    """Those that are chosen with the chunks, and those that somebody names."""
    assert column.shard_items == shard_items


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"dtype": "float12"}, "expected one of bool.*'float12'$"),
        ({"dtype": "float8_e4m3fn"}, r"'float8_e4m3fn'; store the bits: values.view\(np.uint8\)"),
        ({"dtype": "utf8[]"}, r"'utf8\[\]'; store a list of texts as utf8, with json.dumps"),
        ({"dtype": "complex64"}, r"values\[..., None\].view\(np.float32\) as float32 items"),
        ({"dtype": "bytes"}, "as uint8 on a ragged axis of its own"),
        ({"dtype": "list[str]"}, "as utf8, with json.dumps"),
        ({"dtype": "int8", "axis": ("queries", "keys")}, "expected one ragged axis.* T x T"),
        ({"dtype": "float16", "item_shape": (0,)}, "positive integers"),
        ({"dtype": "float64", "item_shape": (2**20, 2**20)}, "an item of at most"),
        ({"dtype": "utf8", "axis": "tokens"}, "leave item_shape and axis out"),
        ({"dtype": "int8", "axis": "../x"}, "expected a letter"),
        ({"dtype": "int8", "item_shape": (2,), "axis_names": ("a", "b")}, "expected 1 names"),
        ({"dtype": "int8", "item_shape": (2, 2), "axis_names": ("a", "a")}, "different names"),
        ({"dtype": "int8", "item_shape": (2,), "split": ("a",)}, "expected some of"),
        (
            {"dtype": "int8", "item_shape": (2,), "axis_names": ("a",), "split": ("a", "a")},
            "each once",
        ),
        ({"dtype": "int8", "chunk_items": -1}, "positive integer"),
        ({"dtype": "int8", "chunk_items": 4, "shard_items": 6}, "multiple of chunk_items=4"),
    ],
)
def test_wrong_columns_are_refused(arguments, message):
    with pytest.raises(SchemaError, match=message):
        Column(**arguments)


@pytest.mark.parametrize(
    "name", ["../x", "/etc", "", "a/b", "a.b", "_offsets", "nul\0", "x" * 65, "é", 3, ".", "c d"]
)
def test_names_cannot_leave_the_store(name):
    with pytest.raises(SchemaError, match="expected a letter"):
        Schema({name: Column("int8")})


def test_reserved_and_unknown_names_are_refused():
    with pytest.raises(SchemaError, match="every store has it"):
        Schema({"trace_id": Column("utf8")})
    with pytest.raises(SchemaError, match="owns it"):
        Schema({"question": Column("utf8"), "x": Column("int8", axis="question")})
    with pytest.raises(NotFoundError, match="found 'hidden_state'; closest: 'hidden_states'"):
        Schema({"hidden_states": Column("int8")}).column("hidden_state")
