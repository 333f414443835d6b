"""Thresholds, rates, heads, neighbours, notes and --trace: the API against NumPy."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from view_traces import ADDRESS, SCHEMA, array_of, client_of, write_traces

from store import Column, Schema, TraceStore
from store.errors import FormatError, NotFoundError
from store.traces.notes import Note, notes_path, read_notes
from train.evaluate.metrics import auroc, calibration_bins, expected_calibration_error

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")
pytest.importorskip("httpx2", reason="the test client needs the extra test")

from store.view.describe import describe
from store.view.pieces import StoredPieces
from store.view.runs import Run, join_runs, read_results
from store.view.scores import calibrate, rank_density, rank_limits, roc
from store.view.serve import find_trace
from store.view.snapshots import open_stores


def test_a_run_says_its_thresholds(client):
    """Those of results.json, under the names that the columns have; others have none."""
    (store,) = client.get("/api/stores").json()["stores"]
    assert store["thresholds"] == {"score_gvae": 0.25}


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
def test_a_run_of_another_store_is_named(traces_path, run_path, tmp_path, recorded, is_foreign):
    """Not one of several stores that did not say which, of which this may be one."""
    recorded = json.loads(json.dumps(recorded).replace("OWN", TraceStore.open(traces_path).uuid))
    shutil.copytree(run_path, tmp_path / "run")
    (tmp_path / "run" / "results.json").write_text(json.dumps({"store": recorded}))
    (store,) = client_of([traces_path], [tmp_path / "run"]).get("/api/stores").json()["stores"]
    assert store["runs"][0]["is_foreign"] is is_foreign


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
    """What is no threshold is left out."""
    if content is not None:
        (tmp_path / "results.json").write_text(json.dumps(content))
    assert Run("a", [], {}, read_results(tmp_path)).thresholds == expected


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
        read_results(tmp_path)


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


def test_roc_is_that_of_a_report():
    """The same area, ties included; the curve's points are rates at scores of rows."""
    rng = np.random.default_rng(5)
    scores = np.append(rng.integers(0, 40, 500) / 40, [np.nan, 0.5]).astype(np.float32)
    labels = np.append(rng.integers(0, 2, 500), [1, -1])
    found = roc(scores, labels)
    assert found.auroc == pytest.approx(auroc(labels[:500], scores[:500].astype(np.float64)))
    for threshold, false_rate, true_rate in zip(*found[1:], strict=True):
        says = scores >= np.float32(threshold)
        assert false_rate == pytest.approx(says[labels == 0].mean())
        assert true_rate == pytest.approx(says[:500][labels[:500] == 1].mean())
    assert found.false_rates[-1] == found.true_rates[-1] == 1
    assert roc(scores, np.zeros(502)) is None


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


@pytest.mark.parametrize("column, layer", [("hs", 1), ("hs", None), ("plain", None)])
def test_nearest_traces_have_the_most_alike_states(tmp_path, column, layer):
    """Of the rows asked for; the trace itself, and states that are not finite, are left out."""
    rng = np.random.default_rng(6)
    schema = Schema(
        {
            "hs": Column("float16", (2, 5), axis_names=("layers", "hidden")),
            "plain": Column("float32", (4,)),
            "x": Column("float32"),
        }
    )
    rows = []
    for i in range(30):
        hs = rng.standard_normal((2, 5)).astype(np.float16)
        hs[:, 0] = np.nan if i == 4 else hs[:, 0]
        plain = np.zeros(4, np.float32) if i == 4 else rng.standard_normal(4).astype(np.float32)
        rows.append((f"t{i}", {"hs": hs, "plain": plain, "x": np.float32(i)}))
    client = client_of([write_traces(tmp_path / "s.zarr", schema, rows)])
    states = np.array([row[column].astype(np.float32) for _, row in rows])
    states = (states if layer is None else states[:, layer]).reshape(30, -1)
    with np.errstate(invalid="ignore"):
        states /= np.linalg.norm(states, axis=1, keepdims=True)
    asked = [i for i in range(10, 30) if i != 12]
    expected = sorted(asked, key=lambda i: -(states[i] @ states[12]))[:8]
    query = {"filter": "x >= 10", "layer": -1 if layer is None else layer}
    found = client.get(f"/api/0/1/trace/12/near/{column}", params=query).json()
    assert found["rows"] == expected
    cosines = [states[i] @ states[12] for i in expected]
    np.testing.assert_allclose(found["scores"], cosines, rtol=1e-3)
    assert found["columns"]["trace_id"] == [f"t{i}" for i in expected]
    assert "expected a column of states" in client.get("/api/0/1/trace/1/near/x").text


@pytest.mark.parametrize("column", ["attentions", "attn_edges"])
def test_edges_of_one_head(tmp_path, column):
    """From the whole maps, or from the edges that were kept."""
    rng = np.random.default_rng(8)
    n = 6
    maps = np.tril(rng.random((2, 3, n, n))).astype(np.float16)
    ends = np.array([(i, j) for i in range(n) for j in range(i)], np.int32)
    values = {
        "attentions": maps.transpose(2, 3, 0, 1).reshape(-1, 2, 3),
        "attn_edges": maps[:, :, ends[:, 0], ends[:, 1]].transpose(2, 0, 1),
        "attn_edge_ends": ends,
        "tokens": np.arange(n, dtype=np.int32),
    }
    names = ["tokens", column, *(["attn_edge_ends"] if column == "attn_edges" else [])]
    columns = {
        "tokens": Column("int32", axis="tokens"),
        "attentions": Column("float16", (2, 3), "squares", ("layers", "heads")),
        "attn_edges": Column("float16", (2, 3), "edges", ("layers", "heads")),
        "attn_edge_ends": Column("int32", (2,), "edges", ("ends",)),
    }
    schema = Schema({name: columns[name] for name in names})
    path = write_traces(
        tmp_path / "s.zarr", schema, [("a", {name: values[name] for name in names})]
    )
    client = client_of([path])
    (store,) = client.get("/api/stores").json()["stores"]
    assert store["head_edges"] == {"column": column, "layers": [1, 2], "heads": 3}
    query = {"head": 2, "threshold": 0.3, "skip_first": 1}
    found = client.get("/api/0/1/trace/0/attention/1", params=query).json()
    square = maps[1, 2].astype(np.float32)
    expected = sorted(
        (-square[i, j], i, j) for i, j in ends.tolist() if j > 0 and square[i, j] >= 0.3
    )
    assert expected
    assert found["n_above"] == len(expected)
    assert found["weights"] == [-weight for weight, _, _ in expected]
    assert list(zip(found["queries"], found["keys"], strict=True)) == [e[1:] for e in expected]
    answer = client.get("/api/0/1/trace/0/attention/1", params={"head": 3})
    assert "head: expected 0 to 2, found 3" in answer.text


def test_what_is_noted_lies_beside_the_store(tmp_path, traces):
    """A label, tags and a text; nothing else is taken, and nothing from another page."""
    path = write_traces(tmp_path / "s.zarr", SCHEMA, traces[:9])
    client = client_of([path])
    place, origin = "/api/0/1/trace/7/note", {"Origin": ADDRESS}
    assert client.get("/api/0/1/trace/7").json()["note"] == {"label": "", "tags": "", "note": ""}
    given = {"label": "1", "tags": " odd  late ", "note": 'he said "no"\r\nthen, yes'}
    assert client.post(place, json=given).status_code == 403
    foreign = {"Origin": "http://127.0.0.1:9999"}
    assert client.post(place, json=given, headers=foreign).status_code == 403
    large = {"note": "x" * 70_000}
    assert client.post(place, json=large, headers=origin).status_code == 413
    for wrong in (["label"], {"label": 1}, {"other": ""}, {"label": "2"}):
        assert client.post(place, json=wrong, headers=origin).status_code == 400
    assert not notes_path(path).exists()
    assert client.post(place, json=given, headers=origin).status_code == 200
    kept = {**given, "tags": "odd late"}
    assert client.get("/api/0/1/trace/7").json()["note"] == kept
    assert read_notes(notes_path(path)) == {"trace-07": Note(**kept)}
    assert client.post(place, json={"tags": "late"}, headers=origin).status_code == 200
    assert client.get("/api/0/1/trace/7").json()["note"] == kept | {"tags": "late"}
    nothing = dict.fromkeys(kept, "")
    assert client.post(place, json=nothing, headers=origin).status_code == 200
    assert read_notes(notes_path(path)) == {}


@pytest.mark.parametrize(
    "content", [b"", b"a,b\n", b"trace_id,label,tags,note\nq,,,\xe4", b'"' + b"x" * 200_000]
)
def test_a_trace_is_shown_without_its_notes(tmp_path, traces, content):
    """Where their file is none; why is said in their place."""
    path = write_traces(tmp_path / "s.zarr", SCHEMA, traces[:3])
    notes_path(path).write_bytes(content)
    found = client_of([path]).get("/api/0/1/trace/1").json()
    assert found["texts"]["trace_id"] == "trace-01"
    assert found["note"].startswith(f"{notes_path(path)}: expected")


def test_texts_of_ids_that_no_trace_has(traces_path, others):
    """There are none; nor any where the store has no texts."""
    pieces = StoredPieces(TraceStore.open(traces_path))
    assert pieces.texts([10**6]) == [None]
    assert StoredPieces(TraceStore.open(others[1])).texts([0]) == [None]


def test_a_report_leads_to_the_traces(tmp_path, traces_path, run_path):
    """Through the server that shows them; no script of it runs."""
    shutil.copytree(run_path, tmp_path / "run")
    (tmp_path / "run" / "report.html").write_text('<a data-trace="trace-0%237">trace-0#7</a>')
    client = client_of([traces_path], [tmp_path / "run"])
    (store,) = client.get("/api/stores").json()["stores"]
    assert store["runs"][0]["report"] == "/runs/0/report.html"
    answer = client.get("/runs/0/report.html")
    assert answer.text == '<a href="/#store=0&amp;trace=trace-0%237">trace-0#7</a>'
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert client.get("/runs/1/report.html").status_code == 404
    assert client_of([traces_path], [run_path]).get("/runs/0/report.html").status_code == 404


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
