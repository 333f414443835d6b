"""Runs beside a store: whose they are, their scores and thresholds, and what their files say."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from small import complaint
from view_traces import client_of, write_run

from store import FormatError, TraceStore
from store.view.describe import describe
from store.view.runs import Run, join_runs, read_results, read_scores

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")

from store.errors import NotFoundError
from store.view.serve import find_trace
from store.view.snapshots import open_stores


@pytest.fixture
def copy(run_path, tmp_path):
    """A copy of the run, which a test may change."""
    return shutil.copytree(run_path, tmp_path / "run")


def shown(path, run):
    """What the page is told of a store beside a run."""
    (store,) = client_of([path], [run]).get("/api/stores").json()["stores"]
    return store


@pytest.mark.parametrize(
    "recorded, is_foreign",
    [
        ({"uuid": "other"}, True),
        ({"uuid": "other", "path": "a + b"}, False),
        ({"uuid": "other", "path": "a + b", "uuids": ["a", "b"]}, True),
        ({"uuid": "other", "path": "a + b", "uuids": ["a", "OWN"]}, False),
        ({"uuid": "OWN", "uuids": 3}, False),
        ([], False),
    ],
)
def test_a_run_of_another_store_is_named(traces_path, copy, recorded, is_foreign):
    """Not one of several stores that did not say which, of which this may be one."""
    text = json.dumps({"store": recorded}).replace("OWN", TraceStore.open(traces_path).uuid)
    (copy / "results.json").write_text(text)
    assert shown(traces_path, copy)["runs"][0]["is_foreign"] is is_foreign


def test_thresholds_follow_the_names_of_columns(traces_path):
    """A second run's column has the run's name, and its threshold; runs of other traces none."""
    store = TraceStore.open(traces_path)
    ids, values = [store.ids[3]], np.ones(1, np.float32)

    def results(**thresholds):
        return {"models": {name: {"test": {"threshold": x}} for name, x in thresholds.items()}}

    runs = [
        Run("a", ids, {"score_x": values}, results(x=0.5)),
        Run("other", ["elsewhere"], {"score_x": values}, results(x=1.0)),
        Run("b", ids, dict.fromkeys(["score_x", "score_y"], values), results(x=0.25, z=1.0)),
    ]
    scores, thresholds = join_runs(store, runs)
    assert [*scores] == ["score_x", "score_x_b", "score_y"]
    assert thresholds == {"score_x": 0.5, "score_x_b": 0.25}
    assert [np.flatnonzero(np.isfinite(column)).tolist() for column in scores.values()] == [[3]] * 3


@pytest.mark.parametrize(
    "content, expected",
    [
        (None, {}),
        ([], {}),
        ({"models": {"a-b": {"test": {"threshold": 0.5}}}}, {"score_a_b": 0.5}),
        ({"models": [1], "baselines": {"c": {"test": {"threshold": "0.5"}}, "d": 3}}, {}),
        ({"models": {"c": {"test": {"threshold": 10**400}}, "d": {"test": []}}}, {}),
    ],
)
def test_results_may_hold_anything(tmp_path, content, expected):
    """What is no threshold is left out; what is no JSON is an error that names the file."""
    file = tmp_path / "results.json"
    if content is not None:
        file.write_text(json.dumps(content))
    assert Run("a", [], {}, read_results(tmp_path)).thresholds == expected
    file.write_text("[" * 100_000)
    assert f"{file}: expected JSON" in complaint(FormatError, read_results, tmp_path)


def test_runs_of_one_name_are_told_apart(traces_path, run_path, tmp_path):
    """By the folders above them; the same run given twice is one."""
    for folder in ("a", "b"):
        shutil.copytree(run_path, tmp_path / folder / "run")
    runs = [tmp_path / "a/run", tmp_path / "b/run", tmp_path / "a/../a/run"]
    (opened,) = open_stores([traces_path], runs)
    names = [name for name in opened.first.scores if "gvae" in name]
    assert names == ["score_gvae", "score_gvae_b_run"]
    assert opened.first.thresholds == dict.fromkeys(names, 0.25)


def test_a_report_leads_to_the_traces(traces_path, run_path, copy):
    """Through the server that shows them; no script of it runs."""
    (copy / "report.html").write_text('<a data-trace="trace-0%237">trace-0#7</a>')
    client = client_of([traces_path], [copy])
    assert shown(traces_path, copy)["runs"][0]["report"] == "/runs/0/report.html"
    answer = client.get("/runs/0/report.html")
    assert answer.text == '<a href="/#store=0&amp;trace=trace-0%237">trace-0#7</a>'
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert client.get("/runs/1/report.html").status_code == 404
    assert client_of([traces_path], [run_path]).get("/runs/0/report.html").status_code == 404


def test_a_run_that_was_trained_again_is_said(traces_path, copy):
    """Its scores stay those that were read; so it is if the run is gone."""
    client = client_of([traces_path], [copy])
    assert client.get("/api/stores").json()["stores"][0]["problem"] is None
    for change in (lambda: (copy / "results.json").write_text("{}"), lambda: shutil.rmtree(copy)):
        change()
        problem = client.get("/api/stores").json()["stores"][0]["problem"]
        assert problem.startswith(f"{copy}: the run was written anew or removed")
    table = client.get("/api/0/1/table", params={"columns": "score_gvae"}).json()
    assert table["columns"]["score_gvae"][2] == pytest.approx(0.05)


CUT = {"split": {"test": {"rows": 5}}}
OTHERS = {"split": {"test": {"rows": 4}}, "models": {"gvae": {"test": {"auroc": 1.0}}}}


@pytest.mark.parametrize(
    ("results", "said"),
    [
        (CUT, "expected 5 traces of test, as in its results, found 4"),
        (OTHERS, "expected scores of gvae of AUROC 1.0000, as in its results, found 0.7500"),
        (OTHERS | {"models": {"gvae": {"test": {"auroc": 0.75}}}}, None),
    ],
)
def test_scores_that_are_not_those_of_the_results_are_said(traces_path, tmp_path, results, said):
    """As of a file that was cut or edited."""
    header = ["trace_id", "split", "label", "gvae"]
    scores = enumerate([0.2, 0.3, 0.4, 0.5])
    lines = [[f"trace-{i:02}", "test", i % 2, score] for i, score in scores]
    run = write_run(tmp_path / "run", header, [*lines, ["trace-04", "train", 1, ""]])
    (run / "results.json").write_text(json.dumps(results))
    assert shown(traces_path, run)["problem"] == (said and f"{run}/scores.csv: {said}")


def test_of_several_trainings_the_mean_is_shown(tmp_path):
    """A detector that only is called as if it were one of them is shown; columns of one name are
    not taken for each other."""
    file = tmp_path / "scores.csv"
    file.write_text("trace_id,gvae,other-seed0,gvae-seed0,gvae-seed1\na,2,5,1,3\n")
    assert read_scores(tmp_path)[1] == {"score_gvae": [2], "score_other_seed0": [5]}
    for header in ("gvae,gvae", "my-model,my.model"):
        file.write_text(f"trace_id,{header}\na,1,2\n")
        said = complaint(FormatError, read_scores, tmp_path)
        assert f"{file}: expected columns of different names" in said


def test_a_trace_is_found_by_its_id(traces_path, others):
    """In the first store that has it."""
    stores = open_stores([*others, traces_path], [])
    assert find_trace(stores, "trace-07") == "#store=3&row=7"
    assert find_trace(stores, "long") == "#store=1&row=0"
    for wrong in ("trace-99", "", "\udcff"):
        said = complaint(NotFoundError, find_trace, stores, wrong)
        assert "--trace: expected an id of a trace in" in said


def test_a_store_that_is_the_folder_here_has_a_name(traces_path, monkeypatch):
    """That of the folder."""
    monkeypatch.chdir(traces_path)
    (opened,) = open_stores([Path()], [])
    assert describe(opened.first, opened.path)["place"] == str(traces_path)
