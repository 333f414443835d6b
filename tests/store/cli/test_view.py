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


@needs_view
def test_what_is_given_must_be_there(store_path, tmp_path, monkeypatch, capsys, golden_lines):
    """Whole, of traces of a store, and of the kind that is asked for; nothing is written."""
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)

    def say(case):
        *typed, files = case
        for path in tmp_path.iterdir():
            path.unlink()
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        line = complaint(capsys, *(store_path if one == "STORE" else one for one in typed))
        assert {path.name for path in tmp_path.iterdir()} == files.keys()
        return line.replace(str(store_path), "STORE").partition("found: ")[0].strip()

    golden_lines("wrong_views.txt", say)
