"""What other Zarr clients are told: where columns are, what they mean, and dimensions that xarray
accepts."""

import json

import numpy as np
import pytest
import zarr
from damage import edit_json
from hypothesis import given
from hypothesis import strategies as st
from oracle import WRITTEN, expected_bytes, make_rows, write_store
from sample import ROWS as OLD_ROWS
from sample import unpack

from store import Column, Schema, StoreWriter, TraceStore
from store.check.repair import plan_repair, repair_store
from store.check.verify import verify_store
from store.format.zarr_json import array_infos, earlier_infos

LAYERS = {"axis": "tokens", "axis_names": ("layers", "hidden")}


WORDS = "rows rows_ t t_items t_items_ t_bytes layers a a_layers a_axis0 axis0 offsets"
NAMES = st.sampled_from(WORDS.split())
COLUMNS = st.one_of(
    st.just(Column("utf8")),
    st.builds(
        lambda axis, shape, names: Column(
            "int8", shape, axis, names[: len(shape)] if names else ()
        ),
        st.none() | NAMES,
        st.lists(st.integers(1, 3), max_size=2),
        st.none() | st.lists(NAMES, min_size=2, max_size=2, unique=True),
    ),
)


@given(st.dictionaries(NAMES, COLUMNS, max_size=6))
def test_xarray_accepts_the_dimensions_of_every_schema(columns):
    """None is called like an array, no name has two sizes, and no array has a name twice."""
    texts = {name for name, column in columns.items() if column.is_text}
    schema = Schema({name: c for name, c in columns.items() if c.axis not in texts})
    infos = array_infos(schema)
    sizes = {}
    for name, column in schema.stored.items():
        first = schema.axis_of(name) or "one for each row"
        for dimension, size in zip(infos[name].names, (first, *column.item_shape), strict=True):
            assert sizes.setdefault(dimension, size) == size
    assert not sizes.keys() & infos.keys()
    assert all(len(set(info.names)) == len(info.names) for info in infos.values())
    firsts = {info.names[0] for path, info in infos.items() if path.startswith("_")}
    assert not firsts & set(schema.axes)


def test_the_names_are_those_that_the_specification_gives():
    """Plain names where all columns agree; a column's own where they do not, or where a column is
    called so."""
    schema = Schema(
        {
            "tokens": Column("int32", axis="tokens"),
            "hs": Column("float16", (4, 8), **LAYERS),
            "attn": Column("float16", (3, 8), **LAYERS),
            "states": Column("bfloat16", (2, 3)),
            "question": Column("utf8"),
            "rows": Column("int8"),
        }
    )
    infos = array_infos(schema)
    assert {path: info.names for path, info in infos.items()} == {
        "trace_id": ("trace_id_bytes",),
        "tokens": ("tokens_items",),
        "hs": ("tokens_items", "hs_layers", "hidden"),
        "attn": ("tokens_items", "attn_layers", "hidden"),
        "states": ("rows_", "states_axis0", "states_axis1"),
        "question": ("question_bytes",),
        "rows": ("rows_",),
        "_offsets/trace_id": ("offsets",),
        "_offsets/tokens": ("offsets",),
        "_offsets/question": ("offsets",),
    }
    assert infos["states"].attributes == {"column": "states", "dtype": "bfloat16"}
    text = {"column": "question", "dtype": "utf8", "offsets": "_offsets/question"}
    assert infos["question"].attributes == text
    assert infos["rows"].attributes == {"column": "rows"}


@pytest.mark.parametrize("whole", WRITTEN, indirect=True)
def test_zarr_python_finds_every_column_by_its_name(path):
    """Also one that was replaced, and lies in another array."""
    with StoreWriter.open(path) as writer:
        values = ({"label": np.int16(100 * row)} for row in range(len(writer)))
        writer.set_columns({"label": Column("int16")}, values)
    store, group = TraceStore.open(path), zarr.open_group(path, mode="r")
    arrays = group.attrs["columns"]
    assert list(arrays) == list(store.schema.stored)
    assert arrays["label"].startswith("label@")
    for name, column in store.schema.stored.items():
        found = group[arrays[name]]
        is_bytes = column.dtype in ("utf8", "bfloat16")
        assert found.attrs["column"] == name
        assert found.attrs.get("dtype") == (column.dtype if is_bytes else None)
        assert ("offsets" in found.attrs) == (store.schema.axis_of(name) is not None)
        assert found[...].tobytes() == expected_bytes(column, [trace[name] for trace in store])
    text = group[arrays["question"]]
    offsets = group[text.attrs["offsets"]][:]
    assert bytes(text[offsets[3] : offsets[4]]).decode() == store[3]["question"]


def document(path, array):
    return json.loads((path / array / "zarr.json").read_text())


def names_of(path, array):
    return document(path, array)["dimension_names"]


def assert_whole(path):
    report = verify_store(path)
    assert report.problems == report.leftovers == []


def test_new_columns_may_rename_the_dimensions_of_others(tmp_path):
    """The metadata of arrays that stay follows, in the same call."""
    schema = Schema({"hs": Column("float16", (4, 8), **LAYERS)})
    path = write_store(tmp_path / "s.zarr", schema, make_rows(schema, 3, seed=0))
    assert names_of(path, "hs") == ["tokens_items", "layers", "hidden"]
    with StoreWriter.open(path) as writer:
        new = {"hidden": Column("int8"), "attn": Column("int8", (3,), axis_names=("layers",))}
        writer.set_columns(new, ({"hidden": 1, "attn": [1, 2, 3]} for _ in range(3)))
        assert names_of(path, "hs") == ["tokens_items", "hs_layers", "hidden_"]
        assert verify_store(path).problems == []
        for trace_id, row in make_rows(writer.schema, 2, seed=1):
            writer.append(f"new {trace_id}", row)
    assert names_of(path, "hs") == ["tokens_items", "hs_layers", "hidden_"]
    assert_whole(path)


@pytest.mark.parametrize("whole", WRITTEN, indirect=True)
def test_dimensions_that_a_killed_writer_left_are_set_back(path):
    """The next writer writes them again; no problem until then."""
    (path / "_tmp").mkdir()
    edit_json(path / "flag/zarr.json", dimension_names=["other"])
    report = verify_store(path)
    assert report.problems == []
    assert report.headline() == "whole; metadata of 1 array that the next writer sets back"
    StoreWriter.open(path).close()
    assert names_of(path, "flag") == ["rows"]


def test_the_earlier_metadata_is_whole_until_the_next_writer_brings_it_up_to_date(tmp_path):
    """That of the first stores of format 1, of all arrays at once, so that their dimensions fit
    together; what is neither the earlier nor the present metadata is a problem."""
    path = unpack(tmp_path)
    schema = TraceStore.open(path).schema
    assert names_of(path, "tokens") == ["tokens"]
    for array, info in earlier_infos(schema).items():
        assert names_of(path, array) == list(info.names)
    assert "columns" not in document(path, ".")["attributes"]
    assert_whole(path)
    for change in ({"dimension_names": ["rows"]}, {"attributes": {"column": "tokens_"}}):
        before = edit_json(path / "tokens/zarr.json", **change)
        (problem,) = verify_store(path).problems
        assert problem.kind == "document"
        edit_json(path / "tokens/zarr.json", **before)
    with StoreWriter.open(path) as writer:
        writer.append("new", OLD_ROWS[3][1])
    for array, info in array_infos(schema).items():
        assert names_of(path, array) == list(info.names)
        assert document(path, array)["attributes"] == info.attributes
    assert document(path, ".")["attributes"]["columns"]["label"].startswith("label@")
    assert_whole(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda attributes: attributes["columns"].update(label="flag"),
        lambda attributes: attributes["columns"].pop("label"),
        lambda attributes: attributes.update(columns=None),
    ],
)
def test_wrong_paths_of_columns_are_a_problem_that_repair_mends(path, change):
    """Attributes of others are none."""
    attributes = document(path, ".")["attributes"] | {"note": "mine"}
    edit_json(path / "zarr.json", attributes=attributes)
    assert verify_store(path).problems == []
    change(attributes)
    edit_json(path / "zarr.json", attributes=attributes)
    (problem,) = verify_store(path).problems
    expected = "document: zarr.json: expected attribute columns {'trace_id': 'trace_id', "
    assert str(problem).startswith(expected)
    repair_store(path, plan_repair(path))
    assert verify_store(path).problems == []
    assert document(path, ".")["attributes"]["columns"]["label"] == "label"
