"""Batches from worker processes, in memory that is reused."""

import copy
import gc
import os
import pickle
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import bits
from small import make_store, store_columns
from torch.utils.data import DataLoader

from store import Column, GlobalShuffleSampler, TraceDataset, TraceLoader, permutation
from store.feed import worker_memory as shared

N_ROWS, BATCH_SIZE = 60, 6
OTHERS = ["spawn", "forkserver"]
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]
COLUMNS = {
    "states": Column("bfloat16", (600,), "t"),
    "x": Column("float32", (256,), "t", codec="zstd"),
    "fixed": Column("float32", (3000,)),
    "name": "utf8",
    "label": "int8",
}


@pytest.fixture(scope="module")
def large_rows():
    """Rows of some 70 KB, so that a batch is too large to be sent inline."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 60, N_ROWS)
    return [
        {
            "states": torch.from_numpy(rng.normal(size=(n, 600)).astype(np.float32)).bfloat16(),
            "x": rng.normal(size=(n, 256)).astype(np.float32),
            "fixed": rng.normal(size=3000).astype(np.float32),
            "name": f"row {i}",
            "label": np.int8(i),
        }
        for i, n in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def large_path(tmp_path_factory, large_rows):
    rows = {str(i): row for i, row in enumerate(large_rows)}
    return make_store(tmp_path_factory.mktemp("shared") / "s.zarr", COLUMNS, rows).path


def loader_of(path, n=2, **settings):
    return DataLoader(TraceDataset(path), BATCH_SIZE, num_workers=n, **settings)


def assert_whole(batches, rows, order=range(N_ROWS)):
    for i, batch in enumerate(batches):
        for found, row in zip(batch, order[BATCH_SIZE * i :], strict=False):
            for name, value in rows[row].items():
                assert bits(found[name]) == bits(value), name
    assert len(batches) == N_ROWS // BATCH_SIZE


def x_of(rows, i):
    """The bytes of a column in a batch."""
    return np.concatenate([row["x"] for row in rows[BATCH_SIZE * i :][:BATCH_SIZE]]).tobytes()


def arena_addresses():
    """Where this process has mapped the arenas of workers."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines if "memfd:trace-store" in line]
    return [range(int(first, 16), int(stop, 16)) for first, stop in spans]


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)]
)
def test_held_batches_keep_their_bytes(large_path, large_rows, method):
    """All batches of two epochs, with workers that stay; they came through the arena. The workers
    start from a store in use: its cache full, its threads reading, a lock taken."""
    dataset = TraceDataset(large_path)
    threads = iter(TraceLoader(dataset.store, None, BATCH_SIZE, num_workers=2))
    dataset.store.read(range(N_ROWS))
    received = [next(threads)]
    assert dataset.store.cache.stats.bytes > 0
    loader = DataLoader(
        dataset,
        BATCH_SIZE,
        sampler=GlobalShuffleSampler(dataset, seed=4),
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=method,
        timeout=60,
    )
    order = permutation(N_ROWS, 4, 0)
    with dataset.store.cache._lock:
        first = list(loader)
    second = list(loader)
    assert arena_addresses()
    assert_whole(first, large_rows, order)
    assert_whole(second, large_rows, order)
    first[0]["x"].values.zero_()  # writable, and shared with no other batch
    assert_whole(second, large_rows, order)
    assert_whole([*received, *threads], large_rows)


def test_memory_is_reused_when_the_last_tensor_is_gone(large_path):
    """A slice keeps its batch's memory; later batches reuse that of dropped ones."""
    loader = loader_of(large_path, 1, persistent_workers=True)
    places = set()
    kept = next(iter(loader))["x"].values[3:5]
    wanted = kept.clone()
    for _ in range(5):
        places |= {batch["x"].values.data_ptr() for batch in loader}
        assert kept.data_ptr() - 3 * 256 * 4 not in places
    assert torch.equal(kept, wanted)
    assert len(places) < 25  # of 50 batches, whose three columns share the places


def test_copies_and_pickles_of_a_received_batch_are_their_own(large_path, large_rows):
    for again in (copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))):  # noqa: S301 our own bytes
        batches = [again(batch) for batch in loader_of(large_path)]
        gc.collect()
        assert_whole(batches, large_rows)


def only_x(batch):
    return (
        batch[0]["x"].clone()
        if isinstance(batch, list)
        else {"x": batch["x"].values, "twice": [batch, batch]}
    )


def test_a_collate_function_of_ones_own(large_path, large_rows):
    """Tensors outside a batch travel as torch sends them; a batch may be sent twice."""
    for i, collated in enumerate(loader_of(large_path, collate_fn=only_x)):
        assert bits(collated["x"]) == x_of(large_rows, i)
        for batch in collated["twice"]:
            assert bits(batch["x"].values) == x_of(large_rows, i)


def test_batches_outlive_a_killed_worker(large_path, large_rows):
    loader = loader_of(large_path, 1, persistent_workers=True)
    batches = list(loader)
    os.kill(loader._iterator._workers[0].pid, signal.SIGKILL)
    loader._iterator._workers[0].join()
    assert_whole(batches, large_rows)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader)


def test_a_full_arena_falls_back_to_ordinary_memory(monkeypatch):
    monkeypatch.setattr(shared, "ARENA_BYTES", 8 * 2**20)
    arena = shared.WorkerArena()
    held = [arena.empty((2**20,), np.dtype(np.uint8)) for _ in range(6)]
    for i, array in enumerate(held):
        array[:] = i
    assert [int(array.max()) for array in held] == list(range(6))
    assert [arena.send(torch.from_numpy(array)) is not None for array in held] == [True] * 3 + [
        False
    ] * 3


def memory_of(arena):
    return os.fstat(arena.key.fd).st_blocks * 512


def test_idle_memory_is_returned_and_addresses_are_reused():
    arena = shared.WorkerArena()
    for _ in range(5):
        for size in range(1, 12):
            arena.empty((size * 2**20,), np.dtype(np.uint8))[:] = 1
        arena._trim(0)
        assert memory_of(arena) <= 4 * 2**20
    assert arena._end < 2**27  # without reuse 330 MB
    assert arena.empty((2**20,), np.dtype(np.uint8)).max() == 0


class Remembering(TraceDataset):
    """Keeps what it read, and says whether it is still that."""

    def __getitems__(self, rows):
        batch = super().__getitems__(rows)
        self.kept = [*getattr(self, "kept", []), (batch["x"].values, batch["x"].values.clone())]
        assert all(torch.equal(*both) for both in self.kept)
        return batch


def test_a_worker_may_keep_its_batches(large_path, large_rows):
    loader = DataLoader(Remembering(large_path), BATCH_SIZE, num_workers=1, persistent_workers=True)
    for _ in range(3):
        for i, batch in enumerate(loader):
            assert bits(batch["x"].values) == x_of(large_rows, i)


def test_a_forked_child_that_lets_go_takes_nothing_from_its_parent(large_path, large_rows):
    loader = loader_of(large_path, 1, persistent_workers=True)
    held = [next(iter(loader))]
    child = os.fork()
    if not child:
        held.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(3):
        for _ in loader:
            pass
    assert bits(held[0]["x"].values) == x_of(large_rows, 0)


def test_batches_reach_a_process_with_many_open_files(large_path, large_rows):
    """A thousand of them are no reason for its workers' memory to stay: with the last tensor of a
    batch that outlives its worker, the arena is gone."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    shared._attached.clear()
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        held = list(loader_of(large_path, 1))
        assert_whole(held, large_rows)
        assert len(shared._attached) == 1
        while held:
            held.pop()
        gc.collect()
        assert not shared._attached
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def n_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("refused", ["addresses", "file", "parent"])
def test_where_an_arena_is_refused_batches_travel_as_torch_sends_them(
    large_path, large_rows, monkeypatch, refused
):
    def refuse(*_):
        raise OSError(12, "Cannot allocate memory")

    if refused == "addresses":
        monkeypatch.setattr(shared, "ARENA_BYTES", 1 << 47)
    elif refused == "file":
        monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(shared, "_parent_reads_us", lambda: refused != "parent")
    shared._attached.clear()
    before = n_descriptors()
    assert shared.worker_arena.__wrapped__() is None
    assert n_descriptors() == before
    assert_whole(list(loader_of(large_path, multiprocessing_context="fork")), large_rows)
    assert not shared._attached


def test_small_rows_gathered_in_a_worker_come_through_the_arena(tmp_path):
    """Also those that are gathered by one call, and fixed columns."""
    x = [np.full(20 + i % 3, i) for i in range(4000)]
    y = [np.full(16, -i) for i in range(4000)]
    columns = {"x": (Column("int32", axis="t"), x), "y": (Column("int32", (16,)), y)}
    store = store_columns(tmp_path / "s.zarr", columns)
    loader = DataLoader(TraceDataset(store), 2000, num_workers=1)
    for i, batch in enumerate(loader):
        for tensor in (batch["x"].values, batch["y"]):
            assert any(tensor.data_ptr() in place for place in arena_addresses())
        assert batch["y"][:, 0].tolist() == [-row for row in range(2000 * i, 2000 * i + 2000)]
        assert batch["x"].row(7).tolist() == [2000 * i + 7] * (20 + (2000 * i + 7) % 3)
