"""Fitting probes on a store: what is read, and what the results say of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from models import PROBES, FittedProbe, Probe
from store import Column, Schema, StoreWriter, TraceStore
from train.config import Config
from train.data.batches import TrainingData
from train.data.splits import read_splits
from train.errors import DataError
from train.fit.probes import count_imputed, predict_probe, score_probe


def open_data(path):
    store = TraceStore.open(path)
    return TrainingData(store, read_splits(store, Config()))


def lengths(batch):
    """(B, 2, 2): the length of the answer, and what `score` says if it is there."""
    length = batch.fixed("answer_len").double()
    score = torch.full_like(length, float("nan"))
    if "score" in batch.columns:
        score = batch.fixed("score").double()
    told = torch.stack([length, score], dim=1)
    return torch.stack([torch.zeros_like(told), told], dim=1)


LENGTHS = Probe(("answer_len",), lengths, optional=("score",), alternatives=("nothing", "lengths"))


def test_optional_columns_are_read_where_they_are(make_store, labels):
    """The score tells the label; a store without it is scored by what there is, and no trace is
    called incomplete for it."""
    columns = ["question_id", "label", "answer_len"]
    without = open_data(make_store(labels, columns=columns, name="without.zarr"))
    having = open_data(make_store(labels, columns=[*columns, "score"], name="having.zarr"))
    areas = []
    for data in (without, having):
        scored, fitted = score_probe("lengths", LENGTHS, data)
        areas.append(fitted.val_auroc[1])
        assert scored.facts.traces_with_missing_numbers is None
    assert areas[0] < 0.8 < areas[1] == 1.0


def test_alternatives_are_called_by_their_names(make_store, labels):
    """They are not taken for layers."""
    facts = score_probe("lengths", LENGTHS, open_data(make_store(labels)))[0].facts
    assert facts.alternative == "lengths"
    assert facts.layer is facts.layers is facts.layer_val_auroc is None


def test_a_score_that_is_not_finite_names_the_trace(make_store, labels):
    """Instead of an error of a metric."""
    data = open_data(make_store(labels))
    last = FittedProbe(0, np.zeros(2), np.full(2, 1e308), 0.0, (0.5,))
    features = torch.zeros(3, 1, 2)
    features[1] = torch.tensor([1e38, -1e38])
    trace_id = data.store.ids[data.splits.val[1]]
    with pytest.raises(DataError, match=f"mine: trace '{trace_id}': expected a finite score"):
        predict_probe("mine", last, features, data, "val")


def test_imputed_traces_lack_what_others_have():
    """A number that no trace of train has is not missing in any one of them."""
    train = torch.from_numpy(np.array([[[1.0, np.nan]], [[np.nan, np.nan]], [[2.0, np.nan]]]))
    test = torch.from_numpy(np.array([[[1.0, 5.0]], [[np.nan, 5.0]], [[1.0, np.nan]]]))
    assert count_imputed({"train": train, "val": train[:1], "test": test}, LENGTHS) == 2


@pytest.fixture
def some_without_entropy(tmp_path, labels):
    """Data of two named layers, of which each third trace has no entropy."""
    rng = np.random.default_rng(0)
    of_states = Column("float32", item_shape=(2, 4), axis_names=("layers", "hidden"))
    names = {"question_id": "utf8", "label": "int8", "semantic_entropy": "float32"}
    schema = Schema({name: Column(kind) for name, kind in names.items()} | {"hs_last": of_states})
    with StoreWriter.create(tmp_path / "entropy.zarr", schema) as writer:
        for i, label in enumerate(labels.tolist()):
            row = {
                "question_id": f"q{i}",
                "label": label,
                "hs_last": rng.random((2, 4), np.float32),
            }
            writer.append(f"t{i}", row | {"semantic_entropy": rng.random() if i % 3 else np.nan})
    return open_data(tmp_path / "entropy.zarr")


@pytest.mark.parametrize("by_layer", [False, True])
def test_what_is_only_learned_from_is_not_imputed(by_layer, some_without_entropy):
    probe = replace(PROBES["semantic_entropy_probe"], by_layer=by_layer)
    scored, _ = score_probe("semantic_entropy_probe", probe, some_without_entropy)
    assert scored.facts.traces_with_missing_numbers is None
