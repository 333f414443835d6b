"""The manifest: whatever breaks an invariant is refused in one line, also by the reader that was
written from the document alone."""

import json
from copy import deepcopy

import pytest

from store import Column, CorruptError, Schema, TraceStore
from store.format.manifest import KEY, Manifest
from tests.independent_reader import Store, checksum

LAYERS = {"axis_names": ("a", "b"), "split": ("a",), "codec": "zstd"}
SCHEMA = {"x": Column("int32", axis="t"), "label": Column("int8"), "text": Column("utf8")}
SCHEMA["hidden"] = Column("float16", (3, 5), "t", **LAYERS, chunk_items=4, shard_items=32)
WHOLE = Manifest(
    Schema(SCHEMA, {"label": "label@3"}),
    generation=2,
    n_rows=5,
    n_items={"trace_id": 10, "t": 7, "text": 9},
    runs=((0, 3), (3, 5)),
    run_sums={"0-3": 1, "3-5": 2},
    tails={"x": [3]},
)
FEW = {"trace_id": 1, "t": 0, "text": 0}


@pytest.fixture
def write(tmp_path):
    """Writes the record, with changes by the paths of keys and the checksum that is right then."""

    def write_group(changes=(), manifest=WHOLE):
        record = deepcopy(manifest.to_attributes()[KEY])
        for path, value in dict(changes).items():
            *outer, last = path.split(".")
            target = record
            for key in outer:
                target = target[key]
            target[last] = value
        record["crc32c"] = checksum(record)
        group = {"zarr_format": 3, "node_type": "group", "attributes": {KEY: record}}
        (tmp_path / "zarr.json").write_text(json.dumps(group))
        return tmp_path

    return write_group


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"new": {"numbers": [1, 1e-5, 1.5e16, 1e-4, -0.0, 1e22], "text": "é😀\x7f\x00/"}},
        {"segments": {"x": [9]}},  # without a meaning in version 1
    ],
)
def test_a_whole_record_is_read(write, changes):
    """Keys of a later writer have no meaning."""
    path = write(changes)
    assert TraceStore.open(path).manifest == WHOLE
    assert Store(path).n_rows == 5


@pytest.mark.parametrize(
    "changes",
    [{"run_sums": {}}, {"tails.other": [5]}, {"generation": 2**48 - 1}],
)
def test_what_contradicts_nothing_is_read(write, changes):
    path = write(changes)
    assert TraceStore.open(path).generation == Store(path).manifest["generation"]


def segments(firsts, path="x"):
    return {"format_version": 2, "segments": {path: firsts}}


def column(name, value):
    return {f"schema.hidden.{name}": value}


RISE = "segments: x: expected first items that rise from 0 to less than 7, found"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 0}, "format_version: expected 1 or 2, found 0"),
        ({"format_version": True}, "format_version: expected 1 or 2, found True"),
        ({"format_version": "1"}, "format_version: expected 1 or 2, found '1'"),
        ({"uuid": 5}, "uuid: expected a str, found 5"),
        ({"n_items": [1]}, "n_items: expected a dict, found [1]"),
        ({"schema": []}, "schema: expected an object, found []"),
        ({"arrays": 3}, "arrays: expected an object, found 3"),
        ({"runs": {}}, "runs: expected a list, found {}"),
        ({"runs": [[0, 1, 2]]}, "too many values"),
        ({"runs": [[0, "3"], [3, 5]]}, "runs[0]: expected a count, found '3'"),
        ({"runs": [[0, 3], [4, 5]]}, "runs: expected row ranges without gaps"),
        ({"runs": [[0, 0], [0, 5]]}, "runs: expected row ranges without gaps"),
        ({"runs": [[0, 3]]}, "runs: expected them to end at row 5, found 3"),
        ({"generation": True}, "generation: expected a count, found True"),
        ({"generation": -1}, "generation: expected a count, found -1"),
        ({"n_rows": 2**48}, "n_rows: expected a count, found 281474976710656"),
        ({"n_items.t": "7"}, "t: expected a count, found '7'"),
        ({"n_items.other": 0}, "n_items: expected the axes ['trace_id', 't', 'text'], found"),
        ({"n_items.trace_id": 4}, "n_items: expected ids of at least 5 bytes"),
        ({"n_items.trace_id": 2**47}, "array 'trace_id': expected at most 131072 shards"),
        ({"n_rows": 0, "runs": [], "n_items": FEW}, "n_items: expected none without rows"),
        ({"tails.x": 3}, "x: expected checksums, found 3"),
        ({"tails.x": [2**32]}, "x: expected checksums, found [4294967296]"),
        ({"tails.run_sums": [-1]}, "run_sums: expected checksums, found [-1]"),
        ({"run_sums.0-3": "a"}, "run_sums: expected checksums, found ['a', 2]"),
        ({"arrays.label": "label@03"}, "arrays: expected a column's name, '@' and a number"),
        ({"arrays.label": "x@3"}, "arrays: expected a column's name, '@' and a number"),
        ({"arrays.trace_id": "trace_id@1"}, "arrays: expected a column's name, '@' and a number"),
        (column("other", 1), "a column's description: expected the keys"),
        (column("dtype", "complex64"), "dtype: expected one of"),
        (column("axis", "text"), "axis 'text': a utf8 column of that name owns it"),
        (column("axis", "../x"), "axis: expected a letter"),
        (column("axis_names", "a"), "axis_names: expected an array, found 'a'"),
        (column("axis_names", ["a", "a"]), "axis_names: expected different names"),
        (column("split", None), "split: expected an array, found None"),
        (column("split", ["other"]), "split: expected some of"),
        (column("codec", "lz4"), "codec: expected"),
        (column("item_shape", 2), "item_shape: expected an array, found 2"),
        (column("item_shape", [2**31, 5]), "item_shape: expected an item of at most"),
        (column("chunk_items", 0), "chunk_items: expected a positive integer below"),
        (column("chunk_items", None), "chunk_items: expected a positive integer below"),
        (column("chunk_items", 2**29), "chunk_items: expected compressed chunks of at most"),
        (column("shard_items", None), "shard_items: expected a positive integer below"),
        (column("shard_items", 8.0), "shard_items: expected a positive integer below"),
        (column("shard_items", 33), "shard_items: expected a multiple of chunk_items=4"),
        ({"format_version": 2}, "'segments'"),
        ({"format_version": 2, "segments": None}, "segments: expected a dict, found None"),
        (segments([0, 2], "y"), "segments: expected arrays of columns, found 'y'"),
        (segments([0, 2], "_offsets/t"), "segments: expected arrays of columns, found '_off"),
        (segments(3), f"{RISE} 3"),
        (segments([]), f"{RISE} []"),
        (segments([1, 2]), f"{RISE} [1, 2]"),
        (segments([0, 7]), f"{RISE} [0, 7]"),
        (segments([0, 3, 3]), f"{RISE} [0, 3, 3]"),
        (segments([0, 5.0]), f"{RISE} [0, 5.0]"),
        (segments([False, 2]), f"{RISE} [False, 2]"),
    ],
)
def test_a_broken_invariant_is_refused_in_one_line(write, changes, message):
    path = write(changes)
    with pytest.raises(CorruptError) as caught:
        TraceStore.open(path)
    text = str(caught.value)
    assert text.startswith(f"{path}/zarr.json: expected a store's attributes, found a fault: ")
    assert message in text
    assert "\n" not in text
    with pytest.raises(ValueError, match=r"."):
        Store(path)


@pytest.mark.parametrize("key", [*WHOLE.to_attributes()[KEY]])
def test_a_missing_key_is_refused(key):
    """But checksums of runs, which the first stores did not have."""
    record = WHOLE.to_attributes()[KEY]
    del record[key]
    if key != "crc32c":
        record["crc32c"] = checksum(record)
    if key == "run_sums":
        assert Manifest.from_attributes({KEY: record}, "here").run_sums == {}
        return
    with pytest.raises(CorruptError, match="here: "):
        Manifest.from_attributes({KEY: record}, "here")


def test_names_of_columns_cannot_hide_a_fault(write):
    """An axis or an array may have the name of a field of the record."""
    columns = Schema({"run_sums": Column("int8"), "x": Column("int8", axis="generation")})
    items = {"trace_id": 1, "generation": 1}
    manifest = Manifest(columns, n_rows=1, n_items=items, runs=((0, 1),))
    assert TraceStore.open(write(manifest=manifest)).manifest == manifest
    for path, message in (("generation", "a count"), ("tails.run_sums", "checksums")):
        with pytest.raises(CorruptError, match=f"{path.split('.')[-1]}: expected {message}"):
            TraceStore.open(write({path: -1}, manifest))


def test_segments_are_version_2_and_nothing_else_is(write):
    firsts = {"x": [0, 4], "label@3": [0, 1, 2, 3, 4]}
    read = TraceStore.open(write({"format_version": 2, "segments": firsts})).manifest
    assert read.segments == firsts
    assert read.to_attributes()[KEY]["format_version"] == 2
    read = TraceStore.open(write({"format_version": 2, "segments": {}})).manifest
    assert read.to_attributes()[KEY] == WHOLE.to_attributes()[KEY]


def test_segments_of_too_many_shards_are_refused(write):
    """Each has a shard at least; numbers are added before they could wrap."""
    n_rows = 2**17 + 1
    columns = Schema({"x": Column("int8", chunk_items=1, shard_items=2**39)})
    whole = Manifest(columns, n_rows=n_rows, n_items={"trace_id": n_rows}, runs=((0, n_rows),))
    TraceStore.open(write(segments([*range(2**17)]), whole))
    path = write(segments([*range(n_rows)]), whole)
    with pytest.raises(CorruptError, match="array 'x': expected at most 131072 shards"):
        TraceStore.open(path)
    with pytest.raises(ValueError, match="x: too many shards"):
        Store(path)
