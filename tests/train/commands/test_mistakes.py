"""Mistakes of a command line: one line on stderr, exit status 2, and nothing written. The lines are
in `mistakes.txt`, which `pytest --golden` writes."""

import json
import re
import shutil

import numpy as np
import pytest
from runs import fail
from token_stores import write_token_store
from tuning_stores import write_states


@pytest.fixture
def folder(tmp_path, monkeypatch, store_path, finished, store_writer):
    """The folder in which the commands are called: stores, a run, and what is neither."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces.zarr").symlink_to(store_path)
    (tmp_path / "run").symlink_to(finished)
    (tmp_path / "photos").mkdir()
    labels = np.arange(40) % 2
    for name in ("squad.zarr", "nq.zarr", "newer.zarr", "big.zarr.partial"):
        store_writer(tmp_path / name, labels)
    store_writer(tmp_path / "bare.zarr", labels, ["hs_last"])
    shutil.copytree("squad.zarr", "copied.zarr")
    attributes = json.loads((tmp_path / "newer.zarr" / "zarr.json").read_text())
    attributes["attributes"]["trace_store"]["format_version"] = 99
    (tmp_path / "newer.zarr" / "zarr.json").write_text(json.dumps(attributes))
    write_states(tmp_path / "wide.zarr", [0, 1] * 2, np.zeros((4, 2, 9)))
    write_token_store(tmp_path / "tokens.zarr", 40)
    return tmp_path


def test_every_mistake_is_one_line(folder, capsys, golden_lines):
    """It names the flag, the column or the file, what was expected and what was found. What there
    is to choose from is cut."""

    def refuse(argv):
        line = fail(capsys, *argv).replace(f"{folder}/", "")
        return re.split(r"\W+choose from", line)[0]

    golden_lines("mistakes.txt", refuse)
    assert not [*folder.glob("runs/**/*.json"), *folder.glob("*.html")]
