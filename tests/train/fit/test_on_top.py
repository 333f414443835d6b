"""Detectors on top of a baseline: the offsets are of unseen questions, and what they add is real or
nothing."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from splitting import split_rows

from models import BASELINES, CONTROLS, DETECTORS
from train.config import Config
from train.evaluate.metrics import auroc
from train.fit.probes import out_of_fold_margin

N, WIDTH = 2000, 100


def draw(n, knows_more, seed=0):
    """States (n, 2, WIDTH) and labels: the first layer tells of the label weakly in many
    directions; the second adds to it in a few, or is noise."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(n, 2, WIDTH))
    direction = rng.normal(size=WIDTH) / np.sqrt(WIDTH)
    logits = 2 * states[:, 0] @ direction
    if knows_more:
        logits += 1.5 * states[:, 1, :4].sum(1)
    labels = (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(int)
    return states.astype(np.float16), labels


def fit_base(states, labels, questions):
    """The splits, the features by split and `logreg_first` fitted on them."""
    splits = split_rows(questions, labels, seed=0)
    features = {
        name: torch.from_numpy(states[splits.rows(name), :1]) for name in ("train", "val", "test")
    }
    probe = BASELINES["logreg_first"]
    args = (features["train"], splits.labels_of("train"), features["val"], splits.labels_of("val"))
    return splits, features, probe, probe.fit(*args)


def test_offsets_of_train_are_as_good_as_those_of_test():
    """In-sample they are far better, which would leave a detector nothing to learn."""
    states, labels = draw(N, knows_more=False)
    splits, features, probe, fitted = fit_base(states, labels, [f"q{i}" for i in range(N)])
    margin = out_of_fold_margin(probe, fitted, features["train"], splits)
    y = splits.labels_of("train")
    on_test = auroc(splits.labels_of("test"), fitted.logits(features["test"]))
    assert auroc(y, margin) == pytest.approx(on_test, abs=0.05)
    assert auroc(y, fitted.logits(features["train"])) > auroc(y, margin) + 0.03


def test_offsets_depend_on_other_questions_only():
    """Another label of a question changes no offset of its own rows."""
    states, labels = draw(300, knows_more=False)
    questions = [f"q{i // 3}" for i in range(300)]
    splits, features, probe, fitted = fit_base(states, labels, questions)
    before = out_of_fold_margin(probe, fitted, features["train"], splits)
    own = splits.questions[splits.train] == splits.questions[splits.train[0]]
    splits.labels[splits.train[own]] = 1 - splits.labels[splits.train[own]]
    after = out_of_fold_margin(probe, fitted, features["train"], splits)
    np.testing.assert_array_equal(after[own], before[own])
    assert not np.array_equal(after, before)


def test_few_questions_get_the_base_rate():
    """Where the other questions are of one class there is nothing to fit."""
    labels = np.array([1, 0, 0, 0])
    features = torch.arange(4.0)[:, None, None]
    splits = split_rows(["a", "b", "b", "b"], labels, seed=0)
    splits.train.resize(4, refcheck=False)
    splits.train[:] = range(4)
    fitted = CONTROLS["answer_length"].fit(features, labels, features, labels)
    margin = out_of_fold_margin(CONTROLS["answer_length"], fitted, features, splits)
    assert margin.tolist() == [pytest.approx(np.log(1 / 3))] * 4


@pytest.mark.parametrize("name", [name for name in DETECTORS if not DETECTORS[name].targets])
def test_detectors_begin_at_zero(name):
    """The last layer gives 0, so the first scores are those of the baseline; the layers before it
    keep their weights."""
    shapes = {"hs_last": (3, 8), "hidden_states": (3, 8), "attn_mean": (3,), "topk_logprob": (4,)}
    shapes |= {"icr": (3,), "topk_id": (4,), "attentions": (3, 2), "attn_edges": (3, 2)}
    settings = asdict(Config(gnn_hidden=4, latent_dim=4, lstm_hidden=4, num_lstm_layers=1))
    detector = DETECTORS[name].build(shapes, settings)
    before = {key: value.clone() for key, value in detector.state_dict().items()}
    detector.begin_at_zero()
    changed = [key for key, value in detector.state_dict().items() if not value.equal(before[key])]
    assert len(changed) == 2
    assert all(not detector.state_dict()[key].any() for key in changed)
