"""Thresholds, calibration, heads, ranks and --trace: the API against NumPy."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from view_traces import array_of

from store import TraceStore
from store.errors import FormatError, NotFoundError
from train.evaluate.metrics import calibration_bins, expected_calibration_error

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")
pytest.importorskip("httpx2", reason="the test client needs the extra test")

from store.view.describe import describe
from store.view.runs import Run, join_runs, read_thresholds
from store.view.scores import calibrate, rank_density, rank_limits
from store.view.serve import find_trace, open_stores


def test_a_run_says_its_thresholds(client):
    """Those of results.json, under the names that the columns have; others have none."""
    (store,) = client.get("/api/stores").json()["stores"]
    assert store["thresholds"] == {"score_gvae": 0.25}


def test_thresholds_follow_the_names_of_columns(traces_path):
    """A second run's column has the run's name, and its threshold; runs of other traces none."""
    store = TraceStore.open(traces_path)
    ids, values = [store.ids[3]], np.ones(1, np.float32)
    runs = [
        Run("a", ids, {"score_x": values}, {"score_x": 0.5}),
        Run("other", ["elsewhere"], {"score_x": values}, {"score_x": 1.0}),
        Run("b", ids, dict.fromkeys(["score_x", "score_y"], values), {"score_x": 0.25, "z": 1.0}),
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
    """What is no threshold is left out."""
    if content is not None:
        (tmp_path / "results.json").write_text(json.dumps(content))
    assert read_thresholds(tmp_path) == expected


def test_runs_of_one_name_are_told_apart(traces_path, run_path, tmp_path):
    """By the folders above them; the same run given twice is one."""
    for folder in ("a", "b"):
        shutil.copytree(run_path, tmp_path / folder / "run")
    runs = [tmp_path / "a/run", tmp_path / "b/run", tmp_path / "a/../a/run"]
    (opened,) = open_stores([traces_path], runs)
    names = [name for name in opened.first.scores if "gvae" in name]
    assert names == ["score_gvae", "score_gvae_b_run"]
    assert opened.first.thresholds == dict.fromkeys(names, 0.25)


def test_a_store_that_is_the_folder_here_has_a_name(traces_path, monkeypatch):
    """That of the folder."""
    monkeypatch.chdir(traces_path)
    (opened,) = open_stores([Path()], [])
    found = describe(opened.first, opened.path)
    assert found["place"] == str(traces_path)


def test_results_that_are_no_json(tmp_path):
    """The file is named."""
    (tmp_path / "results.json").write_text("[" * 100_000)
    with pytest.raises(FormatError, match=r"results\.json: expected JSON"):
        read_thresholds(tmp_path)


def test_calibration_is_that_of_a_report():
    """The same bins and the same error; rows without score or label do not count."""
    rng = np.random.default_rng(3)
    scores = np.append(rng.random(500), [0.0, 1.0, np.nan, 0.5])
    labels = np.append(rng.integers(0, 2, 500), [0, 1, 1, -1])
    used = slice(0, 502)
    found = calibrate(scores, labels)
    means, shares, counts = calibration_bins(labels[used], scores[used])
    np.testing.assert_allclose(found.scores, means)
    np.testing.assert_allclose(found.shares, shares)
    np.testing.assert_array_equal(found.counts, counts)
    assert found.error == pytest.approx(expected_calibration_error(labels[used], scores[used]))


def test_a_bin_of_a_calibration_is_a_filter(client):
    """Its edges and the labels find as many rows as it counts."""
    found = client.get("/api/0/1/calibration?column=score_gvae").json()
    assert len(found["counts"]) > 3
    for (low, high), count in zip(found["edges"], found["counts"], strict=True):
        sign = "<=" if high == 1 else "<"
        text = f"score_gvae >= {low} and score_gvae {sign} {high} and (label == 0 or label == 1)"
        table = client.get("/api/0/1/table", params={"filter": text, "count": 0}).json()
        assert table["total"] == count


def test_what_is_no_probability_has_no_calibration(client):
    """Scores beyond 1, and no scores at all."""
    assert calibrate(np.array([0.5, 1.5]), np.array([0, 1])) is None
    assert calibrate(np.array([np.nan]), np.array([1])) is None
    assert client.get("/api/0/1/calibration?column=score_my_model").json() is None
    assert set(client.get("/api/0/1/calibration?column=score_gvae").json()) == {
        "scores", "shares", "counts", "edges", "error",
    }  # fmt: skip


def test_limits_are_the_scores_of_each_cell():
    """A filter between them means the rows of the cell, ties included."""
    rng = np.random.default_rng(4)
    x, y = rng.integers(0, 9, 300).astype(float), rng.standard_normal(300)
    x[::7] = np.nan
    counts, limits = rank_density(x, y, 6), rank_limits(x, y, 6)
    for j in range(6):
        for i in range(6):
            (low_y, high_y), (low_x, high_x) = limits[0, j], limits[1, i]
            is_here = (x >= low_x) & (x <= high_x) & (y >= low_y) & (y <= high_y)
            assert is_here.sum() == counts[j, i]


def test_heads_of_a_trace(client, traces):
    """The attention a token receives, of those that could attend; of all, the first token's."""
    sums = traces[7][1]["attn_colsum"].astype(np.float32)
    n = len(sums)
    in_layer = array_of(client.get("/api/0/1/trace/7/heads/attn_colsum?layer=2"))
    np.testing.assert_allclose(in_layer, sums[:, 2] / np.arange(n, 0, -1)[:, None], rtol=1e-6)
    summary = array_of(client.get("/api/0/1/trace/7/heads/attn_colsum"))
    np.testing.assert_allclose(summary, sums[0] / n, rtol=1e-6)
    assert np.isnan(array_of(client.get("/api/0/1/trace/1/heads/attn_colsum"))).all()  # no tokens


def test_a_trace_is_found_by_its_id(traces_path, others):
    """In the first store that has it."""
    stores = open_stores([*others, traces_path], [])
    assert find_trace(stores, "trace-07") == "#store=3&row=7"
    assert find_trace(stores, "long") == "#store=1&row=0"
    for wrong in ("trace-99", "", "\udcff"):
        with pytest.raises(NotFoundError, match="--trace: expected an id of a trace in"):
            find_trace(stores, wrong)
