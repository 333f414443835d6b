"""Ids of stores that are read as one: plain, or with the names of stores where two share one."""

import pickle

import numpy as np
import pytest
from oracle import SCHEMA, assert_same_row, write_store
from small import make_store, one_column

from store import (
    Column,
    NotFoundError,
    Schema,
    StoreWriter,
    TraceDataset,
    TraceLoader,
    TraceStore,
)
from store.read.joined.joined_store import open_joined, prefixes_of


def replaced(column):
    """The column of other chunks, which no store shares an array with."""
    options = {name: getattr(column, name) for name in ("axis", "axis_names", "split", "codec")}
    return Column(column.dtype, column.item_shape, chunk_items=7, shard_items=70, **options)


@pytest.fixture(scope="module", params=["linked", "routed"])
def overlapping(request, tmp_path_factory, rows):
    """The forty rows in two stores, of which both have ten, and an empty one between them."""
    folder = tmp_path_factory.mktemp("overlapping")
    other = SCHEMA
    if request.param == "routed":
        other = Schema({name: replaced(column) for name, column in SCHEMA.columns.items()})
    return [
        write_store(folder / "squad.zarr", SCHEMA, rows[:25], 3),
        write_store(folder / "none.zarr", SCHEMA, [], 1),
        write_store(folder / "né.zarr", other, rows[15:], 2),
    ]


@pytest.fixture(scope="module")
def named(rows):
    """The rows as they are called then."""
    first = [(f"squad/{trace_id}", row) for trace_id, row in rows[:25]]
    return first + [(f"né/{trace_id}", row) for trace_id, row in rows[15:]]


def test_ids_that_two_stores_have_begin_with_the_names_of_the_stores(overlapping, named, rows):
    """Also in another process."""
    store = open_joined(overlapping)
    ids = [trace_id for trace_id, _ in named]
    assert list(store.ids) == ids
    assert store.ids[3:30:4] == ids[3:30:4]
    assert store.ids[-1] == store[-1].id == ids[-1]
    for i, (trace_id, row) in enumerate(named):
        assert store.row_of(trace_id) == i
        assert_same_row(store[trace_id], row)
    assert store.ids.find_all([*ids[::-1], "no such"]).tolist() == [*range(49, -1, -1), -1]
    plain = [trace_id for trace_id, _ in rows]
    assert not any(trace_id in store for trace_id in plain)
    assert store.ids.own() == plain[:25] + plain[15:]
    assert list(prefixes_of(store)) == ["squad/", "none/", "né/"]
    again = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own bytes
    for one in (again, TraceStore.open(again, cache_bytes=1 << 20)):
        assert list(one.ids) == ids
        assert one.row_of(ids[40]) == 40


def test_they_are_a_column_as_any_other(overlapping, named):
    store = open_joined(overlapping)
    ids = [trace_id for trace_id, _ in named]
    assert store.column("trace_id") == ids
    rows = np.random.default_rng(0).permutation(50)
    assert store.read(rows, ["trace_id"]).texts("trace_id") == [ids[row] for row in rows]
    assert store.where("trace_id ~ 'né/'").tolist() == [*range(25, 50)]
    data, offsets = store.text_bytes("trace_id", slice(20, 30))
    assert data.decode() == "".join(ids[20:30])
    assert np.diff(offsets).tolist() == [len(one.encode()) for one in ids[20:30]]
    data, offsets = store.text_bytes("trace_id", [49, 0], 4)
    assert data.decode() == "né/squa"
    assert store.n_items("trace_id") == sum(len(one.encode()) for one in ids)
    for batch in TraceLoader(overlapping, ["trace_id"], 7, True):
        assert batch.texts("trace_id") == [ids[row] for row in batch.rows.tolist()]
    assert TraceDataset(overlapping, ["trace_id", "label"])[26]["trace_id"] == ids[26]


def test_an_id_without_its_name_is_said_to_have_one(overlapping, rows):
    store = open_joined(overlapping)
    shared = rows[20][0]
    with pytest.raises(NotFoundError, match=f"it is 'squad/{shared}' or 'né/{shared}'"):
        store.row_of(shared)
    with pytest.raises(NotFoundError, match=f"it is 'squad/{rows[0][0]}'$"):
        store.row_of(rows[0][0])
    with pytest.raises(NotFoundError, match="closest: 'squad/"):
        store.row_of("squad/trace 1")


def test_stores_without_an_id_in_common_keep_theirs(overlapping, rows):
    store = open_joined([overlapping[1], overlapping[0]])
    assert list(store.ids) == store.ids.own() == [trace_id for trace_id, _ in rows[:25]]
    assert prefixes_of(store) == {}


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (["a.zarr", "b"], ["a", "b"]),
        (["1/a.zarr", "2/a.zarr"], ["1/a", "2/a"]),
        (["1/x/a.zarr", "2/x/a.zarr", "2/x/b.zarr"], ["1/x/a", "2/x/a", "2/x/b"]),
        (["a.zarr", "b", "a.zarr"], ["a", "b", "a#2"]),
    ],
)
def test_names_of_stores_are_as_long_as_tells_them_apart(tmp_path, places, names):
    for i, place in enumerate(dict.fromkeys(places)):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        one_column(tmp_path / place, "x", "int8", [i])
    store = open_joined([tmp_path / place for place in places])
    assert list(store.ids) == [f"{name}/t0" for name in names]
    other = open_joined([tmp_path / place for place in places[::-1]])
    assert set(other.ids) == set(store.ids)


def test_ids_may_have_slashes_themselves(tmp_path):
    a = make_store(tmp_path / "a", {"x": "int8"}, {"a/1": {"x": 1}, "1": {"x": 2}})
    b = make_store(tmp_path / "b", {"x": "int8"}, {"a/1": {"x": 3}, "b/a/1": {"x": 4}})
    store = open_joined([a, b])
    assert list(store.ids) == ["a/a/1", "a/1", "b/a/1", "b/b/a/1"]
    assert [store.row_of(one) for one in store.ids] == [0, 1, 2, 3]


def test_stores_that_are_one_already_are_joined_with_others(tmp_path):
    a, b, c = (one_column(tmp_path / name, "x", "int8", [1]) for name in "abc")
    assert list(open_joined([open_joined([a, b]), c]).ids) == ["a/t0", "b/t0", "c/t0"]


def test_an_id_that_is_appended_later_is_seen_when_the_stores_are_refreshed(tmp_path):
    a = one_column(tmp_path / "a", "x", "int8", [1])
    b = make_store(tmp_path / "b", {"x": "int8"}, {"other": {"x": 2}})
    store = open_joined([a, b])
    assert store.refresh() is store
    state = TraceLoader(store, ["x"]).state_dict()
    with StoreWriter.open(b.path) as writer:
        writer.append("t0", {"x": 3})
    assert list(store.ids) == ["t0", "other"]
    assert list(store.refresh().ids) == ["a/t0", "b/other", "b/t0"]
    assert store.refresh().uuid == store.uuid
    TraceLoader(store.refresh(), ["x"]).load_state_dict(state)


def test_ids_are_found_after_commits_have_merged_the_table_of_ids(tmp_path):
    a = one_column(tmp_path / "a", "x", "int8", [1])
    b = make_store(tmp_path / "b", {"x": "int8"}, {"b0": {"x": 1}, "b1": {"x": 1}})
    store = open_joined([a, TraceStore.open(b.path)])
    for i in range(2, 9):
        with StoreWriter.open(b.path) as writer:
            writer.append(f"b{i}", {"x": 1})
    again = pickle.loads(pickle.dumps(store))  # noqa: S301
    for one in (store, again):
        assert one.ids.find_all(["t0", "b1", "b5", "b0"]).tolist() == [0, 2, -1, 1]
        assert one.row_of("b1") == 2
    assert list(open_joined([a, TraceStore(b.source, b.manifest)]).ids) == ["t0", "b0", "b1"]
