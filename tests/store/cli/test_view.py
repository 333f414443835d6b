"""`python -m store view`: what is wrong is one line, before anything is served."""

import sys
from importlib.util import find_spec

import pytest
from small import refused

needs_view = pytest.mark.skipif(
    find_spec("starlette") is None, reason="the extra view is not installed"
)


def complaint(capsys, *arguments):
    return refused(capsys, "view", *arguments, "--no-browser")


def test_the_missing_extra_is_named(store_path, capsys, monkeypatch):
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "store.view.serve", raising=False)
    assert "[view]'" in complaint(capsys, store_path).partition("pip install")[2]


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_is_a_port(store_path, capsys, port):
    """Of 16 bits."""
    assert f"expected 0 to 65535, found {port}" in complaint(capsys, store_path, "--port", port)


@needs_view
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing.zarr"], "expected a trace store"),
        (["STORE", "--where", "nothing == 1"], "filter, character 0: expected a column"),
        (["STORE", "--run", "."], "scores.csv: expected the scores of a finished run"),
        (["STORE", "--tokenizer", "."], "expected a file tokenizer.json, found none"),
    ],
)
def test_what_is_given_must_be_there(store_path, tmp_path, monkeypatch, capsys, arguments, message):
    """Nothing is written."""
    monkeypatch.chdir(tmp_path)
    given = [store_path if one == "STORE" else one for one in arguments]
    assert message in complaint(capsys, *given)
    assert list(tmp_path.iterdir()) == []


@needs_view
@pytest.mark.parametrize(
    "text, expected",
    [
        ("", "expected the columns trace_id and scores, found []"),
        ("trace_id,label\na,1\n", "expected the columns trace_id and scores"),
        ("trace_id,gvae\na,0.5,1\n", "line 2: expected 2 cells as in the header, found 3"),
        ("trace_id,gvae\na,high\n", "column 'gvae': expected numbers"),
        ("trace_id,gvae\nnobody,0.5\n", "expected traces of the stores, found none"),
    ],
)
def test_scores_are_those_of_a_run(store_path, tmp_path, capsys, text, expected):
    """Whole, and of traces of a store."""
    (tmp_path / "scores.csv").write_text(text)
    assert expected in complaint(capsys, store_path, "--run", tmp_path)


@needs_view
def test_a_tokenizer_must_be_one(store_path, tmp_path, capsys):
    """A file that the library reads."""
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")
    message = complaint(capsys, store_path, "--tokenizer", tmp_path)
    assert "expected a tokenizer, found" in message
