"""The server as a user starts and stops it: `python -m store view` in a process of its own."""

import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")

ROOT = Path(__file__).parents[3]


@pytest.fixture
def free_port():
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        return link.getsockname()[1]


@contextmanager
def served(*words):
    """The address that the command prints; at the end Ctrl-C stops it."""
    command = [sys.executable, "-m", "store", "view", *map(str, words), "--no-browser"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    yield process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) in (0, 130)
    process.stdout.close()


def test_a_bookmark_lives_longer_than_the_server(browser, tmp_path, traces_path, free_port):
    """On the same port with the same file; without the token in its address."""
    words = (traces_path, "--port", free_port, "--token-file", tmp_path / "token")
    with served(*words) as address:
        browser.open(f"{address}#trace=trace-09")
        bookmark = browser.evaluate("location.href")
        assert "token" not in bookmark
    with served(*words):
        browser.open(bookmark)
        browser.wait_for_text("#panel h2", "trace-09")
