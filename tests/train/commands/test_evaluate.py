"""The command `python -m train evaluate`: runs on other stores, at the thresholds of the runs."""

import csv
import io
import json

import numpy as np
import pytest
from runs import call, fail, train

from store import Column, StoreWriter, TraceStore
from train.commands.main import main
from train.evaluate.findings import measure_elsewhere
from train.files import read_json
from train.records import as_json
from train.report.numbers import with_interval

FLAGS = ["--epochs=1", "--only=lstm_solo,logreg_pca,mean_logprob,majority"]


def prefix(letter):
    """Questions and, with them, traces of another data set."""

    def change(_number, row):
        row["question_id"] = letter + row["question_id"]

    return change


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("evaluate")


@pytest.fixture(scope="module")
def stores(folder, labels, store_writer):
    """The stores of two runs, of the same states and other questions, and one of one class."""
    of_class = np.where(labels < 0, -1, 1)
    given = {"alpha": labels, "beta": np.roll(labels, 1), "single": of_class}
    found = {}
    for name, values in given.items():
        found[name] = store_writer(folder / f"{name}.zarr", values, change=prefix(name))
        set_model(found[name], "one")
    return found


def set_model(store, name):
    with StoreWriter.open(store) as writer:
        writer.provenance = {"weights_sha256": name}


@pytest.fixture(scope="module")
def runs(folder, stores):
    """A run on each of the first two, the second one of two seeds."""
    found = {}
    for name, n_seeds in {"alpha": 1, "beta": 2}.items():
        found[name] = folder / f"run_{name}"
        train(stores[name], found[name], *FLAGS, f"--seeds={n_seeds}")
    return found


def read_entries(run):
    """What a run says of its methods, by name."""
    results = read_json(run / "results.json")
    return results["models"] | results["baselines"]


def evaluate(capsys, *argv):
    return call(capsys, "evaluate", *argv, "--force-cpu")


def evaluated(capsys, *argv, status=0):
    """The JSON of the command."""
    found, out, lines = evaluate(capsys, *argv, "--json")
    assert (found, lines) == (status, [])
    return json.loads(out)


def test_the_own_store_gives_the_results_of_the_run(runs, stores, capsys):
    """Its test split, with the same thresholds and the same intervals, detectors and baselines."""
    (found,) = evaluated(capsys, "--run", runs["alpha"], "--store", stores["alpha"])["results"]
    entries = read_entries(runs["alpha"])
    assert found["own"]
    assert found["rows"] == read_json(runs["alpha"] / "results.json")["split"]["test"]["rows"]
    assert list(found["metrics"]) == list(entries)
    for name, metrics in found["metrics"].items():
        test = entries[name]["test"]  # of strata a run alone knows
        expected = {key: value for key, value in test.items() if "within" not in key}
        assert {key: metrics[key] for key in expected} == {
            key: pytest.approx(value) for key, value in expected.items()
        }
        assert metrics["own_test_auroc"] == pytest.approx(expected["auroc"])
    assert "the run's own store: its test split" in found["remarks"][0]


def test_another_store_is_judged_at_the_run_s_thresholds(runs, stores, capsys):
    """All its labelled rows, by the scores that predict writes."""
    found = evaluated(capsys, "--run", runs["alpha"], "--store", stores["beta"])["results"][0]
    predicted = ["predict", "--run", str(runs["alpha"]), "--store", str(stores["beta"])]
    assert main([*predicted, "--models=lstm_solo,mean_logprob", "--force-cpu"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    store = TraceStore.open(stores["beta"])
    labels = np.asarray(store.column("label")).astype(np.int64)
    kept = labels >= 0
    assert (found["own"], found["rows"], found["unlabelled"]) == (False, 180, 20)
    entries = read_entries(runs["alpha"])
    questions = np.unique(store.column("question_id"), return_inverse=True)[1]
    for name in ("lstm_solo", "mean_logprob"):
        scores = np.array([float(line[name]) for line in lines])
        threshold = entries[name]["test"]["threshold"]
        expected = measure_elsewhere(labels[kept], scores[kept], threshold, questions[kept], seed=0)
        metrics = found["metrics"][name]
        assert {key: metrics[key] for key in as_json(expected)} == {
            key: pytest.approx(value) for key, value in as_json(expected).items()
        }


def test_a_store_of_one_class_stops_no_other(runs, stores, capsys):
    """Its line says so, and the exit status."""
    argv = ["--run", runs["alpha"], "--store", stores["single"], stores["beta"]]
    argv.append("--models=logreg_pca,majority")
    status, out, lines = evaluate(capsys, *argv)
    assert (status, lines) == (1, [])
    text = " ".join(out.split())
    assert "single.zarr: not judged: expected both classes, found 180 hallucinations" in text
    assert "beta.zarr: 180 traces of 100 questions" in text
    assert max(map(len, out.splitlines())) <= 100
    found = evaluated(capsys, *argv, status=1)["results"]
    assert [bool(one["metrics"]) for one in found] == [False, True]


def test_a_matrix_of_runs_and_stores(runs, stores, capsys, tmp_path):
    """The diagonal is the test split of the run; each cell is that of the runs by themselves. The
    page has the numbers and the picture."""
    argv = ["--matrix", *runs.values(), "--store", stores["alpha"], stores["beta"]]
    found = evaluated(capsys, *argv, "--output", tmp_path / "x.html")
    assert list(found["runs"]) == ["run_alpha", "run_beta"]
    assert [one["own"] for one in found["results"]] == [True, False, False, True]
    assert [list(one["metrics"]) for one in found["results"]] == [["lstm_solo", "logreg_pca"]] * 4
    status, out, _ = evaluate(capsys, *argv)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 100
    page = (tmp_path / "x.html").read_text()
    for one in found["results"]:
        star = "*" if one["own"] else ""
        for metrics in one["metrics"].values():
            area = with_interval(metrics["auroc"], metrics["auroc_ci"])
            assert f"{area}{star}" in out
            assert area in page
    assert "Left out 20 traces without a label." in page
    assert "<svg" in page


def test_a_copy_of_the_run_s_store_is_recognised(
    runs, stores, folder, store_writer, labels, capsys
):
    """A copy of the run's store under another name: what the run has learned from is left out."""
    other = store_writer(folder / "other.zarr", labels, change=prefix("alpha"))
    set_model(other, "one")
    argv = ["--run", runs["alpha"], "--store", other, "--models=logreg_pca"]
    warned = evaluated(capsys, *argv)["results"][0]
    assert "that the run was trained or tuned on (--keep-trained-questions" in warned["remarks"][0]
    kept = evaluated(capsys, *argv, "--keep-trained-questions")["results"][0]
    assert kept["rows"] == 180
    assert kept["remarks"][0].startswith("warning: among the judged are ")
    assert kept["rows"] > warned["rows"]


def test_what_a_run_cannot_judge_is_one_line(runs, stores, store_writer, labels, capsys, tmp_path):
    """Another model, or no labels: nothing is scored, nothing is written."""
    other_model = store_writer(tmp_path / "other.zarr", labels)
    set_model(other_model, "two")
    unlabelled = store_writer(tmp_path / "unlabelled.zarr", labels, ["question_id", "hs_last"])
    set_model(unlabelled, "one")
    out = tmp_path / "x.html"
    for store, message in {
        other_model: "weights_sha256 'two', where the run was trained on 'one'",
        unlabelled: "the metrics: expected column 'label'",
    }.items():
        argv = ["--run", runs["alpha"], "--store", stores["beta"], store, "--output", out]
        assert message in fail(capsys, "evaluate", *argv, "--force-cpu")
        assert not out.exists()
    forced = ["--run", runs["alpha"], "--store", other_model, "--force", "--keep-trained-questions"]
    remarks = evaluated(capsys, *forced)["results"][0]["remarks"]
    assert any(remark.startswith("forced, although weights_sha256") for remark in remarks)


def test_what_a_run_needs_of_another_store(stores, folder, store_writer, labels, capsys):
    """What its detectors add to has to be there for them, not for the others. Labels are made of
    scores with the run's threshold; a store without scores has its labels, and it says."""
    out = folder / "on_top"
    flags = ["--score-threshold=0.3", "--only=lstm_solo,logreg_best", "--on-top-of=mean_logprob"]
    train(stores["alpha"], out, *flags)
    (found,) = evaluated(capsys, "--run", out, "--store", stores["alpha"])["results"]
    for name, entry in read_entries(out).items():
        assert found["metrics"][name]["auroc"] == pytest.approx(entry["test"]["auroc"])
    columns = ["question_id", "label", "hs_last"]
    bare = store_writer(folder / "bare.zarr", labels, columns, change=prefix("u"))
    set_model(bare, "one")
    argv = ["--run", out, "--store", bare]
    line = fail(capsys, "evaluate", *argv, "--force-cpu")
    assert "mean_logprob: expected column 'logprob'" in line
    (found,) = evaluated(capsys, *argv, "--models=logreg_best")["results"]
    assert list(found["metrics"]) == ["logreg_best"]
    assert found["hallucinations"] == int(np.sum(labels == 1))
    assert any("labels as stored" in remark for remark in found["remarks"])


def test_what_changed_in_the_own_store_is_said(folder, store_writer, labels, capsys):
    """That --where may be why traces are in no split; how many labels of test are others now."""
    path, out = store_writer(folder / "own.zarr", labels), folder / "own"
    store = TraceStore.open(path)
    kept = "answer_len > 2"
    train(path, out, "--only=logreg_pca", f"--where={kept}")
    n_left = np.sum(labels >= 0) - np.sum(labels[store.where(kept)] >= 0)
    argv = ["--run", out, "--store", path]
    (found,) = evaluated(capsys, *argv)["results"]
    said = f"left out {n_left} traces in none of its splits"
    assert any(said in one and "--where" in one for one in found["remarks"])
    assert not any("another label" in one for one in found["remarks"])

    lines = csv.DictReader(io.StringIO((out / "scores.csv").read_text()))
    tested = [store.ids.find(one["trace_id"]) for one in lines if one["split"] == "test"]
    changed = labels.copy()
    changed[tested[:2]] = 1 - changed[tested[:2]]
    changed[tested[2]] = -1
    with StoreWriter.open(path) as writer:
        writer.set_columns({"label": Column("int8")}, ({"label": one} for one in changed))
    (found,) = evaluated(capsys, *argv)["results"]
    (remark,) = [one for one in found["remarks"] if "another label" in one]
    assert remark.startswith("warning: 3 test traces have another label, or none, than when")
