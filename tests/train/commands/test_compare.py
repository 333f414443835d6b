"""The command `python -m train compare`: tables, and one line for every mistake."""

import json

import pytest
from runs import call, train

from train.run.results import read_run


@pytest.fixture(scope="module")
def run_dirs(store_path, tmp_path_factory):
    """Two runs on different splits."""
    path = tmp_path_factory.mktemp("runs")
    only = "--only=lstm_solo,logreg_best,mean_logprob"
    train(store_path, path / "a", only)
    train(store_path, path / "b", only, "--seed=5")
    return path


def test_a_run_against_itself(run_dirs, capsys):
    """There is nothing to test; and the AUROCs are those of its own results."""
    status, out, _ = call(capsys, "compare", run_dirs / "a", run_dirs / "a", "--json")
    found = json.loads(out)
    assert status == 0
    assert list(found["runs"]) == [f"{i}: {run_dirs / 'a'}" for i in (1, 2)]
    assert found["comparisons"] == []
    results = json.loads((run_dirs / "a" / "results.json").read_text())
    expected = {
        name: (pytest.approx(entry["test"]["auroc"]), entry["test"]["auroc_ci"])
        for name, entry in (results["models"] | results["baselines"]).items()
    }
    for one in found["runs"].values():
        areas = {name: (area["auroc"], area["ci"]) for name, area in one["auroc"].items()}
        assert areas == expected


def test_tables_on_the_terminal(run_dirs, capsys, monkeypatch):
    """Every run, every name, in 80 columns, nothing cut."""
    monkeypatch.setenv("COLUMNS", "80")
    status, out, lines = call(capsys, "compare", run_dirs / "a", run_dirs / "b")
    assert (status, lines) == (0, [])
    for word in ("lstm_solo *", "logreg_best", "a - b", "in the test split of every run"):
        assert word in out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_other_splits_are_reduced_to_what_is_common(run_dirs, capsys):
    """The rows that both were tested on, and how many were left out."""
    runs = [read_run(run_dirs / name) for name in ("a", "b")]
    tested = [run.ids_in("test") for run in runs]
    status, out, lines = call(capsys, "compare", run_dirs / "a", run_dirs / "b", "--json")
    assert (status, lines) == (0, [])
    found = json.loads(out)
    assert found["rows"] == len(tested[0] & tested[1]) == 9
    assert found["left_out"] == len(tested[0] ^ tested[1])
