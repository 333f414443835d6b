"""`python -m store view`: what is wrong is one line, before anything is served."""

import sys

import pytest
from small import refused


def complaint(capsys, *arguments):
    return refused(capsys, "view", *arguments, "--no-browser")


@pytest.fixture
def installed():
    """Skips where the extra is not there."""
    pytest.importorskip("starlette", reason="the extra view is not installed")


def test_the_missing_extra_is_named(store_path, capsys, monkeypatch):
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "store.view.serve", raising=False)
    assert "[view]'" in complaint(capsys, store_path).partition("pip install")[2]


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_is_a_port(store_path, capsys, port):
    """Of 16 bits."""
    assert f"expected 0 to 65535, found {port}" in complaint(capsys, store_path, "--port", port)


@pytest.mark.usefixtures("installed")
class TestWhatIsGiven:
    """Stores, runs and tokenizers."""

    def test_a_filter_is_one_of_the_store(self, store_path, capsys):
        """Before the page is served."""
        message = complaint(capsys, store_path, "--where", "nothing == 1")
        assert "filter, character 0: expected a column" in message

    def test_a_page_is_a_file_html_or_a_folder(self, store_path, tmp_path, capsys):
        """And no folder with the ending of another file."""
        message = complaint(capsys, store_path, "--export", tmp_path / "x.txt")
        assert "--export: expected a file .html, or a folder" in message
        assert not (tmp_path / "x.txt").exists()

    def test_a_store_must_be_there(self, tmp_path, capsys):
        """Each of them."""
        message = complaint(capsys, tmp_path / "nothing.zarr")
        assert "expected a trace store" in message

    def test_a_run_must_be_there(self, store_path, tmp_path, capsys):
        """With its scores."""
        message = complaint(capsys, store_path, "--run", tmp_path)
        assert "scores.csv: expected the scores of a finished run" in message

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
    def test_scores_are_those_of_a_run(self, store_path, tmp_path, capsys, text, expected):
        """Whole, and of traces of a store."""
        (tmp_path / "scores.csv").write_text(text)
        assert expected in complaint(capsys, store_path, "--run", tmp_path)

    def test_a_tokenizer_must_be_one(self, store_path, tmp_path, capsys):
        """A file that the library reads."""
        message = complaint(capsys, store_path, "--tokenizer", tmp_path)
        assert "expected a file tokenizer.json, found none" in message
        pytest.importorskip("tokenizers")
        (tmp_path / "tokenizer.json").write_text("{}")
        message = complaint(capsys, store_path, "--tokenizer", tmp_path)
        assert "expected a tokenizer, found" in message
