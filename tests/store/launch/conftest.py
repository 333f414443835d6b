"""Files to import in parts, and commands that are forked: nothing is imported anew."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from store.__main__ import command
from store.cli.main import main

ROOT = Path(__file__).parents[3]
N_FILES, N_TRACES = 4, 3
FAKE_SLURM = Path(__file__).parent / "fake_slurm.py"
MAP = "hs_last=layers,label=y,question_id=qid"


def write_arrays(folder, n_files=N_FILES, n_traces=N_TRACES):
    """Files of arrays, one part of which is every n-th of them."""
    folder.mkdir()
    for file in range(n_files):
        states = np.random.default_rng([0, file]).normal(size=(n_traces, 2, 4))
        ids = [f"q{file}_{trace}" for trace in range(n_traces)]
        labels = np.arange(n_traces) % 2
        arrays = {"layers": states.astype("f2"), "y": labels, "qid": np.array(ids)}
        np.savez(folder / f"{file}.npz", **arrays)
    return folder


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


class Forked:
    """What `subprocess.Popen` is to the launch, of a process that begins as a copy of this one."""

    def __init__(self, arguments, folder=None, log=None, environment=None):
        self.returncode = None
        self.pid = os.fork()
        if not self.pid:
            status = 3
            try:
                status = self._run(arguments, folder, log)
            finally:
                os._exit(status)

    def _run(self, arguments, folder, log):
        if folder is not None:
            os.chdir(folder)
        if log is not None:
            os.dup2(log, 1)
            os.dup2(log, 2)
        sys.argv = ["store", *arguments]
        with open(1, "w", closefd=False) as sys.stdout, open(2, "w", closefd=False) as sys.stderr:
            return command()

    def poll(self):
        return self._reap(os.WNOHANG)

    def wait(self, timeout=None):
        return self._reap(0)

    def _reap(self, options):
        if self.returncode is None:
            done, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if done else None
        return self.returncode

    def terminate(self):
        os.kill(self.pid, signal.SIGTERM)


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
