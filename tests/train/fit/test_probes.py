"""Fitting probes on a store: what is read, and what the results say of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small import store_columns
from splitting import split_data

from models import PROBES, FittedProbe, Probe
from store import Column
from train.errors import DataError
from train.fit.probes import count_imputed, predict_probe, score_probe


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
    called incomplete for it. Alternatives have names, and are not taken for layers."""
    columns = ["question_id", "label", "answer_len"]
    areas = []
    for more in ([], ["score"]):
        path = make_store(labels, columns=[*columns, *more], name=f"{len(more)}.zarr")
        scored, fitted = score_probe("lengths", LENGTHS, split_data(path))
        areas.append(fitted.val_auroc[1])
        assert scored.facts.traces_with_missing_numbers is None
    assert areas[0] < 0.8 < areas[1] == 1.0
    facts = scored.facts
    assert facts.alternative == "lengths"
    assert facts.layer is facts.layers is facts.layer_val_auroc is None


def test_a_score_that_is_not_finite_names_the_trace(data):
    """Instead of an error of a metric."""
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


@pytest.mark.parametrize("by_layer", [False, True])
def test_what_is_only_learned_from_is_not_imputed(by_layer, tmp_path, labels):
    """Each third trace has no entropy."""
    rng, n = np.random.default_rng(0), len(labels)
    of_states = Column("float32", item_shape=(2, 4), axis_names=("layers", "hidden"))
    columns = {
        "question_id": ("utf8", [f"q{i}" for i in range(n)]),
        "label": ("int8", labels),
        "hs_last": (of_states, rng.random((n, 2, 4), np.float32)),
        "semantic_entropy": ("float32", [rng.random() if i % 3 else np.nan for i in range(n)]),
    }
    data = split_data(store_columns(tmp_path / "entropy.zarr", columns))
    probe = replace(PROBES["semantic_entropy_probe"], by_layer=by_layer)
    scored, _ = score_probe("semantic_entropy_probe", probe, data)
    assert scored.facts.traces_with_missing_numbers is None
