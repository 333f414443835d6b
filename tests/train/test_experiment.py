"""A whole run on a small store: what is in the results, and that it can be repeated."""

import csv
import json
import math

import numpy as np
import pytest

from models import BASELINES, DETECTORS
from train.cli import main
from train.metrics import auroc

SMALL = ["--epochs", "2", "--gnn-hidden", "8", "--latent-dim", "8", "--lstm-hidden", "8", "--force-cpu", "--seed", "1"]


@pytest.fixture(scope="module")
def run_dir(store_path, tmp_path_factory):
    """Directory of a finished run of two seeds."""
    path = tmp_path_factory.mktemp("run") / "out"
    assert main(["--store", str(store_path), "--output-dir", str(path), "--seeds", "2", *SMALL]) == 0
    return path


@pytest.fixture(scope="module")
def results(run_dir):
    return json.loads((run_dir / "results.json").read_text())


def read_scores(run_dir):
    with (run_dir / "scores.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_results_have_what_is_promised(results, store_path):
    """Split, models, baselines, store and config, with every metric on both sides."""
    assert {"split", "models", "baselines", "store", "config"} <= results.keys()
    assert results["models"].keys() == DETECTORS.keys()
    assert results["baselines"].keys() == BASELINES.keys()
    for entry in (*results["models"].values(), *results["baselines"].values()):
        for side in ("val", "test"):
            keys = {"auroc", "auprc", "base_rate", "f1", "mcc", "accuracy", "ece", "brier", "threshold"}
            assert keys <= entry[side].keys()
            assert all(math.isfinite(entry[side][key]) for key in keys)
        low, high = entry["test"]["auroc_ci"]
        assert 0 <= low <= high <= 1
    assert all(entry["parameters"] > 0 and entry["seconds"] >= 0 for entry in results["models"].values())
    assert results["store"]["path"] == str(store_path)
    assert results["config"]["epochs"] == 2


def test_several_seeds_are_mean_and_spread(results):
    """The headline is the mean of the runs, with their standard deviation."""
    test = results["models"]["lstm_solo"]["test"]
    assert test["auroc"] == pytest.approx(np.mean(test["auroc_runs"]))
    assert len(test["auroc_runs"]) == 2
    assert test["auroc_sd"] == pytest.approx(np.std(test["auroc_runs"], ddof=1))


def test_scores_hold_the_split(run_dir, results, labels):
    """A line per labelled trace with its side and label; scores where they were judged."""
    lines = read_scores(run_dir)
    assert len(lines) == np.sum(labels >= 0)
    assert all(int(line["label"]) == labels[int(line["trace_id"][1:])] for line in lines)
    for side in ("train", "val", "test"):
        mine = [line for line in lines if line["side"] == side]
        assert len(mine) == results["split"][side]["rows"]
        assert all((line["gvae_lstm"] == "") == (side == "train") for line in mine)


def test_written_scores_give_the_written_metric(run_dir, results):
    """The AUROC of a baseline follows from the scores beside it."""
    lines = [line for line in read_scores(run_dir) if line["side"] == "test"]
    labels, scores = (np.array([float(line[key]) for line in lines]) for key in ("label", "logreg_best"))
    assert auroc(labels.astype(int), scores) == results["baselines"]["logreg_best"]["test"]["auroc"]


def test_files_of_a_run(run_dir):
    """Results, scores, a picture and a checkpoint per training, and nothing else."""
    checkpoints = {f"{name}-seed{seed}.pt" for name in DETECTORS for seed in (1, 2)}
    assert {path.name for path in run_dir.iterdir()} == {"results.json", "scores.csv", "curves.png"} | checkpoints
    assert (run_dir / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_same_seed_same_results(store_path, tmp_path, run_dir, results):
    """A second run gives the same scores bit for bit; a detector's do not depend on which others run."""
    command = [
        "--store",
        str(store_path),
        "--output-dir",
        str(tmp_path / "again"),
        "--seeds",
        "2",
        "--no-run-lstm",
        *SMALL,
    ]
    assert main(command) == 0
    again = json.loads((tmp_path / "again" / "results.json").read_text())
    for name in ("gnn_det_lstm", "gvae_lstm"):
        assert [again["models"][name][side] for side in ("val", "test")] == [
            results["models"][name][side] for side in ("val", "test")
        ]
    assert {name: entry["test"] for name, entry in again["baselines"].items()} == {
        name: entry["test"] for name, entry in results["baselines"].items()
    }
    first, second = (read_scores(path) for path in (run_dir, tmp_path / "again"))
    assert [line["gvae_lstm"] for line in first] == [line["gvae_lstm"] for line in second]


def test_baselines_without_their_columns_are_left_out(make_store, labels, tmp_path):
    """A store of last-token states alone trains lstm_solo and what baselines it can."""
    store = make_store(labels, columns=["question_id", "label", "hs_last"])
    flags = ["--no-run-gnn-det", "--no-run-gvae", "--output-dir", str(tmp_path / "out"), *SMALL]
    assert main(["--store", str(store), *flags]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(results["models"]) == {"lstm_solo"}
    assert set(results["baselines"]) == {"majority", "logreg_first", "logreg_best"}


def test_table_shows_detectors_and_baselines(store_path, tmp_path, capsys):
    """The table fits 80 columns and has a line for everything that was judged."""
    flags = ["--no-run-gnn-det", "--no-run-gvae", "--output-dir", str(tmp_path / "out"), *SMALL]
    assert main(["--store", str(store_path), *flags]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("lstm_solo", *BASELINES))
    assert "…" not in out
