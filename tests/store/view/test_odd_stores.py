"""Stores and runs with unusual columns and ids, and stores that are gone."""

import json
import shutil

import numpy as np
import pytest
from view_traces import client_of, write_run, write_traces

from store import Column, FormatError, Schema, StoreWriter, TraceStore
from store.transform.subset import read_ids
from store.view.runs import read_scores

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")
pytest.importorskip("httpx2", reason="the test client needs the extra test")

from store.view.columns import CELL_CHARACTERS

IDS = ["a\u2028b", "c\x85d", "e\x0bf", "g h", "i\nj", "k\rl"]
TEXTS = ["long " * 1000, "é" * 1000, "🦊" * 1000, "", "x" * CELL_CHARACTERS, "a\x00é"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """One candidate a token, a prompt that never ends, ids and texts of every kind."""
    schema = Schema(
        {
            "text": Column("utf8"),
            "tokens": Column("int32", axis="tokens"),
            "prompt_len": Column("float32"),
            "topk_id": Column("int32", axis="tokens"),
            "topk_logprob": Column("float32", axis="tokens"),
        }
    )
    row = {
        "tokens": np.arange(3, dtype=np.int32),
        "prompt_len": np.float32(np.inf),
        "topk_id": np.array([5, 6, 7], np.int32),
        "topk_logprob": np.array([-0.5, -1, -2], np.float32),
    }
    rows = [(name, row | {"text": text}) for name, text in zip(IDS, TEXTS, strict=True)]
    return write_traces(tmp_path_factory.mktemp("odd") / "odd.zarr", schema, rows)


@pytest.fixture(scope="module")
def client(odd):
    return client_of([odd])


def test_one_candidate_a_token(client):
    """A column without an axis of candidates."""
    found = client.get("/api/0/1/trace/0/candidates/1").json()
    assert found == [{"id": 6, "text": None, "logprob": -1.0}]


def test_a_prompt_of_infinite_length(client):
    """Its length is not known; the number is shown as it is."""
    found = client.get("/api/0/1/trace/0").json()
    assert found["prompt_len"] == 0
    assert found["numbers"]["prompt_len"] == "inf"


@pytest.mark.parametrize("number", ["1" * 5000, "-1"])
@pytest.mark.parametrize("path", ["/api/0/1/trace/{}", "/api/{}/1/table", "/api/0/{}/table"])
def test_numbers_of_5000_digits_and_negative_ones(client, path, number):
    """They are no addresses."""
    answer = client.get(path.format(number))
    assert answer.status_code == 404
    assert "\n" not in answer.text


def test_saved_ids_are_read_again(client, tmp_path):
    """Only a line feed ends a line; an id that has one is refused by name."""
    answer = client.get(
        "/api/0/1/save/ids", params={"filter": "not (trace_id ~ 'j' or trace_id ~ 'l')"}
    )
    assert "attachment" in answer.headers["Content-Disposition"]
    path = tmp_path / "ids.txt"
    path.write_bytes(answer.content)
    assert read_ids(path) == IDS[:4]
    path.write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo\n")  # as editors save it
    assert read_ids(path) == ["one", "two"]
    refused = client.get("/api/0/1/save/ids")
    assert refused.status_code == 400
    assert "row 4: expected ids of one line, found 'i\\nj'" in refused.json()["error"]


def test_cells_are_beginnings_of_texts(client, odd):
    """Cut by characters; the rest of a long text is not read."""
    found = client.get("/api/0/1/table", params={"columns": ",".join(["text", "trace_id"] * 400)})
    columns = found.json()["columns"]
    assert columns == {"text": [text[:CELL_CHARACTERS] for text in TEXTS], "trace_id": IDS}
    (data, offsets) = TraceStore.open(odd).text_bytes("text", np.array([2, 0]), 8)
    assert (data, offsets.tolist()) == ("🦊🦊long lon".encode(), [0, 8, 16])


def test_a_store_that_is_gone_keeps_no_other_from_being_shown(odd, tmp_path):
    """It says what happened; the numbers of the others stay."""
    gone = tmp_path / "gone.zarr"
    shutil.copytree(odd, gone)
    client = client_of([gone, odd])
    shutil.rmtree(gone)
    for query in ({}, {"newest": "1"}):
        first, second = client.get("/api/stores", params=query).json()["stores"]
        assert "gone.zarr" in first["problem"]
        assert first["generation"] == first["newest"] == 1
        assert second["problem"] is None
    assert client.get("/api/1/1/table").json()["total"] == len(IDS)


def test_a_copy_that_grew_on_its_own_is_a_newer_state(tmp_path):
    """It has the uuid and as many commits, and other labels."""
    schema = Schema({"label": Column("int8")})
    path = write_traces(tmp_path / "s.zarr", schema, [("a", {"label": 0})])
    shutil.copytree(path, tmp_path / "backup.zarr")
    for copy, label in ((path, 0), (tmp_path / "backup.zarr", 1)):
        with StoreWriter.open(copy) as writer:
            writer.append("b", {"label": label})
    client, reader = client_of([path]), TraceStore.open(path)
    client.get("/api/stores")
    path.rename(tmp_path / "old.zarr")
    (tmp_path / "backup.zarr").rename(path)
    assert reader.refresh()["b"]["label"] == 1
    shown = client.get("/api/stores").json()["stores"][0]
    assert shown["generation"] == 2 != shown["newest"]
    newest = client.get("/api/stores", params={"newest": "1"}).json()["stores"][0]["newest"]
    table = client.get(f"/api/0/{newest}/table", params={"columns": "label"}).json()
    assert table["columns"]["label"] == [0, 1]


def test_a_run_that_was_trained_again_is_said(odd, tmp_path):
    """Its scores stay those that were read; so it is if the run is gone."""
    run = write_run(tmp_path / "run", ["trace_id", "gvae"], [[IDS[0], 1]])
    client = client_of([odd], [run])
    assert client.get("/api/stores").json()["stores"][0]["problem"] is None
    for change in (lambda: (run / "results.json").write_text("{}"), lambda: shutil.rmtree(run)):
        change()
        problem = client.get("/api/stores").json()["stores"][0]["problem"]
        assert problem.startswith(f"{run}: the run was written anew or removed")
    table = client.get("/api/0/1/table", params={"columns": "score_gvae"}).json()
    assert table["columns"]["score_gvae"][0] == 1


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
def test_scores_that_are_not_those_of_the_results_are_said(odd, tmp_path, results, said):
    """As of a file that was cut or edited."""
    header = ["trace_id", "split", "label", "gvae"]
    lines = [[IDS[i], "test", i % 2, score] for i, score in enumerate([0.2, 0.3, 0.4, 0.5])]
    run = write_run(tmp_path / "run", header, [*lines, [IDS[4], "train", 1, ""]])
    (run / "results.json").write_text(json.dumps(results))
    (shown,) = client_of([odd], [run]).get("/api/stores").json()["stores"]
    assert shown["problem"] == (said and f"{run}/scores.csv: {said}")


def test_of_several_trainings_the_mean_is_shown(tmp_path):
    """A detector that only is called as if it were one of them is shown."""
    header = "trace_id,gvae,other-seed0,gvae-seed0,gvae-seed1"
    (tmp_path / "scores.csv").write_text(f"{header}\na,2,5,1,3\n")
    assert read_scores(tmp_path)[1] == {"score_gvae": [2], "score_other_seed0": [5]}


@pytest.mark.parametrize("header", ["gvae,gvae", "my-model,my.model"])
def test_scores_of_one_name(tmp_path, header):
    """None of them is taken for the other."""
    (tmp_path / "scores.csv").write_text(f"trace_id,{header}\na,1,2\n")
    with pytest.raises(FormatError, match=r"scores\.csv: expected columns of different names"):
        read_scores(tmp_path)
