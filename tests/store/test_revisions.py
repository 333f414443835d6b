"""Stores of an earlier revision of the package and of this one are each other's."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("exchanged.py")
REVISIONS = ("067f162",)  # the last one before the packages were cut into rooms


@pytest.fixture
def earlier(request, tmp_path):
    """The packages of an earlier revision, in a folder of their own."""
    archive = subprocess.run(
        ["git", "-C", ROOT, "archive", request.param, "store"], capture_output=True, check=False
    )
    if archive.returncode != 0:
        pytest.skip(f"no revision {request.param} in this copy of the repository")
    folder = tmp_path / "earlier"
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


def take_turn(packages, turn, folder):
    """Run the script with the packages of a folder."""
    done = subprocess.run(
        [sys.executable, SCRIPT, turn, folder],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["exchanged.py", "oracle.py"])
def test_what_is_exchanged_needs_only_names_of_all_revisions(name):
    """The script and the oracle import the package itself, no module in it."""
    tree = ast.parse(SCRIPT.with_name(name).read_text())
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [name for name in modules if name.split(".")[0] == "store"] == ["store"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("earlier", REVISIONS, indirect=True)
def test_stores_go_to_and_fro(earlier, tmp_path):
    """What one wrote, the other reads, verifies and appends to."""
    begun_earlier, begun_now = tmp_path / "begun earlier", tmp_path / "begun now"
    take_turn(earlier, "write", begun_earlier)
    take_turn(ROOT, "append", begun_earlier)
    take_turn(earlier, "append", begun_earlier)
    take_turn(ROOT, "write", begun_now)
    take_turn(earlier, "append", begun_now)
    take_turn(ROOT, "append", begun_now)
