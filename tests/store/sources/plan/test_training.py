"""How a training reads a store: arithmetic, and a disk that is measured."""

import numpy as np

from store.sources.plan.machine import DiskSpeed, Gpu, Machine, read_cold, read_machine
from store.sources.plan.training import Reading, plan_training

GB = 10**9


def plan(columns, n_processes=1, n_rows=1000, *, has_gpu=False):
    gpus = [Gpu("a GPU", 80 * GB)] if has_gpu else []
    machine = Machine(8, 24 * GB, 20 * GB, gpus)
    disk = DiskSpeed(2.0 * GB, GB, 0.0)
    return plan_training("s", columns, n_rows, 32, n_processes, machine, disk)


def states(n_bytes):
    return Reading("hidden_states", n_bytes, n_bytes, is_compressed=False)


def test_what_fits_stays_in_memory():
    """Then the disk is asked once, and nothing ahead."""
    found = plan([states(4 * GB)])
    assert found.cached == 1
    assert found.disk_bytes == 0
    assert found.row_bytes == 4_000_000
    assert found.batch_bytes == 128_000_000
    assert found.advice.num_workers == 4
    assert found.advice.prefetch_bytes == 128 << 20
    assert found.advice.cache_bytes == 0
    assert not found.advice.pin_memory


def test_what_does_not_fit_comes_from_the_disk_in_each_epoch():
    """At its speed, asked for early enough; each process has its share of the memory."""
    found = plan([states(185 * GB)])
    assert found.cached == 0.1
    assert found.disk_bytes == round(166.5 * GB)
    assert found.disk_s == 166.5 / 2
    assert found.advice.prefetch_bytes >= 0.5 * GB  # a quarter of a second of the disk
    four = plan([states(140 * GB)], n_processes=4, has_gpu=True)
    assert four.cached == 0.1  # 1.5 GB of each process are not for pages
    assert four.advice.num_workers == 2
    assert four.advice.pin_memory
    assert four.advice.prefetch_bytes <= 0.1 * 14 * GB / 4 + (1 << 20)


def test_small_rows_take_no_threads():
    found = plan([Reading("tokens", 1_000_000, 1_000_000, is_compressed=False)])
    assert found.advice.num_workers == 0


def test_a_cache_is_for_compressed_columns():
    """All of them decoded, up to a quarter of the memory."""
    found = plan([states(GB), Reading("attn_edges", GB // 10, GB, is_compressed=True)])
    assert GB <= found.advice.cache_bytes < GB + (1 << 20)
    assert found.epoch_bytes == GB + GB // 10
    large = plan([Reading("attn_edges", GB, 100 * GB, is_compressed=True)])
    assert large.advice.cache_bytes <= 0.25 * 18.5 * GB + (1 << 20)


def test_nothing_to_read():
    """A store without rows, or columns without items."""
    assert plan([states(0)], n_rows=0).row_bytes == 0


def test_files_are_read_for_a_bounded_time(tmp_path):
    """Blocks of all files, each once; a speed of less than 16 MB would be chance."""
    rng = np.random.default_rng(0)
    for name, n_bytes in (("a", 12 << 20), ("b", (8 << 20) + 5), ("c", 0)):
        (tmp_path / name).write_bytes(rng.bytes(n_bytes))
    found = read_cold([tmp_path / name for name in "abc"], 100_000, max_s=1)
    assert 0 <= found.cached <= 1
    assert found.n_bytes <= (20 << 20) + 5
    assert (found.bytes_per_s is None) == (found.n_bytes < 16 << 20)
    small = read_cold([tmp_path / "c"], 100_000)
    assert small == (None, 0, 0.0)


def test_the_machine_is_described():
    machine = read_machine()
    assert machine.n_cores >= 1
    assert 0 < machine.available_bytes <= machine.memory_bytes
