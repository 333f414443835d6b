"""Without the calls that Linux alone has: the same bytes are written and read."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from small import store_columns
from torch.utils.data import DataLoader

from store import Column, TraceDataset, TraceLoader, TraceStore
from store.check.verify import verify_store

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

from test_portable import digests, write

if __name__ == "__main__":
    write(sys.argv[1])
    for path in sys.argv[1:]:
        print("read", *digests(path))
"""


def write(path):
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 20, 60)
    columns = {
        "states": (
            Column("float32", (64, 64), axis="tokens"),
            [draw.normal(size=(n, 64, 64)).astype(np.float32) for n in lengths],
        ),
        "packed": (
            Column("float16", (64,), axis="tokens", codec="zstd:1"),
            [draw.normal(size=(n, 64)).astype(np.float16) for n in lengths],
        ),
    }
    with patch("store.write.writer.COMMIT_ROWS", 31):
        store_columns(path, columns)


def digest(batches):
    found = hashlib.sha256()
    for batch in batches:
        for name in ("states", "packed"):
            found.update(batch.ragged(name).values.numpy().tobytes())
        found.update(repr(batch.texts("trace_id")).encode())
    return found.hexdigest()


def digests(path):
    """Of what is read by one thread and by several, by processes, and with checksums."""
    names = ["trace_id", "states", "packed"]
    given = {"columns": names, "batch_size": 8, "shuffle": True, "seed": 3}
    dataset = TraceDataset(path, names)
    assert not verify_store(path).problems
    return [
        digest(TraceLoader(path, **given)),
        digest(TraceLoader(path, num_workers=2, **given)),
        digest(DataLoader(dataset, batch_size=8, num_workers=2)),
        digest([TraceStore.open(path, check=True).read(range(60), names)]),
    ]


def leave_cache(path):
    """Have the files of a store be read from the disk."""
    os.sync()
    for file in filter(Path.is_file, path.rglob("*")):
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@pytest.mark.skipif(sys.platform != "linux", reason="there is nothing to take away")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_the_plain_ways_give_the_same_bytes(tmp_path):
    """Written with and without them, read with and without them, by threads and processes."""
    plain, linux = tmp_path / "plain.zarr", tmp_path / "linux.zarr"
    write(linux)
    expected = digests(linux)
    leave_cache(linux)
    done = subprocess.run(
        [sys.executable, "-c", TAKE_AWAY, plain, linux],
        env={"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == 2 * [" ".join(["read", *expected])]
    assert digests(plain) == expected
