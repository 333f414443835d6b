"""Files to import in parts, and what runs the parts."""

import os
import sys

import pytest
from launching import FAKE_SLURM, MAP, Forked, write_arrays

from store.cli.main import main


@pytest.fixture(scope="session")
def arrays(tmp_path_factory):
    """A folder of files to import."""
    return write_arrays(tmp_path_factory.mktemp("arrays") / "files")


@pytest.fixture
def make_part(arrays):
    """Make a part with `import`; return its exit status."""

    def make(out, part, *options):
        return main(["import", str(out), str(arrays), "--map", MAP, "--part", part, *options])

    return make


@pytest.fixture
def forked(monkeypatch):
    """Have the commands of a launch forked."""
    monkeypatch.setattr("store.launch.task.start_command", Forked)
    monkeypatch.setattr("store.cli.launch.start_command", Forked)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A cluster of one machine, whose jobs are folders; see `fake_slurm.py`."""
    commands, jobs = tmp_path / "bin", tmp_path / "jobs"
    for folder in (commands, jobs):
        folder.mkdir()
    for name in ("sbatch", "squeue"):
        (commands / name).write_text(f'#!/bin/sh\n{sys.executable} -S {FAKE_SLURM} {name} "$@"\n')
        (commands / name).chmod(0o755)
    monkeypatch.setenv("FAKE_SLURM", str(jobs))
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return jobs
