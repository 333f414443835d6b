"""Scores of new traces: those that the run gave, or one line that says what is missing."""

import json
import shutil

import numpy as np
import pytest
import torch
from runs import call, copy_run, fail, predict, read_csv, read_scores, train

from store import StoreWriter, TraceStore
from train.commands.predictions import write_to_store
from train.errors import ConfigError


def assert_scores_again(capsys, run, store, *names):
    """Of every trace of the run's store, the unlabelled ones too: those in its scores.csv."""
    status, out, _ = call(capsys, *predict(run, store, "--models", ",".join(names)))
    found = read_csv(out)
    assert (status, len(found)) == (0, 200)
    for line in read_scores(run):
        again = found[line["trace_id"]]
        assert again["split"] == line["split"]
        if line["split"] != "train":
            for name in names:
                assert float(again[name]) == pytest.approx(float(line[name]), rel=1e-5)


def test_the_run_s_own_test_side_gets_its_scores_again(finished, store_path, capsys):
    names = ("lstm_solo", "gnn_det_lstm", "logreg_best", "answer_length")
    assert_scores_again(capsys, finished, store_path, *names)


def test_as_columns_of_the_store(finished, make_store, labels, tmp_path, capsys):
    """The scores of the CSV, as float32; a second time replaces them. What was written is said."""
    store = make_store(labels, columns=["hs_last"])  # labels are not needed
    file = tmp_path / "scores.csv"
    flags = ["--models=lstm_solo,saplma"]
    _, out, _ = call(capsys, *predict(finished, store, *flags, "--output", file))
    assert out == f"{file}: scores of 200 traces: lstm_solo, saplma\n"
    expected = [float(line["lstm_solo"]) for line in read_csv(file.read_text()).values()]
    written = f"{store}: scores of 200 traces written as score_lstm_solo, score_saplma"
    for more in ("", " (replaced: score_lstm_solo, score_saplma)"):
        _, out, _ = call(capsys, *predict(finished, store, *flags, "--to-store"))
        assert out == f"{written}{more}\n"
        found = TraceStore.open(store).column("score_lstm_solo")
        np.testing.assert_array_equal(found, np.float32(expected))


def test_a_store_that_changed_meanwhile_gets_no_scores(make_store):
    """More traces, or another store of as many."""
    path = make_store([0, 1], columns=["hs_last"])
    scored = TraceStore.open(path)
    scores = {"saplma": np.array([0.1, 0.9])}
    with StoreWriter.open(path) as writer:
        writer.append("more", {"hs_last": scored[0]["hs_last"]})
    with pytest.raises(ConfigError, match=r"the 2 traces .* found 3: another writer append"):
        write_to_store(scored, scores, {})
    shutil.rmtree(path)
    make_store([0, 1], columns=["hs_last"])
    with pytest.raises(ConfigError, match="found 2: another writer put another store there meanwh"):
        write_to_store(scored, scores, {})
    assert "score_saplma" not in TraceStore.open(path).schema.columns


def test_results_that_do_not_fit_are_one_line(finished, store_path, capsys, tmp_path):
    """No settings, those of another version, and the files of another run."""
    config = json.loads((finished / "results.json").read_text())["config"]
    del config["readout"]
    for changes, message in (
        ({"config": {"a": 1}}, "expected settings of python -m train --help, found 'a'"),
        ({"config": config}, "of this version, found none of --readout"),
        ({"run": "other"}, "expected a checkpoint of {'run': 'other'"),
    ):
        run = copy_run(finished, tmp_path, **changes)
        assert message in fail(capsys, *predict(run, store_path))


@pytest.mark.parametrize(
    "file, change, message",
    [
        ("mean_logprob", lambda one: one.pop("weight"), "a file without 'weight'; train again"),
        ("mean_logprob", lambda one: one.update(bias=np.nan), "probe; bias: expected finite"),
        ("saplma-seed1", lambda one: one.pop("shapes"), "no weights of a finished training"),
        (
            "saplma-seed1",
            lambda one: one.update(weights={"a": torch.zeros(1)}),
            "the weights do not fit this detector",
        ),
    ],
)
def test_a_damaged_checkpoint_is_one_line(
    finished, store_path, capsys, tmp_path, file, change, message
):
    copy_run(finished, tmp_path)
    saved = torch.load(finished / f"{file}.pt", weights_only=True)
    change(saved)
    torch.save(saved, tmp_path / f"{file}.pt")
    name = file.removesuffix("-seed1")
    assert message in fail(capsys, *predict(tmp_path, store_path, "--models", name))


@pytest.mark.parametrize(
    "flags, column",
    [
        (["--models=lstm_solo", "--on-top-of=mean_logprob"], "mean_logprob: expected column 'logp"),
        (["--models=gnn_det_lstm", "--readout=answer"], "gnn_det_lstm: expected column 'hidden"),
    ],
)
def test_what_a_run_needs_is_read_again(
    store_path, make_store, labels, capsys, tmp_path, flags, column
):
    """A baseline that it stands on, columns of its settings: its own rows get their scores."""
    out = tmp_path / "out"
    train(store_path, out, *flags, "--no-baselines")
    assert_scores_again(capsys, out, store_path, flags[0].removeprefix("--models="))
    assert column in fail(capsys, *predict(out, make_store(labels, columns=["hs_last"])))
