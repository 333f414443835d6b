"""Loaders at length: every batch held, abandoned, ended in the middle; nothing is left behind."""

import gc
import mmap
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from oracle import assert_batch, make_rows, write_store

from store import Column, Ragged, Schema, TraceLoader, TraceStore, permutation
from store.read.arrays.buffers import SMALL_BYTES
from store.read.row_reader import RowReader

ROOT = Path(__file__).parents[3]
CHUNKS = {"chunk_items": 4, "shard_items": 16}
LARGE = Schema(
    {
        "hidden": Column("bfloat16", (16, 4096), **CHUNKS),
        "tokens": Column("float32", (4096,), axis="tokens", chunk_items=8, shard_items=64),
        "compressed": Column("float16", (8192,), codec="zstd", **CHUNKS),
    }
)
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def large_rows():
    return make_rows(LARGE, 64, seed=2)


@pytest.fixture(scope="module")
def large_path(tmp_path_factory, large_rows):
    """Rows of which eight are beyond what malloc recycles, in every column."""
    return write_store(tmp_path_factory.mktemp("large") / "s.zarr", LARGE, large_rows)


def private_bytes():
    """Memory of this process that no file backs and no other process shares."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) * 1024


def page_faults():
    """Pages that this process had to ask the kernel for: what a fresh buffer costs and a recycled
    one does not."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def pooled(batch):
    """The tensors of a batch that hold its values."""
    return [
        value.values if isinstance(value, Ragged) else value for value in batch.columns.values()
    ]


def assert_large(batches, rows, epoch):
    """All batches of an epoch, complete and in order, bit for bit."""
    order = permutation(len(rows), 0, epoch)
    assert [row for batch in batches for row in batch.rows.tolist()] == order.tolist()
    for batch in batches:
        expected = [rows[row][1] for row in batch.rows.tolist()]
        assert_batch(batch, [{name: row[name] for name in batch.columns} for row in expected])


BLOCKS = ["hidden", "compressed"]


@pytest.mark.parametrize(
    "num_workers, columns, share",
    [
        (0, BLOCKS, 1 / 4),
        (4, None, 3 / 4),
        pytest.param(0, None, 3 / 4, marks=SLOW),
        pytest.param(2, BLOCKS, 1 / 4, marks=SLOW),
        pytest.param(4, BLOCKS, 1 / 4, marks=SLOW),
    ],
)
def test_all_batches_of_an_epoch_may_be_held_and_their_memory_is_used_again(
    large_path, large_rows, num_workers, columns, share
):
    """Every batch stays right while others are read; two more epochs take the same memory.

    Blocks of one size fit again at once; ragged ones of many sizes may take some more, less than an
    epoch.
    """
    loader = TraceLoader(large_path, columns, 8, True, num_workers=num_workers)
    before = private_bytes()
    held = list(loader)
    epoch_bytes = sum(tensor.nbytes for batch in held for tensor in pooled(batch))
    assert min(tensor.nbytes for batch in held for tensor in pooled(batch)) > SMALL_BYTES
    first = private_bytes()
    assert first - before > epoch_bytes / 2
    assert_large(held, large_rows, 0)
    for epoch in (1, 2):
        del held
        gc.collect()
        faults = page_faults()
        held = list(loader)
        assert page_faults() - faults < epoch_bytes * share / mmap.PAGESIZE
        assert private_bytes() - first < epoch_bytes * share
        assert_large(held, large_rows, epoch)


def resources(path):
    """Maps of the store's files, open descriptors and living threads of this process."""
    gc.collect()
    maps = sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())
    return maps, len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208 - a count


@pytest.mark.parametrize(
    "num_workers, cached",
    [pytest.param(0, True, marks=SLOW), pytest.param(1, False, marks=SLOW), (4, True)],
)
def test_loaders_leave_nothing(store_path, monkeypatch, num_workers, cached):
    """Half of them abandoned in the middle of an epoch; also where the kernel is asked to read
    ahead."""
    monkeypatch.setattr(RowReader, "is_cached", lambda *_: cached)
    before = resources(store_path)
    for i in range(30):
        loader = TraceLoader(store_path, None, 5, True, num_workers=num_workers)
        for step, _ in enumerate(loader):
            if i % 2 and step == i % 4:
                break
        if i == 20:
            assert resources(store_path)[0] > before[0]
        del loader
    assert resources(store_path) == before


def test_open_stores_and_held_batches_leave_nothing(store_path, rows):
    """Stores read in every way: ids, rows, batches, views. Batches are copies: files are closed
    with the loader, even if its batches are kept."""
    before = resources(store_path)
    for i in range(30):
        store = TraceStore.open(store_path)
        row = store.row_of(rows[i][0])
        view = store[row]["tokens"]
        store.read([row, 0, row])
        assert list(store.ids[:2]) == [rows[0][0], rows[1][0]]
        del store, view
    assert resources(store_path) == before
    batches = list(TraceLoader(store_path, None, 5, num_workers=2))
    assert resources(store_path) == before
    assert_batch(batches[0], [row for _, row in rows[:5]])


ENDINGS = {
    "loop left": "for _ in TraceLoader(path, None, 1, True, num_workers=2): break",
    "loader held": "options = {'num_workers': 3, 'arrays': 'numpy'}; "
    "next(batches := iter(TraceLoader(path, None, 2, True, **options)))",
    "cold loader held": "TraceStore.is_cached = lambda *_: False; "
    "next(batches := iter(TraceLoader(path, None, 2, True)))",
    "DataLoader held": "from torch.utils.data import DataLoader; "
    "dataset = TraceDataset(path); dataset[3]; "
    "next(batches := iter(DataLoader(dataset, 2, num_workers=2)))",
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "ending", ["loader held", *(pytest.param(e, marks=SLOW) for e in ENDINGS if e != "loader held")]
)
def test_a_process_that_ends_in_the_middle_of_an_epoch_ends_in_silence(store_path, ending):
    """Whether the iterator is gone by then or still in hand: no worker hangs, no finalizer
    complains."""
    code = "import sys; from store import *\n"
    code += f"if __name__ == '__main__':\n    path = sys.argv[1]\n    {ENDINGS[ending]}"
    command = [sys.executable, "-W", "error", "-c", code, str(store_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
