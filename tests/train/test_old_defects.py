"""Defects of the code that this project replaces, which must not come back: the training's
share."""

import pickle

import numpy as np
import pytest
import torch
from splitting import split_rows

from models import BASELINES
from store import TraceStore
from store.traces.question_split import SPLITS
from train.config import Arguments, Config
from train.data.batches import TrainingData
from train.errors import CheckpointError
from train.evaluate.findings import Scored, build_frame, measure_method
from train.fit.device import build_fabric
from train.fit.probes import score_probe
from train.run import experiment
from train.run.checkpoint import load_checkpoint
from train.run.plan import open_data


def test_all_models_are_tested_on_the_same_rows(data, monkeypatch, tmp_path):
    """Whatever its columns, each detector is trained and judged on the rows of the one split."""
    rows = {}
    loader = TrainingData.loader

    def spy(self, part, columns, *args, **kwargs):
        batches = loader(self, part, columns, *args, **kwargs)
        split = part if isinstance(part, str) else "any"
        rows.setdefault(split, set()).add(tuple(sorted(batches._now.rows.tolist())))
        return batches

    monkeypatch.setattr(TrainingData, "loader", spy)
    config = Config(epochs=1, force_cpu=True, models="lstm_solo,gnn_det_lstm", gnn_hidden=8, jobs=1)
    work = open_data(config, [data.store.path])
    experiment.run_experiment(Arguments(config), build_fabric(config), work, tmp_path)
    expected = {split: {tuple(getattr(data.splits, split).tolist())} for split in SPLITS}
    assert rows.pop("any") == set.union(*expected.values())
    assert rows == expected


def test_the_verdict_is_of_the_test_side(data):
    """Metrics of test come from its scores alone, with the threshold of validation."""
    labels = data.splits.labels
    good, bad = (lambda rows: 0.1 + 0.8 * labels[rows]), (lambda rows: 0.9 - 0.8 * labels[rows])
    scored = Scored(good(data.splits.val)[None], bad(data.splits.test)[None])
    verdict = measure_method(build_frame({"x": scored}, data), "x", scored.facts)
    assert verdict.val.auroc == 1.0
    assert verdict.test.auroc == 0.0
    assert verdict.test.threshold == verdict.val.threshold == pytest.approx(0.9)
    assert verdict.test.accuracy == 0.0


def test_sides_are_70_15_15():
    """Few questions are not rounded away: 44 of them average 30.8 / 6.6 / 6.6 over seeds."""
    ids = [f"q{number}" for number in range(44)]
    sizes = [
        [len(getattr(split_rows(ids, np.ones(44, int), seed), split)) for split in SPLITS]
        for seed in range(300)
    ]
    np.testing.assert_allclose(np.mean(sizes, axis=0) / 44, [0.70, 0.15, 0.15], atol=0.01)


class Exploit:
    """Pickles to a call, as a hostile file would."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code ran')",))


def test_checkpoints_run_no_code(tmp_path):
    """A pickle with code in it is refused unread, as torch.save writes it and plain."""
    torch.save({"owner": Exploit()}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Exploit(), protocol=2))
    for name in ("a.pt", "b.pt"):
        with pytest.raises(CheckpointError, match="unreadable"):
            load_checkpoint(tmp_path / name, {})


def test_scaling_and_layer_are_fitted_without_the_test_side(data, make_store, labels):
    """Replacing every trace of the test split changes no validation score and no fitted number."""
    splits = data.splits

    def disturb(number, row):
        if number in splits.test:
            row["hs_last"] = (1000 * row["hs_last"]).astype(np.float16)
            row["answer_len"] = 1

    other = TraceStore.open(make_store(labels, change=disturb))
    for name, baseline in BASELINES.items():
        before, after = (
            score_probe(name, baseline, TrainingData(store, splits))[0]
            for store in (data.store, other)
        )
        np.testing.assert_array_equal(before.val, after.val)
        assert before.facts.layer == after.facts.layer
