"""Sixteen parts on four workers, one of which is killed every few seconds, on every engine."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from damage import content
from launching import MAP, ROOT, write_arrays
from running import run_python

from store.check.verify import verify_store
from store.cli.main import main
from store.launch.job import parts_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

N_PARTS, N_WORKERS = 16, 4
KILL_EVERY_S = 5.0
MOST_KILLS = N_PARTS  # on a busy machine a part takes longer than that: the last one would not end
NEEDS = {"ray": "ray", "dask": "distributed"}


class Killer(threading.Thread):
    """Kills one of the processes that make a part of a store, every few seconds."""

    def __init__(self, out):
        super().__init__(daemon=True)
        self.out = str(parts_folder(out)).encode()
        self.n_killed = 0
        self.is_over = threading.Event()

    def run(self):
        chance = random.Random(0)  # noqa: S311 - no secret
        while not self.is_over.wait(KILL_EVERY_S) and self.n_killed < MOST_KILLS:
            parts = [pid for pid in Path("/proc").glob("[0-9]*") if self._makes_part(pid)]
            if parts:
                os.kill(int(chance.choice(parts).name), signal.SIGKILL)
                self.n_killed += 1

    def _makes_part(self, process):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            return False
        return self.out in line and b"import\0--part\0" in line and b"python" in line


def tree(store):
    """File -> its content, but for the group's record, which has ids and commands."""
    assert not verify_store(store).problems
    return {name: data for name, data in content(store).items() if name != "zarr.json"}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("source") / "files", 3 * N_PARTS, 40)


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    """What one process makes: one part after the other, then the merge."""
    folder = tmp_path_factory.mktemp("one")
    stores = [str(folder / f"{k}.zarr") for k in range(1, N_PARTS + 1)]
    for k, store in enumerate(stores, 1):
        arguments = ["import", store, str(source), "--map", MAP, "--part", f"{k}/{N_PARTS}"]
        assert main(arguments) == 0
    assert main(["merge", str(folder / "all.zarr"), *stores]) == 0
    return tree(folder / "all.zarr")


def run_launch(engine, source, out):
    """Launch while a killer is at work; return how the launch ended, and how many it killed."""
    options = ["--engine", engine, "--parts", str(N_PARTS), "--workers", str(N_WORKERS)]
    job = ["import", str(out), str(source), "--map", MAP]
    killer = Killer(out)
    killer.start()
    try:
        done = run_python("-m", "store", "launch", *options, "--retries", "20", "--", *job)
        if engine == "slurm" and not done.returncode:
            while len(list(Path(os.environ["FAKE_SLURM"]).glob("*/ended"))) < 2:
                time.sleep(0.5)
    finally:
        killer.is_over.set()
        killer.join()
    return done, killer.n_killed


@pytest.mark.parametrize("engine", ["processes", "ray", "dask", "slurm"])
def test_workers_that_are_killed_change_nothing(engine, source, expected, slurm, tmp_path):
    """The merged store is that of one process, file by file, but for ids and commands."""
    if engine in NEEDS and find_spec(NEEDS[engine]) is None:
        pytest.skip(f"the extra {engine} is not installed")
    out = tmp_path / "o.zarr"
    done, n_killed = run_launch(engine, source, out)
    assert done.returncode == 0, done.stderr + done.stdout
    print(f"{engine}: {n_killed} kills")
    assert n_killed
    assert tree(out) == expected
    shutil.rmtree(parts_folder(out))


def test_a_launch_that_is_killed_goes_on(source, expected, tmp_path):
    """By the same command, with the parts that are not whole; its own parts ended with it."""
    out = tmp_path / "o.zarr"
    options = ["--engine", "processes", "--parts", str(N_PARTS), "--workers", "2"]
    job = ["import", str(out), str(source), "--map", MAP]
    command = ["-m", "store", "launch", *options, "--", *job]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen([sys.executable, *command], env=environment)
    while len(list(parts_folder(out).glob("*.part.json"))) < 3:
        time.sleep(0.1)
    first.kill()
    first.wait()
    done = run_python(*command)
    assert done.returncode == 0, done.stderr
    assert f"{N_PARTS} parts of {N_PARTS} to make" not in done.stderr
    assert tree(out) == expected
