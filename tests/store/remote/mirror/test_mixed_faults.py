"""Mixes of faults under the readers of a mirror: right values or named errors, and no harm done."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mirroring import N_ROWS, Node, assert_no_slot_is_lost, disk_bytes
from oracle import assert_batch

from store import StoreError, UnreachableError
from store.remote.cache.fetcher.slab import write_at
from store.remote.cache.location import SLAB_FILE

N_READS = 5
ENOUGH = 6_000_000  # bytes: for the columns, not for all that was fetched ahead
LIMIT_S = 10.0  # of a read
SLOW = (pytest.mark.slow, pytest.mark.timeout(900))


class Faults:
    """What goes wrong in one mix: each kind with a chance of its own, most often not at all."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.lock = threading.Lock()
        kinds = ("unreachable", "flipped", "late", "full", "evicted")
        self.chance = {kind: self.rng.choice([0, 0, 0.003, 0.03]) for kind in kinds}

    def happens(self, kind: str) -> bool:
        with self.lock:
            return self.rng.random() < self.chance[kind]

    def end(self) -> None:
        """From now on chunks go, and nothing fails."""
        self.chance = dict.fromkeys(self.chance, 0.0) | {"evicted": 0.3}

    def spoil(self, key: str, data: bytes) -> bytes:
        """An answer of the object store."""
        if self.happens("unreachable"):
            raise UnreachableError(f"{key}: expected an answer, found none")
        if self.happens("late"):
            time.sleep(0.01)
        if data and self.happens("flipped"):
            with self.lock:
                i = int(self.rng.integers(len(data)))
            return data[:i] + bytes([data[i] ^ 4]) + data[i + 1 :]
        return data

    def write(self, fd: int, parts: list[memoryview], position: int) -> None:
        """A write into a file of the mirror."""
        if self.happens("full"):
            write_at(fd, [parts[0][: len(parts[0]) // 2]], position)
            raise OSError(28, "No space left on device")
        write_at(fd, parts, position)


def read_all(node, stores, rows, faults, seed) -> int:
    """Read rows by several threads, while chunks go; return how many errors they were told."""

    def read(reader: int) -> int:
        rng = np.random.default_rng([seed, reader])
        n_errors = 0
        for _ in range(N_READS):
            some = rng.choice(N_ROWS, 4, replace=False).tolist()
            if faults.happens("evicted"):
                node.set_limits(0, ENOUGH)
            began = time.monotonic()
            try:
                store = stores[reader] = stores[reader] or node.open(ENOUGH)
                found = store.read(some)
            except StoreError:
                n_errors += 1
            else:
                assert_batch(found, [rows[i][1] for i in some])
            assert time.monotonic() - began < LIMIT_S
        return n_errors

    with ThreadPoolExecutor(len(stores)) as pool:
        return sum(pool.map(read, range(len(stores))))


def run_mix(folder, local, rows, seed, monkeypatch) -> int:
    """One mix; then the same without faults, while chunks go: no slot is lost.

    Return the errors that readers were told.
    """
    faults = Faults(seed)
    node = Node(folder, local)
    node.files.spoil = faults.spoil
    stores = [None, None]
    with monkeypatch.context() as patched:
        for module in ("slab", "fetched_store"):
            patched.setattr(f"store.remote.cache.fetcher.{module}.write_at", faults.write)
        patched.setattr("store.remote.cache.fetcher.fetch_queue.WAIT_S", 5.0)
        with node.running():
            n_errors = read_all(node, stores, rows, faults, seed)
            faults.end()
            assert read_all(node, stores, rows, faults, seed + 1) == 0
            assert_no_slot_is_lost(node.server)
            node.set_limits(0)
            assert disk_bytes(node.cache_dir / SLAB_FILE) == 0
    shutil.rmtree(folder)
    return n_errors


@pytest.mark.parametrize(
    "seeds",
    [
        range(8),
        *(pytest.param(range(i, i + 200), marks=SLOW) for i in (0, 200)),
    ],
    ids=str,
)
def test_no_mix_of_faults_gives_a_wrong_value(tmp_path, local, rows, monkeypatch, seeds):
    """Of their reads many are errors and most are values.

    Of eight mixes two in five reads are errors, give or take what the threads' timing changes.
    """
    n_errors = [run_mix(tmp_path / str(seed), local, rows, seed, monkeypatch) for seed in seeds]
    most = 0.5 if len(seeds) > 8 else 0.75
    assert 0 < sum(n_errors) < len(seeds) * 2 * N_READS * most
