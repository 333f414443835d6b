"""The quick run of `make check` starts no process."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

STARTS = """
import multiprocessing, os, subprocess, sys

def test_plain():
    pass

def test_subprocess():
    subprocess.run([sys.executable, "-c", ""])

def test_fork():
    os.fork()

def test_spawn():
    multiprocessing.get_context("spawn").Process(target=print).start()
"""


def test_it_starts_no_process(tmp_path):
    """Tests that would are skipped, however they start one."""
    (tmp_path / "test_starts.py").write_text(STARTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    done = subprocess.run(
        [*command, "--quick", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "1 passed, 3 skipped" in done.stdout, done.stdout + done.stderr
