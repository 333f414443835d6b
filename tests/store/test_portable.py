"""Without the calls that Linux alone has: the same bytes are written and read."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TAKE_AWAY = """
import ctypes, mmap, os, sys

for module, names in {
    os: ["sched_getaffinity", "posix_fadvise", "O_DIRECT", "memfd_create", "pidfd_open",
         "RWF_NOWAIT", "O_PATH"],
    mmap: ["MADV_HUGEPAGE", "MADV_REMOVE"],
}.items():
    for name in names:
        delattr(module, name)

class Libc(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("sync_file_range", "renameat2", "fallocate"):
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = Libc

def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(2, "no such file", str(arguments[0]))

sys.addaudithook(refuse)
"""
WORK = """
import hashlib, os, sys
import numpy as np
from store import Column, Schema, StoreWriter, TraceDataset, TraceLoader, TraceStore
from store.cli.main import main
from torch.utils.data import DataLoader

def digest(batches):
    found = hashlib.sha256()
    for batch in batches:
        for name in ("states", "packed"):
            found.update(batch.ragged(name).values.numpy().tobytes())
        found.update(repr(batch.texts("trace_id")).encode())
    return found.hexdigest()

def work(path):
    columns = {
        "states": Column("float32", (64, 64), axis="tokens"),
        "packed": Column("float16", (64,), axis="tokens", codec="zstd:1"),
    }
    draw = np.random.default_rng(0)
    if not os.path.exists(path):
        with StoreWriter.create(path, Schema(columns)) as writer:
            for i in range(60):
                n = int(draw.integers(1, 20))
                row = {
                    "states": draw.normal(size=(n, 64, 64)).astype(np.float32),
                    "packed": draw.normal(size=(n, 64)).astype(np.float16),
                }
                writer.append(f"t{i}", row)
                if i == 30:
                    writer.commit()
    names = ["trace_id", *columns]
    given = {"columns": names, "batch_size": 8, "shuffle": True, "seed": 3}
    print(digest(TraceLoader(path, **given)))
    print(digest(TraceLoader(path, num_workers=2, **given)))
    dataset = TraceDataset(path, names)
    print(digest(DataLoader(dataset, batch_size=8, num_workers=2)))
    print(digest([TraceStore.open(path, check=True).read(range(60), names)]))
    assert main(["verify", path]) == 0

if __name__ == "__main__":
    for path in sys.argv[1:]:
        work(path)
"""


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if re.fullmatch("[0-9a-f]{64}", line)]


def leave_cache(path):
    """Have the files of a store be read from the disk."""
    os.sync()
    for file in filter(Path.is_file, path.rglob("*")):
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@pytest.mark.skipif(sys.platform != "linux", reason="there is nothing to take away")
def test_the_plain_ways_give_the_same_bytes(tmp_path):
    """Written with and without them, read with and without them, by threads and processes."""
    plain, linux = tmp_path / "plain.zarr", tmp_path / "linux.zarr"
    written = run(TAKE_AWAY + WORK, plain)
    assert run(WORK, linux, plain) == 2 * written
    leave_cache(linux)
    assert run(TAKE_AWAY + WORK, linux) == written
