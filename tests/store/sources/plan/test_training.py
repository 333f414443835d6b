"""How a training reads a store: arithmetic, and a disk that is measured."""

import numpy as np
import pytest

from store.sources.plan.machine import DiskSpeed, Gpu, Machine, read_cold, read_machine
from store.sources.plan.training import Reading, TrainingPlan

GB = 10**9


def plan(*columns, n_processes=1, n_rows=1000, gpus=()):
    readings = [Reading("c", *column) for column in columns]
    machine = Machine(8, 24 * GB, 20 * GB, list(gpus))
    return TrainingPlan("s", readings, n_rows, 32, n_processes, machine, DiskSpeed(2e9, GB, 0.0))


def test_what_fits_stays_in_memory():
    """Then the disk is asked once, and nothing ahead."""
    found = plan((4 * GB, 4 * GB, False))
    assert (found.cached, found.disk_bytes) == (1, 0)
    assert (found.row_bytes, found.batch_bytes) == (4_000_000, 128_000_000)
    assert found.advice[:4] == (4, 128 << 20, 0, False)


def test_what_does_not_fit_comes_from_the_disk_in_each_epoch():
    """At its speed, asked for early enough; each process has its share of the memory."""
    found = plan((185 * GB, 185 * GB, False))
    assert (found.cached, found.disk_bytes) == (0.1, round(166.5 * GB))
    assert found.disk_s == 166.5 / 2
    assert found.advice.prefetch_bytes >= 0.5 * GB  # a quarter of a second of the disk
    four = plan((140 * GB, 140 * GB, False), n_processes=4, gpus=[Gpu("a GPU", 80 * GB)])
    assert four.cached == 0.1  # 1.5 GB of each process are not for pages
    assert (four.advice.num_workers, four.advice.pin_memory) == (2, True)
    assert four.advice.prefetch_bytes <= 0.1 * 14 * GB / 4 + (1 << 20)
    assert "a GPU (80.0 GB); 4 processes" in four.text()
    assert "  each later one reads 126.0 GB: at least 63 s" in four.text()


@pytest.mark.parametrize(
    ("columns", "least", "most"),
    [
        ([(GB, GB, False), (GB // 10, GB, True)], GB, GB + (1 << 20)),  # all of it, decoded
        ([(GB, 100 * GB, True)], GB, 0.25 * 18.5 * GB + (1 << 20)),  # a quarter of the memory
    ],
)
def test_a_cache_is_for_compressed_columns(columns, least, most):
    assert least <= plan(*columns).advice.cache_bytes < most


def test_small_rows_take_no_threads():
    """Nor a store without rows."""
    assert plan((1_000_000, 1_000_000, False)).advice.num_workers == 0
    assert plan((0, 0, False), n_rows=0).row_bytes == 0


def test_files_are_read_for_a_bounded_time(tmp_path):
    """Blocks of all files, each once; a speed of less than 16 MB would be chance."""
    rng = np.random.default_rng(0)
    for name, n_bytes in (("a", 12 << 20), ("b", (8 << 20) + 5), ("c", 0)):
        (tmp_path / name).write_bytes(rng.bytes(n_bytes))
    found = read_cold([tmp_path / name for name in "abc"], 100_000, max_s=1)
    assert 0 <= found.cached <= 1
    assert found.n_bytes <= (20 << 20) + 5
    assert (found.bytes_per_s is None) == (found.n_bytes < 16 << 20)
    assert read_cold([tmp_path / "c"], 100_000) == read_cold([], 100_000) == (None, 0, 0.0)


def test_the_machine_is_described():
    machine = read_machine()
    assert machine.n_cores >= 1
    assert 0 < machine.available_bytes <= machine.memory_bytes
