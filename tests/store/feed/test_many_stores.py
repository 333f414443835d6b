"""Several stores as one: values, shares and resume; and what is refused. The order over all is in
`test_loading.py`."""

import pickle

import numpy as np
import pytest
from oracle import SCHEMA, assert_batch, assert_same_row, bits, write_store
from small import make_store, one_column
from stopping import check_stops
from torch.utils.data import DataLoader

from store import (
    Column,
    GlobalShuffleSampler,
    SchemaError,
    TokenLoader,
    TraceDataset,
    TraceLoader,
    TraceStore,
)
from store.read.joined.joined_store import open_joined
from store.traces.notes import notes_path


@pytest.fixture(params=["linked", "routed"])
def parts(request, sources):
    """The forty rows in four stores, one of them empty; routed: with other chunks in one."""
    return sources[request.param]


def test_every_value_of_every_row(parts, rows):
    store = open_joined(parts)
    assert list(store.ids) == [trace_id for trace_id, _ in rows]
    for i, (trace_id, row) in enumerate(rows):
        assert store.row_of(trace_id) == i
        assert_same_row(store[i], row)
    order = np.random.default_rng(0).permutation(40)
    assert_batch(store.read(order), [rows[i][1] for i in order])
    assert store.column("question") == [row["question"] for _, row in rows]
    assert bits(store.column("states")) == b"".join(bits(row["states"]) for _, row in rows)
    assert store.lengths("tokens").tolist() == [len(row["tokens"]) for _, row in rows]
    assert store.where("len(question) > 20").tolist() == [
        i for i, (_, row) in enumerate(rows) if len(row["question"]) > 20
    ]
    assert "no such" not in store
    again = pickle.loads(pickle.dumps(store))  # noqa: S301
    assert again.uuid == store.uuid
    assert_batch(again.read([39, 0]), [rows[39][1], rows[0][1]])


def test_parts_of_items_are_selected(parts, rows):
    select = {
        "hidden_states": {"tokens": slice(1, 5), "layers": slice(0, 3, 2)},
        "planes": {"heads": 1},
    }
    for batch in TraceLoader(parts, ["hidden_states", "planes"], 7, True, select=select):
        for row, found in zip(batch.rows.tolist(), batch, strict=True):
            expected = rows[row][1]
            assert bits(found["hidden_states"]) == bits(expected["hidden_states"][1:5, ::2])
            assert bits(found["planes"]) == bits(expected["planes"][:, :, 1:2])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_set_of_several(parts, rows, num_workers):
    dataset = TraceDataset(parts, ["zipped", "hidden_states", "label", "question"])
    loader = DataLoader(dataset, 8, sampler=GlobalShuffleSampler(dataset), num_workers=num_workers)
    for batch in loader:
        for row, found in zip(batch.rows.tolist(), batch, strict=True):
            assert bits(found["zipped"]) == bits(rows[row][1]["zipped"])


@pytest.mark.filterwarnings("ignore:.* get an empty last batch")
@pytest.mark.parametrize("n_stops", [1, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("replacement", [False, True])
def test_shares_resume_at_random_stops(parts, n_stops, replacement):
    """Batch sizes, ranks and threads change at every stop, of an epoch at least."""
    stores = [path for i, path in enumerate(parts) if i != 1]  # which is empty
    options = {"weights": [3, 2, 1], "replacement": replacement}
    check_stops(TraceLoader, stores, n_stops, **options)
    check_stops(TokenLoader, stores, n_stops, tokens=slice(0, 3), **options)


def test_other_stores_are_refused(tmp_path):
    def store(name, kind, value, **options):
        return one_column(tmp_path / name, name[0], kind, [value], **options)

    a, b = (store(f"x_{n}", Column("float32", (n,)), np.zeros(n, np.float32)) for n in (3, 4))
    c, d = (store(f"x_m{i}", "int8", 1, provenance={"weights_sha256": i}) for i in "12")
    y = store("y", "int32", 1)
    for stores, message in (
        ([a, b], "expected column 'x' as in"),
        ([c, d], "expected weights_sha256"),
        ([a, y], r"that share a column, found .*x_3: x; .*y: y"),
        ([], "one or more, found none"),
    ):
        with pytest.raises(SchemaError, match=message):
            TraceLoader(stores)
    assert open_joined([a]) is a


def test_only_the_columns_of_all_are_there(tmp_path):
    a = make_store(tmp_path / "a", {"x": "int8", "field": "utf8"}, {"1": {"x": 1, "field": "f"}})
    b = make_store(tmp_path / "b", {"x": "int8"}, {"1": {"x": 2}})
    store = open_joined([a, b])
    assert list(store.schema.columns) == ["x"]
    assert store.column("x").tolist() == [1, 2]
    assert [store.row_of("a/1"), store.row_of("b/1")] == [0, 1]


def test_columns_without_an_item_are_joined(tmp_path):
    """As texts that are empty in every trace."""
    kinds = {"x": "int8", "context": "utf8", "tokens": Column("int32", axis="tokens")}
    stores = [
        make_store(tmp_path / name, kinds, {name: {"x": 1, "context": "", "tokens": []}})
        for name in ("a", "b")
    ]
    (batch,) = TraceLoader(stores, batch_size=2)
    assert (batch["x"].tolist(), batch["context"]) == ([1, 1], ["", ""])
    assert batch["tokens"].offsets.tolist() == [0, 0, 0]


def test_what_is_noted_beside_each_store_is_filtered_by(tmp_path):
    """By the ids of that store, though both have them."""
    stores = [one_column(tmp_path / name, "x", "int8", range(3)) for name in ("a", "b")]
    for store, noted in zip(stores, ("t1,1,bad,x", "t2,0,bad,y"), strict=True):
        notes_path(store.path).write_text(f"trace_id,label,tags,note\n{noted}\n")
    store = open_joined(stores)
    assert store.where("tag == 'bad'").tolist() == [1, 5]
    assert store.where("noted == 0 or note ~ 'x'").tolist() == [1, 5]
    (batch,) = TraceLoader(stores, where="tag != 'bad'", batch_size=9)
    assert batch.rows.tolist() == [0, 2, 3, 4]


def test_a_damaged_part_is_named(parts, tmp_path, rows):
    path = write_store(tmp_path / "z.zarr", SCHEMA, rows[:7])
    for file in (path / "hidden_states").rglob("*"):
        if file.is_file() and file.name != "zarr.json":
            file.unlink()
    with pytest.raises(Exception, match=r"rows? 4\d"):
        list(TraceLoader([*parts, path], ["hidden_states"]))


def test_states_are_of_the_same_stores_in_the_same_order(parts):
    state = TraceLoader(parts, ["label"]).state_dict()
    TraceLoader(list(map(TraceStore.open, parts)), ["flag"]).load_state_dict(state)
    with pytest.raises(ValueError, match="state_dict: expected store"):
        TraceLoader(parts[::-1], ["label"]).load_state_dict(state)
