"""The split: a pure function of (question_id, seed) over labelled rows, and the batches of its
splits."""

from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from small import complaint
from splitting import split_data, split_rows

from store import Column, TraceStore
from store.traces.question_split import SPLITS, split_of_question
from train.config import Config
from train.data.batches import TrainingData
from train.data.requirements import check_layers, check_threshold, missing_columns
from train.data.splits import all_as_test, check_batch, read_splits
from train.errors import DataError
from train.evaluate.findings import count_splits
from train.run.plan import open_data

IDS = [f"tc_{number // 3}" for number in range(3000)]  # three traces of each question
LABELS = np.random.default_rng(0).integers(0, 2, 3000)

PINNED_SPLITS = ["val", "train", "test", "train", "train", "test", "train", "train"]


def split_by_row(splits):
    """Row -> split."""
    return {row: split for split in SPLITS for row in getattr(splits, split).tolist()}


def test_side_is_pinned():
    """The function itself must not change: results would no longer be comparable."""
    assert [split_of_question(f"tc_{number}", 0) for number in range(8)] == PINNED_SPLITS


def test_a_row_keeps_its_split():
    """That of its question, when others come after it, and of the labelled rows that are drawn,
    which are a pure function of the seed."""
    splits = split_by_row(split_rows(IDS, LABELS, seed=3))
    assert all(splits[row] == splits[row - row % 3] for row in splits)
    before = split_by_row(split_rows(IDS[:1000], LABELS[:1000], seed=3))
    assert before.items() <= splits.items()
    once, again = (split_by_row(split_rows(IDS, LABELS, seed=3, max_traces=100)) for _ in range(2))
    assert len(once) == 100
    assert once.items() <= splits.items()
    assert once == again


def test_read_split_counts_unlabelled_rows(data, labels):
    """Unlabelled traces are in no split and are counted."""
    splits = data.splits
    counts = count_splits(splits)
    assert counts.unlabelled == 20
    assert counts.n_rows == sum(len(splits.rows(split)) for split in SPLITS) == 180
    assert all(labels[row] >= 0 for row in split_by_row(splits))


def test_score_threshold_labels_again(store_path, labels):
    """With a threshold the stored scores decide; a missing score stays unlabelled."""
    found = split_data(store_path, score_threshold=0.5).splits.labels
    np.testing.assert_array_equal(found, labels)
    with pytest.raises(DataError, match="train split: expected both classes"):
        split_data(store_path, score_threshold=0.05)


def test_batches_of_a_side(store_path):
    """Unshuffled they follow the split; shuffled they have its rows in each epoch's own order."""
    data = split_data(store_path, batch_size=7)
    ordered = data.loader("val", ["hs_last"], shuffle=False)
    assert np.concatenate([batch.rows for batch in ordered]).tolist() == data.splits.val.tolist()
    shuffled = data.loader("train", ["hs_last"], shuffle=True)
    epochs = [np.concatenate([batch.rows for batch in shuffled]).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == data.splits.train.tolist()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([-1] * 40, "expected labelled traces, found all 40 unlabelled"),
        ([1] * 40, "train split: expected both classes, found"),
        ([0, 1], "expected both classes"),
        (
            [0, 1, 7] * 20,
            "column 'label', trace 't2': expected 1, 0 or -1, found 7; "
            "correct the 20 labels like it",
        ),
        ([], "expected labelled traces, found all 0 unlabelled"),
    ],
)
def test_stores_that_cannot_be_split_are_refused(make_store, labels, message):
    """No labels, one class in a split, or other labels: one line that says so."""
    assert message in complaint(DataError, split_data, make_store(labels))


def test_graphs_of_a_lower_threshold_than_the_stored_are_refused(store_path):
    """Edges below it were dropped before the traces were stored; without one, all are there."""
    store = TraceStore.open(store_path)
    data = TrainingData(store, all_as_test(store))
    check_threshold(data)
    store.provenance = {"attn_threshold": 0.25}
    check_threshold(data.with_settings(attn_threshold=0.25))
    with pytest.raises(DataError, match=r"--attn-threshold: expected 0\.25 or more.*found 0\.1"):
        check_threshold(data.with_settings(attn_threshold=0.1))


NAMED = {
    "states": Column("float16", item_shape=(4, 8), axis_names=("layers", "hidden")),
    "per_layer": Column("float16", item_shape=(4,), axis="tokens", axis_names=("layers",)),
    "length": "int32",
    "question_id": "utf8",
    "label": "int8",
}


@pytest.fixture
def named(tmp_path):
    """A store whose columns have other names than the detectors', and whose axes have names."""
    rng = np.random.default_rng(0)
    rows = {}
    for i in range(100):
        row = {"states": rng.random((4, 8)), "per_layer": rng.random((1 + i % 3, 4))}
        row = {name: values.astype(np.float16) for name, values in row.items()}
        rows[f"t{i}"] = row | {"length": 1 + i % 3, "question_id": f"q{i}", "label": i % 2}
    return small.make_store(tmp_path / "named.zarr", NAMED, rows)


ROLES = {"hs_last": "states", "attn_mean": "per_layer", "answer_len": "length"}
COLUMNS = "hs_last=states,attn_mean=per_layer,answer_len=length"


def test_batches_have_the_names_and_layers_that_are_asked_for(named):
    """Columns stand in for others, and of those with layers only the chosen ones are read."""
    data = split_data(named, columns=COLUMNS, layers="2-3", batch_size=7)
    assert data.item_shapes(ROLES) == {"hs_last": (2, 8), "attn_mean": (2,), "answer_len": ()}
    rows = []
    for batch in data.loader("train", list(ROLES), shuffle=True):
        assert set(batch.keys()) == set(ROLES)
        whole = named.read(batch.rows.tolist())
        assert torch.equal(batch["hs_last"], whole["states"][:, 1:3])
        assert torch.equal(batch["attn_mean"].values, whole["per_layer"].values[:, 1:3])
        assert torch.equal(batch["answer_len"], whole["length"])
        rows += batch.rows.tolist()
    assert sorted(rows) == data.splits.train.tolist()


def test_layers_that_are_not_there(named, store_path, tmp_path):
    """No such layer, or no axis of layers: the column is named. Columns of other things, as the
    names of their axes tell, are read whole."""
    data = split_data(named, columns=COLUMNS, layers="7-9")
    said = complaint(DataError, check_layers, data, "lstm_solo", ["answer_len", "hs_last"])
    assert "--layers: column 'states': there is no layer 7; it has layers 1-4" in said
    data = split_data(store_path, layers="1")
    said = complaint(DataError, check_layers, data, "lstm_solo", ["hs_last"])
    assert "expected an axis 'layers' in column 'hs_last', found axes without names" in said
    states = Column("float16", item_shape=(2, 4), axis_names=("heads", "hidden"))
    candidates = Column("float16", item_shape=(3,), axis="tokens", axis_names=("candidates",))
    row = {"hs_last": np.zeros((2, 4), "f2"), "topk_logprob": np.zeros((1, 3), "f2")}
    columns = {"hs_last": states, "topk_logprob": candidates}
    store = small.make_store(tmp_path / "axes.zarr", columns, {"t": row})
    data = TrainingData(store, all_as_test(store), Config(layers="1"))
    check_layers(data, "token_sequence", ["topk_logprob"])
    said = complaint(DataError, check_layers, data, "lstm_solo", ["hs_last"])
    assert "axis 'layers' in column 'hs_last', found 'heads', 'hid" in said


def test_columns_of_another_kind_count_as_missing(named):
    """What takes part by itself is left out where its columns are something else."""
    data = split_data(named, columns="hs_last=states")
    assert missing_columns(data, ["label", "hs_last"]) == {}
    data = split_data(named, columns="hs_last=per_layer")
    assert list(missing_columns(data, ["hs_last", "logprob"])) == ["per_layer", "logprob"]


def test_fewer_rows_than_a_batch(named):
    """The numbers are shown, and what to lower; probes have no batches."""
    splits = read_splits(named, Config())
    n = len(splits.train)
    check_batch(splits, named, n)
    message = f"at least one batch of {n + 1} traces, found {n}; lower --batch-size, to {n}"
    assert message in complaint(DataError, check_batch, splits, named, n + 1)
    settings = Config(models="logreg_pca", batch_size=n + 1, columns="hs_last=states")
    assert open_data(settings, [named.path]).names == ["logreg_pca"]
    with pytest.raises(DataError, match="at least one batch"):
        open_data(replace(settings, models="saplma"), [named.path])
