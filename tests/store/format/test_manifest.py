"""The manifest: each invariant refuses a record that breaks it, in one line."""

import copy

import pytest

from store import Column, CorruptError, Schema
from store.format.manifest import KEY, Manifest, _checksum

SCHEMA = Schema({"x": Column("int32", axis="t"), "label": Column("int8")})
WHOLE = Manifest(
    SCHEMA,
    generation=2,
    n_rows=5,
    n_items={"trace_id": 10, "t": 7},
    runs=((0, 3), (3, 5)),
    run_sums={"0-3": 1, "3-5": 2},
    tails={"x": [3]},
)


def parse(record):
    """What a reader makes of a record with the right checksum."""
    body = {key: value for key, value in record.items() if key != "crc32c"}
    attributes = {KEY: body | {"crc32c": _checksum(body)}}
    return Manifest.from_attributes(attributes, "here")


def whole_record():
    return copy.deepcopy(WHOLE.to_attributes()[KEY])


def test_a_whole_record_is_read():
    assert parse(whole_record()) == WHOLE


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"format_version": 0}, "format_version: expected 1 or 2, found 0"),
        ({"format_version": True}, "format_version: expected 1 or 2, found True"),
        ({"uuid": 5}, "uuid: expected a str, found 5"),
        ({"n_items": [1]}, r"n_items: expected a dict, found \[1\]"),
        ({"schema": []}, r"schema: expected an object, found \[\]"),
        ({"arrays": 3}, "arrays: expected an object, found 3"),
        ({"runs": {}}, "runs: expected a list, found {}"),
        ({"runs": [[0, 1, 2]]}, "too many values"),
        ({"generation": True}, "generation: expected a count, found True"),
        ({"n_rows": 2**48}, "n_rows: expected a count, found 281474976710656"),
        ({"n_items": {"trace_id": 10, "t": "7"}}, "t: expected a count, found '7'"),
        ({"runs": [[0, "3"], [3, 5]]}, r"runs\[0\]: expected a count, found '3'"),
        ({"n_items": {"trace_id": 10}}, r"n_items: expected the axes \['trace_id', 't'\], found"),
        (
            {"n_rows": 0, "runs": [], "n_items": {"trace_id": 0, "t": 1}},
            "n_items: expected none without rows",
        ),
        ({"n_items": {"trace_id": 4, "t": 7}}, "n_items: expected ids of at least 5 bytes"),
        ({"runs": [[0, 3], [4, 5]]}, "runs: expected row ranges without gaps"),
        ({"runs": [[0, 0], [0, 5]]}, "runs: expected row ranges without gaps"),
        ({"runs": [[0, 3]]}, "runs: expected them to end at row 5, found 3"),
        ({"tails": {"x": 3}}, "x: expected checksums, found 3"),
        ({"tails": {"x": [2**32]}}, r"x: expected checksums, found \[4294967296\]"),
        ({"run_sums": {"0-3": "a"}}, r"run_sums: expected checksums, found \['a'\]"),
        (
            {"n_items": {"trace_id": 2**47, "t": 7}},
            "array 'trace_id': expected at most 131072 shards",
        ),
    ],
)
def test_a_broken_invariant_is_refused_in_one_line(changes, message):
    with pytest.raises(CorruptError, match=message) as error:
        parse(whole_record() | changes)
    assert str(error.value).startswith("here: expected a store's attributes, found a fault: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"chunk_items": None}, "chunk_items: expected a positive integer below .*, found None"),
        ({"shard_items": None}, "shard_items: expected a positive integer below .*, found None"),
        ({"shard_items": 8.0}, r"shard_items: expected a positive integer below .*, found 8\.0"),
        ({"item_shape": 2}, "item_shape: expected an array, found 2"),
        ({"axis_names": "a"}, "axis_names: expected an array, found 'a'"),
        ({"split": None}, "split: expected an array, found None"),
    ],
)
def test_a_column_of_other_types_is_refused_in_one_line(changes, message):
    """Though the constructor of a column takes some of them, and chooses what is None."""
    column = Column("int32", (2,), axis_names=("a",), split=("a",))
    manifest = Manifest(Schema({"x": column}))
    record = copy.deepcopy(manifest.to_attributes()[KEY])
    assert parse(record) == manifest
    record["schema"]["x"] |= changes
    with pytest.raises(CorruptError, match=message) as error:
        parse(record)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", [*WHOLE.to_attributes()[KEY]])
def test_a_missing_key_is_refused(key):
    """But checksums of runs, which the first stores did not have."""
    record = whole_record()
    del record[key]
    if key == "crc32c":
        pytest.skip("every record that is parsed here gets one")
    if key == "run_sums":
        assert parse(record).run_sums == {}
        return
    with pytest.raises(CorruptError, match="here: "):
        parse(record)


def test_names_of_columns_cannot_hide_a_fault():
    """An axis or an array may have the name of a field of the record."""
    columns = {"run_sums": Column("int8"), "x": Column("int8", axis="generation")}
    items = {"trace_id": 1, "generation": 1}
    record = Manifest(Schema(columns), n_rows=1, n_items=items, runs=((0, 1),)).to_attributes()[KEY]
    assert parse(record).n_items == items
    with pytest.raises(CorruptError, match="generation: expected a count, found -1"):
        parse(record | {"generation": -1})
    with pytest.raises(CorruptError, match="run_sums: expected checksums, found 'x'"):
        parse(record | {"tails": {"run_sums": "x"}})


def with_segments(segments):
    return parse(whole_record() | {"format_version": 2, "segments": segments})


def test_segments_are_version_2_and_nothing_else_is():
    """In version 1 a key of that name has no meaning."""
    read = with_segments({"x": [0, 4], "label": [0, 1, 2, 3, 4]})
    record = read.to_attributes()[KEY]
    assert (record["format_version"], record["segments"]["x"]) == (2, [0, 4])
    assert with_segments({}).to_attributes()[KEY]["format_version"] == 1
    assert "segments" not in WHOLE.to_attributes()[KEY]
    assert parse(whole_record() | {"segments": {"x": [5]}}) == WHOLE


@pytest.mark.parametrize(
    "segments, message",
    [
        (None, "segments: expected a dict, found None"),
        ({"y": [0, 2]}, "segments: expected arrays of columns, found 'y'"),
        ({"_offsets/t": [0, 2]}, "segments: expected arrays of columns, found '_offsets/t'"),
        ({"x": 3}, "segments: x: expected first items that rise from 0 to less than 7, found 3"),
        ({"x": [1, 2]}, r"segments: x: .*, found \[1, 2\]"),
        ({"x": [0, 7]}, r"segments: x: .*, found \[0, 7\]"),
        ({"x": [0, 3, 3]}, r"segments: x: .*, found \[0, 3, 3\]"),
        ({"x": [False, 2]}, r"segments: x: .*, found \[False, 2\]"),
    ],
)
def test_segments_that_are_none_are_refused(segments, message):
    with pytest.raises(CorruptError, match=message):
        with_segments(segments)


def test_segments_of_too_many_shards_are_refused():
    """Each has a shard at least; numbers are added before they could wrap."""
    columns = {"x": Column("int8", chunk_items=1, shard_items=2**39)}
    n_rows = 2**17 + 1
    items = {"trace_id": n_rows}
    whole = Manifest(Schema(columns), n_rows=n_rows, n_items=items, runs=((0, n_rows),))
    record = whole.to_attributes()[KEY] | {"format_version": 2}
    parse(record | {"segments": {"x": list(range(2**17))}})
    with pytest.raises(CorruptError, match=r"array 'x': expected at most 131072 shards"):
        parse(record | {"segments": {"x": list(range(n_rows))}})
