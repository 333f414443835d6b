"""Tables of runs on stores: what fits on a terminal, and what stands for what is missing."""

import io
from html import unescape

import pytest
from rich.console import Console
from runs import make_run

from train.commands.evaluate_runs import BEST, Evaluation, Tested
from train.commands.evaluate_tables import (
    build_matrix,
    names_of_matrices,
    print_evaluation,
    store_headers,
    write_evaluation,
)
from train.evaluate.results import Metrics

NUMBERS = {"auroc": 0.9, "own_test_auroc": 0.92, "auprc": 0.8, "f1": 0.7, "mcc": 0.5}
INTERVALS = {"auroc_ci": [0.8, 0.95], "f1_ci": [0.6, 0.8], "mcc_ci": [0.4, 0.6]}
METRICS = Metrics(
    **NUMBERS, **INTERVALS, accuracy=0.75, accuracy_ci=[0.7, 0.8], ece=0.05, brier=0.1
)


def make(stores, best=("lstm", "gnn"), names=("lstm", "gnn"), problem=None):
    """Two runs on some stores, the first of which is the first run's own."""
    results = [
        Tested(
            run=run,
            store=store,
            own=(run, store) == ("a", stores[0]),
            rows=100,
            questions=50,
            hallucinations=40,
            unlabelled=0,
            remarks=["a <remark>"],
            metrics=dict.fromkeys(names, METRICS),
            problem=problem,
        )
        for run in "ab"
        for store in stores
    ]
    paths = {store: f"/data/{store}" for store in stores}
    return Evaluation(
        {"a": "runs/a", "b": "runs/b"}, paths, dict(zip("ab", best, strict=True)), results
    )


def printed(evaluation, **options):
    file = io.StringIO()
    print_evaluation(evaluation, Console(file=file, width=200), **options)
    return file.getvalue()


@pytest.mark.parametrize("n_stores, is_matrix", [(1, True), (4, True), (9, True), (4, False)])
def test_tables_fit_in_100_columns(n_stores, is_matrix):
    """Of more than four stores a matrix has no intervals, and says where they are."""
    stores = [f"a store with a long name {i}.zarr" for i in range(n_stores)]
    text = printed(make(stores), is_matrix=is_matrix)
    assert max(map(len, text.splitlines())) <= 100
    has_intervals = not is_matrix or n_stores <= 4
    assert (".900 [.800, .950]" in text) == has_intervals
    assert ("have the intervals" in text) != has_intervals


def test_the_best_of_each_run_has_a_matrix():
    """Unless it is one detector in all runs; its name stands beside the run."""
    evaluation = make(["x.zarr", "y.zarr"])
    assert names_of_matrices(evaluation) == [BEST, "lstm", "gnn"]
    table = build_matrix(evaluation, BEST, intervals=False)
    assert table.header == ("trained on", "x", "y")
    assert table.rows == [("a (lstm)", ".900*", ".900"), ("b (gnn)", ".900", ".900")]
    assert names_of_matrices(make(["x"], best=("gnn", "gnn"))) == ["lstm", "gnn"]


def test_names_above_numbers_differ():
    """Those that begin alike are numbered."""
    headers = store_headers(make([f"the same beginning {i}.zarr" for i in range(3)]))
    assert len(set(headers)) == 3


def test_a_store_that_was_not_judged_has_a_dash(tmp_path):
    """And no picture, which would be empty."""
    evaluation = make(["x"], names=(), problem="expected both classes")
    assert not evaluation.is_complete
    assert build_matrix(evaluation, "lstm", intervals=True).rows == [("a", "–"), ("b", "–")]
    assert "not judged: expected both classes" in printed(evaluation, is_matrix=False)
    write_evaluation(tmp_path / "x.html", evaluation, is_matrix=True)
    assert "<svg" not in (tmp_path / "x.html").read_text()


@pytest.mark.parametrize("is_matrix", [True, False])
def test_texts_are_escaped(tmp_path, is_matrix):
    """A name or a remark is no element of the page."""
    path = tmp_path / "x.html"
    write_evaluation(path, make(["<b>.zarr"]), is_matrix=is_matrix)
    text = path.read_text()
    assert "<b>" not in text
    assert "A <remark>." in unescape(text)
    assert "<remark>" not in text


def test_a_control_is_not_the_best_of_a_run():
    """Of what is tested, without detectors: the best baseline."""
    names = ["entropy", "prompt_state", "lstm_solo"]
    record = make_run(dict.fromkeys(names, 0), best="prompt_state", baselines=names[:2])
    some = (names, names[:2], names[1:2])
    best = [record.results.best_among(one) for one in some]
    assert best == ["lstm_solo", "entropy", "prompt_state"]
