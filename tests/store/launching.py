"""What the tests of launch share: files to import, and commands that are forked.

Nothing is imported anew by a forked command, and what a test has patched is patched there as well.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from store.__main__ import command

ROOT = Path(__file__).parents[2]
FAKE_SLURM = Path(__file__).parent / "fake_slurm.py"
N_FILES, N_TRACES = 4, 3
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


class Forked:
    """What `subprocess.Popen` is to the launch, of a process that begins as a copy of this one."""

    def __init__(self, arguments, folder=None, log=None, environment=None):
        self.returncode = None
        self._lock = threading.Lock()
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
        with self._lock:
            if self.returncode is None:
                done, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if done else None
        return self.returncode

    def wait(self, timeout=None):
        while self.poll() is None:
            time.sleep(0.005)
        return self.returncode

    def terminate(self):
        os.kill(self.pid, signal.SIGTERM)
