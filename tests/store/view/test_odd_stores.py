"""Stores with unusual columns, ids and notes, and stores that are gone."""

import shutil

import numpy as np
import pytest
from small import make_store
from view_traces import SCHEMA, client_of, write_traces

from store import Column, StoreWriter, TraceStore
from store.traces.notes import notes_path
from store.transform.subset import read_ids
from store.view.columns import CELL_CHARACTERS
from store.view.pieces import StoredPieces

IDS = ["a\u2028b", "c\x85d", "e\x0bf", "g h", "i\nj", "k\rl"]
TEXTS = ["long " * 1000, "é" * 1000, "🦊" * 1000, "", "x" * CELL_CHARACTERS, "a\x00é"]
COLUMNS = {
    "text": "utf8",
    "tokens": Column("int32", axis="tokens"),
    "prompt_len": "float32",
    "topk_id": Column("int32", axis="tokens"),
    "topk_logprob": Column("float32", axis="tokens"),
}


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """One candidate a token, a prompt that never ends, ids and texts of every kind."""
    row = {
        "tokens": np.arange(3, dtype=np.int32),
        "prompt_len": np.float32(np.inf),
        "topk_id": np.array([5, 6, 7], np.int32),
        "topk_logprob": np.array([-0.5, -1, -2], np.float32),
    }
    rows = {name: row | {"text": text} for name, text in zip(IDS, TEXTS, strict=True)}
    return make_store(tmp_path_factory.mktemp("odd") / "odd.zarr", COLUMNS, rows).path


@pytest.fixture(scope="module")
def client(odd):
    return client_of([odd])


def test_odd_columns_are_shown(client):
    """One candidate a token, without an axis of candidates; a prompt of infinite length."""
    found = client.get("/api/0/1/trace/0/candidates/1").json()
    assert found == [{"id": 6, "text": None, "logprob": -1.0}]
    found = client.get("/api/0/1/trace/0").json()
    assert found["prompt_len"] == 0
    assert found["numbers"]["prompt_len"] == "inf"


def test_saved_ids_are_read_again(client, tmp_path):
    """Only a line feed ends a line; an id that has one is refused by name."""
    query = {"filter": "not (trace_id ~ 'j' or trace_id ~ 'l')"}
    answer = client.get("/api/0/1/save/ids", params=query)
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


def test_texts_of_ids_that_no_trace_has(traces_path, odd):
    """There are none; nor any where the store has no texts."""
    assert StoredPieces(TraceStore.open(traces_path)).texts([10**6]) == [None]
    assert StoredPieces(TraceStore.open(odd)).texts([0]) == [None]


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


def test_a_store_that_is_gone_keeps_no_other_from_being_shown(odd, tmp_path):
    """It says what happened; the numbers of the others stay."""
    gone = shutil.copytree(odd, tmp_path / "gone.zarr")
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
    path = make_store(tmp_path / "s.zarr", {"label": "int8"}, {"a": {"label": 0}}).path
    backup = shutil.copytree(path, tmp_path / "backup.zarr")
    for copy, label in ((path, 0), (backup, 1)):
        with StoreWriter.open(copy) as writer:
            writer.append("b", {"label": label})
    client, reader = client_of([path]), TraceStore.open(path)
    client.get("/api/stores")
    path.rename(tmp_path / "old.zarr")
    backup.rename(path)
    assert reader.refresh()["b"]["label"] == 1
    shown = client.get("/api/stores").json()["stores"][0]
    assert shown["generation"] == 2 != shown["newest"]
    newest = client.get("/api/stores", params={"newest": "1"}).json()["stores"][0]["newest"]
    table = client.get(f"/api/0/{newest}/table", params={"columns": "label"}).json()
    assert table["columns"]["label"] == [0, 1]
