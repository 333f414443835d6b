"""A whole run on a small store: what is in the results, and that it can be repeated."""

import json
import math
from itertools import combinations, product

import numpy as np
import pytest
from rich.console import Console
from runs import SMALL, call, predict, read_csv, read_scores, train

from models import BASELINES, CONTROLS
from store import TraceStore
from train.commands.main import main
from train.config import Config
from train.data.splits import read_splits
from train.evaluate.calibrate import risk_threshold
from train.evaluate.findings import label_sensitivity
from train.evaluate.frame import Frame
from train.evaluate.metrics import auroc
from train.evaluate.paired_tests import holm
from train.report.console import print_results
from train.run.results import read_results, read_run

DEFAULT = ["lstm_solo", "gnn_det_lstm", "gvae_lstm", "saplma"]
SETTINGS = [*SMALL, "--seed", "1"]  # of `finished`
OF_TEXTS = ["question_only", "answer_text", "question_answer", "answer_context"]
COMPARED = [*BASELINES, "prompt_state", "answer_length"]
METRICS = "auroc auprc base_rate f1 mcc accuracy ece brier threshold"
FILES = (
    ".lock run.json results.json scores.csv questions.csv report.md report.html table.tex figures "
    "tensorboard"
)


@pytest.fixture(scope="module")
def results(finished):
    return json.loads((finished / "results.json").read_text())


def test_results_have_what_is_promised(results, store_path):
    """Splits, models, baselines, store and config, with every metric on both splits."""
    assert {"split", "models", "baselines", "store", "config"} <= results.keys()
    assert list(results["models"]) == DEFAULT
    # the store has no texts and no fields
    assert list(results["baselines"]) == COMPARED
    marked = [name for name, entry in results["baselines"].items() if entry.get("control")]
    assert marked == ["prompt_state", "answer_length"]
    assert list(results["left_out"]) == OF_TEXTS
    assert results["left_out"]["question_only"] == "the store has no column 'question'"
    for entry in (*results["models"].values(), *results["baselines"].values()):
        for split in ("val", "test"):
            assert all(math.isfinite(entry[split][key]) for key in METRICS.split())
        low, high = entry["test"]["auroc_ci"]
        assert 0 <= low <= high <= 1
        assert entry["parameters"] > 0
        assert entry["seconds"] >= 0
        assert 0 < entry["ms_per_trace"] < 1000
        assert entry["bytes_per_trace"] > 0
    assert results["models"]["lstm_solo"]["bytes_per_trace"] == 2 * 2 * 8  # float16, (L, d)
    assert results["store"]["path"] == str(store_path)
    assert results["config"]["epochs"] == 2


def test_comparisons_are_of_the_metrics_beside_them(finished, results):
    """Every pair of detectors, each with each baseline but the constant and what ranks as another;
    the numbers fit."""
    rivals = [name for name in COMPARED if name not in ("majority", "perplexity")]
    found = results["comparisons"]
    pairs = [*combinations(DEFAULT, 2), *product(DEFAULT, rivals)]
    assert [(one["a"], one["b"]) for one in found] == pairs
    entries = results["models"] | results["baselines"]
    for one in found:
        a, b = (entries[one[side]]["test"]["auroc"] for side in "ab")
        assert one["difference"] == a - b
        assert one["ci"][0] <= one["difference"] <= one["ci"][1]
        assert 0 <= one["p_delong"] <= 1
    for is_control in (False, True):
        family = [one for one in found if (one["b"] in CONTROLS) == is_control]
        p_holm = holm(dict(enumerate(one["p_delong"] for one in family)))
        assert [one["p_holm"] for one in family] == list(p_holm.values())
        assert all(one.get("control", False) == is_control for one in family)


def test_the_verdict_is_on_the_best_of_validation(results):
    """The detector and the baseline of the best validation AUROC, on test, and a control."""
    verdict = results["verdict"]
    best = {"models": verdict["detector"], "baselines": verdict["baseline"]["rival"]}
    for group, name in best.items():
        areas = [entry["val"]["auroc"] for entry in results[group].values()]
        assert results[group][name]["val"]["auroc"] == max(areas)
    (pair,) = [one for one in results["comparisons"] if [one["a"], one["b"]] == [*best.values()]]
    assert verdict["baseline"]["difference"] == pair["difference"]
    assert verdict["control"]["rival"] in ("prompt_state", "answer_length")


def test_label_sensitivity_follows_the_threshold(results, make_store, labels, tmp_path):
    """Of 0.1 and 0.9 every threshold gives the same labels, and nothing is said of them; here one
    threshold of five gives other labels. NaN is left out, and one class has no AUROC."""
    assert "label_sensitivity" not in results

    def grade(number, row):
        if number % 7 == 0 and row["label"] == 0:
            row["score"] = 0.65

    store = make_store(labels, change=grade)
    graded = train(store, tmp_path / "out", "--only=saplma,logreg_first", "--seed=1")
    found = graded["label_sensitivity"]
    assert [one["threshold"] for one in found] == [0.3, 0.4, 0.5, 0.6, 0.7]
    entries = graded["models"] | graded["baselines"]
    areas = {name: entry["test"]["auroc"] for name, entry in entries.items()}
    test = graded["split"]["test"]
    for one in found[:4]:
        assert one["auroc"] == areas
        assert (one["rows"], one["hallucinations"]) == (test["rows"], test["hallucinations"])
    assert found[4]["hallucinations"] > test["hallucinations"]

    scores = {"x": np.array([[0.9, 0.8, 0.1, 0.2], [0.9, 0.1, 0.8, 0.2]])}
    test = Frame(*4 * [np.zeros(4)], scores)
    truth = np.array([0.35, 0.55, 0.65, np.nan], dtype=np.float32)
    found = [label_sensitivity(test, truth, threshold) for threshold in (0.3, 0.4, 0.6, 0.7)]
    assert [one.auroc["x"] for one in found] == [None, 1, 0.75, None]
    assert [one.hallucinations for one in found] == [0, 1, 2, 3]
    assert {one.rows for one in found} == {3}


def test_what_a_run_shows_and_writes(finished, capsys):
    """A line for everything that was judged, in 100 columns; the files that are promised, a
    checkpoint per training and what was fitted, and nothing else."""
    print_results(read_results(finished / "results.json"), Console(width=100))
    out = capsys.readouterr().out
    assert all(name in out for name in (*DEFAULT, *COMPARED))
    assert "…" not in out
    assert max(len(line) for line in out.splitlines() if "warning" not in line) <= 100
    checkpoints = {f"{name}-seed{seed}.pt" for name in DEFAULT for seed in (1, 2)}
    checkpoints |= {f"{name}.pt" for name in COMPARED}
    assert {path.name for path in finished.iterdir()} == {*FILES.split(), *checkpoints}


def test_same_seed_same_results(store_path, tmp_path, finished, results):
    """A second run gives the same scores bit for bit, whichever other detectors run."""
    only = "--only=gvae_lstm,logreg_best,prompt_state,answer_length"
    again = train(store_path, tmp_path / "again", only, "--seed=1", "--seeds=2")
    for group in ("models", "baselines"):
        for name, entry in again[group].items():
            for split in ("val", "test"):
                found, expected = entry[split], results[group][name][split]
                assert found == {key: expected[key] for key in found}
    first, second = (read_scores(path) for path in (finished, tmp_path / "again"))
    assert [line["gvae_lstm"] for line in first] == [line["gvae_lstm"] for line in second]


def test_the_variance_of_the_seeds_is_in_the_scores(finished, results):
    """A column a training, whose AUROCs are those of the results; `read_run` has them."""
    test = read_run(finished).frame.test
    rows = [line for line in read_scores(finished) if line["split"] == "test"]
    for name, entry in results["models"].items():
        found = [auroc(test.labels, one) for one in test.scores[name]]
        assert found == pytest.approx(entry["test"]["auroc_runs"])
        assert np.std(found, ddof=1) == pytest.approx(entry["test"]["auroc_sd"])
        mean = np.mean(test.scores[name], axis=0)
        assert mean == pytest.approx([float(line[name]) for line in rows])
        assert len(found) == 2


def test_a_value_that_is_not_finite_is_found_before_training(make_store, labels, tmp_path, capsys):
    """NaN in test stops a run before its first step, but not in a baseline that nobody named."""
    store = make_store(labels)
    row = int(read_splits(TraceStore.open(store), Config(seed=1)).test[0])

    def poison(number, values):
        if number == row:
            values["hs_last"][0, 0] = np.nan
            values["logprob"][-1] = -np.inf

    poisoned = make_store(labels, change=poison, name="poisoned.zarr")
    command = ["--store", str(poisoned), "--output-dir", str(tmp_path / "out"), *SETTINGS]
    assert main([*command, "--only", "lstm_solo"]) == 2
    assert f"score of traces 't{row}': expected a finite number" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("lstm_solo*"))
    assert main([*command, "--models", "gnn_det_lstm"]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert "mean_logprob" in results["left_out"]
    assert "mean_logprob" not in results["baselines"]
    assert "baseline mean_logprob is left out" in capsys.readouterr().err
    assert results["baselines"]["logreg_best"]["traces_with_missing_numbers"] == 1
    for name in ("report.md", "table.tex"):
        text = (tmp_path / "out" / name).read_text().replace("\\_", "_")
        assert "with the mean over train: in 1 of 180 traces for logreg_first, logreg_best" in text


def test_validation_chooses_layers_and_penalties(make_store, labels, tmp_path, capsys):
    """A detector of one layer reads the one that knows the labels; what was chosen is in the
    results, under the table, and used by `predict`."""

    def silence(number, row):
        row["hs_last"][1] = np.random.default_rng(number).normal(size=8)

    path = make_store(labels, change=silence)
    out = tmp_path / "out"
    flags = ["--only=saplma,logreg_best,mean_logprob", "--seed=1", "--tune=small"]
    results = train(path, out, *flags)
    best = results["baselines"]["logreg_best"]
    assert results["models"]["saplma"]["runs"][0]["layer"] == best["layer"] == 1
    assert results["config"]["saplma_layer"] is None
    assert "C" not in results["baselines"]["mean_logprob"]
    line = f"logreg_best layer 1, C {best['C']:.2g}"
    assert line in " ".join(capsys.readouterr().out.split())
    assert line in (out / "report.md").read_text()
    scores = {line["trace_id"]: line["saplma"] for line in read_scores(out) if line["saplma"]}
    found = read_csv(call(capsys, *predict(out, path))[1])
    repeated = {trace_id: float(line["saplma"]) for trace_id, line in found.items()}
    assert all(repeated[key] == pytest.approx(float(score)) for key, score in scores.items())


def test_promised_thresholds_and_wrong_labels(make_store, labels, tmp_path, capsys, monkeypatch):
    """In the results, on the terminal and in the report; the thresholds go with the run to another
    store. The second grader is the first one."""
    path = make_store(labels, columns=["question_id", "label", "hs_last"])
    out = tmp_path / "out"
    flags = ["--risk=0.3", "--second-label=label", "--label-noise=0.1"]
    results = train(path, out, "--only=saplma,logreg_first", *flags)
    test = results["models"]["saplma"]["test"]
    rows = [line for line in read_scores(out) if line["split"] == "test"]
    tested = [[line[key] for line in rows] for key in ("label", "saplma", "question_id")]
    labels_of_test, scores = np.array(tested[0], int), np.array(tested[1], float)
    threshold = risk_threshold(labels_of_test, scores, np.array(tested[2]), 0.3)
    assert test["risk_threshold"] == pytest.approx(threshold)
    assert 0 <= test["risk"] < 0.6
    assert 0 < test["answered"] < 1
    noise = results["label_noise"]
    assert (noise["error"], noise["agreement"], noise["rows"]) == (0.1, 1.0, len(rows))
    area = noise["auroc"]["saplma"]
    assert area["low"] < test["auroc"] == area["second"] < area["high"]
    printed = " ".join(capsys.readouterr().out.split())
    for text in ("at most .300 are let through", "Two graders agree on 1.000", "true labels"):
        assert text in printed
        assert text in " ".join((out / "report.md").read_text().split())
    monkeypatch.setenv("COLUMNS", "200")  # else the widths of timings decide whether headers break
    argv = ["evaluate", "--run", out, "--store", path, "--models=saplma", "--force-cpu"]
    status, text, _ = call(capsys, *argv)
    assert status == 0
    assert f"{test['risk_threshold']:.3f}".lstrip("0") in text
    assert "ECE (T)" in text
