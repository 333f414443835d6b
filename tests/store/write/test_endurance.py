"""Loaders at length: resumed at every step, every batch held, abandoned a hundred times, forked
while they read."""

import gc
import json
import math
import mmap
import os
import resource
import subprocess
import sys
import threading
from itertools import count, zip_longest
from pathlib import Path

import numpy as np
import pytest
from oracle import assert_batch, bits, make_rows, write_store
from torch.utils.data import DataLoader

from store import (
    Batch,
    Column,
    GlobalShuffleSampler,
    NotFoundError,
    Ragged,
    Schema,
    TraceDataset,
    TraceLoader,
    TraceStore,
    permutation,
)
from store.read.buffers import SMALL_BYTES
from store.read.row_reader import RowReader

ROOT = Path(__file__).parents[3]
N_ROWS, SEED, EPOCH = 23, 11, 3
SMALL = Schema(
    {
        "raw": Column("float16", (2,), axis="tokens", chunk_items=4, shard_items=16),
        "compressed": Column(
            "float32", (3,), axis="tokens", codec="zstd", chunk_items=4, shard_items=16
        ),
        "label": Column("int16", codec="zstd", chunk_items=3, shard_items=6),
        "layered": Column(
            "int8", (4,), axis_names=("layers",), split=("layers",), chunk_items=4, shard_items=8
        ),
    }
)
LARGE = Schema(
    {
        "hidden": Column("bfloat16", (16, 4096), chunk_items=4, shard_items=16),
        "tokens": Column("float32", (4096,), axis="tokens", chunk_items=8, shard_items=64),
        "compressed": Column("float16", (8192,), codec="zstd", chunk_items=4, shard_items=16),
    }
)
BATCH_SIZES, WORKERS, WORLD_SIZES = (1, 3, 7), range(5), (1, 2, 3, 4)
# of fewer rows than ranks, and of rows taken one by one, some ranks get none in the last step
may_be_empty = pytest.mark.filterwarnings("ignore:.* get an empty last batch:RuntimeWarning")


@pytest.fixture(scope="module")
def small_rows():
    return [row for _, row in make_rows(SMALL, N_ROWS, seed=1)]


@pytest.fixture(scope="module")
def small_path(tmp_path_factory, small_rows):
    """Twenty-three tiny rows: a prime number, so that no batch size and no number of ranks divides
    it."""
    path = tmp_path_factory.mktemp("endurance") / "small.zarr"
    return write_store(path, SMALL, [(str(i), row) for i, row in enumerate(small_rows)], commits=2)


@pytest.fixture(scope="module")
def large_rows():
    return [row for _, row in make_rows(LARGE, 64, seed=2)]


@pytest.fixture(scope="module")
def large_path(tmp_path_factory, large_rows):
    """Rows of which eight are beyond what malloc recycles, in every column."""
    path = tmp_path_factory.mktemp("endurance") / "large.zarr"
    return write_store(path, LARGE, [(str(i), row) for i, row in enumerate(large_rows)])


def make_ranks(store, column, batch_size, num_workers, world_size, state=None, **order):
    """The loaders of all ranks, each gone on from `state` if there is one."""
    order = {"shuffle": True, "seed": SEED} | order
    loaders = [
        TraceLoader(
            store,
            [column],
            batch_size,
            num_workers=num_workers,
            rank=rank,
            world_size=world_size,
            **order,
        )
        for rank in range(world_size)
    ]
    for loader in loaders if state else ():
        loader.load_state_dict(state)
    return loaders


def in_step(loaders):
    """What all ranks deliver in every step, until the last of them is done: a list of their
    batches."""
    for batches in zip_longest(*loaders):
        yield [batch for batch in batches if batch is not None]


def by_turns(batches):
    """Rows of one step of all ranks in the global order: the ranks take turns, row by row."""
    shares = zip_longest(*(batch.rows.tolist() for batch in batches))
    return [row for share in shares for row in share if row is not None]


def checked(batches, column, rows):
    """Rows of one step in the global order, their values equal to those in memory."""
    for batch in batches:
        assert_batch(batch, [{column: rows[row][column]} for row in batch.rows.tolist()])
    return by_turns(batches)


def saved(loader):
    """A state as it comes back from a file."""
    return json.loads(json.dumps(loader.state_dict()))


def order_of(epoch):
    return permutation(N_ROWS, SEED, epoch).tolist()


def others(values, value, i):
    """Another one of the values than `value`, each in its turn."""
    rest = [v for v in values if v != value]
    return rest[i % len(rest)]


@may_be_empty
@pytest.mark.parametrize("column", ["raw", "compressed"])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_a_state_of_any_step_resumes_in_the_global_order(
    small_path, small_rows, batch_size, num_workers, world_size, column
):
    """Another batch size, other workers and ranks deliver exactly what is missing, then the next
    epoch whole."""
    store = TraceStore.open(small_path)
    ranks = make_ranks(store, column, batch_size, num_workers, world_size)
    for loader in ranks:
        loader.set_epoch(EPOCH)
    seen, steps = [], in_step(ranks)
    for step in count():
        state = saved(ranks[0])
        resumed = make_ranks(
            store,
            column,
            others(BATCH_SIZES, batch_size, step),
            others(WORKERS, num_workers, step),
            others(WORLD_SIZES, world_size, step),
            state,
        )
        if len(seen) < N_ROWS:
            rest = [
                row for batches in in_step(resumed) for row in checked(batches, column, small_rows)
            ]
            assert seen + rest == order_of(EPOCH)
        following = [
            row for batches in in_step(resumed) for row in checked(batches, column, small_rows)
        ]
        assert following == order_of(EPOCH + 1)
        assert {loader.epoch for loader in resumed} == {EPOCH + 2}
        batches = next(steps, None)
        if batches is None:
            break
        seen += checked(batches, column, small_rows)
    assert seen == order_of(EPOCH)
    assert step == math.ceil(math.ceil(N_ROWS / world_size) / batch_size)


@may_be_empty
@pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_all_ranks_tell_the_same_state_after_the_same_step(small_path, batch_size, world_size):
    """Also where the last step has rows of the one before: whichever state is saved loses no
    row."""
    ranks = make_ranks(TraceStore.open(small_path), "raw", batch_size, 0, world_size)
    position = 0
    for batches in in_step(ranks):
        position += sum(map(len, batches))
        expected = (0, position) if position < N_ROWS else (1, 0)
        found = [(state["epoch"], state["position"]) for state in map(saved, ranks)]
        assert found == [expected] * world_size, f"after {position} rows"


@pytest.mark.parametrize("abandon", ["del", "close"])
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("stop", range(0, 23, 3))
def test_a_state_taken_after_a_loop_was_left_is_the_same(small_path, stop, num_workers, abandon):
    """Whatever was read ahead counts for nothing."""
    loader = TraceLoader(small_path, ["compressed"], 1, True, SEED, num_workers=num_workers)
    batches = iter(loader)
    seen = [int(next(batches).rows) for _ in range(stop)]
    if abandon == "close":
        batches.close()
    else:
        del batches
    (resumed,) = make_ranks(small_path, "compressed", 7, 4 - num_workers, 1, saved(loader))
    assert seen + [row for batches in in_step([resumed]) for row in by_turns(batches)] == order_of(
        0
    )


@may_be_empty
@pytest.mark.parametrize("column", ["raw", "compressed"])
@pytest.mark.parametrize("rows", [None, [7, 2, 22, 3, 0, 19, 11, 5, 16, 8, 13]])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_chain_of_loaders_that_deliver_one_step_each(
    small_path, small_rows, column, rows, shuffle
):
    """Two epochs, every step by new loaders of another shape, are the two epochs of one loader."""
    whole = TraceLoader(small_path, [column], 1, shuffle, SEED, rows=rows)
    expected = [int(batch.rows) for _ in range(2) for batch in whole]
    store, state, seen = (
        TraceStore.open(small_path),
        saved(TraceLoader(small_path, [], 1, shuffle, SEED, rows=rows)),
        [],
    )
    for hop in count():
        shape = BATCH_SIZES[hop % 3], WORKERS[hop % 5], WORLD_SIZES[hop % 4]
        ranks = make_ranks(store, column, *shape, state, shuffle=shuffle, rows=rows)
        seen += checked(next(in_step(ranks)), column, small_rows)
        state = saved(ranks[0])
        if state["epoch"] == 2:
            break
    assert seen == expected


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
    order = permutation(len(rows), SEED, epoch)
    assert [row for batch in batches for row in batch.rows.tolist()] == order.tolist()
    for batch in batches:
        expected = [rows[row] for row in batch.rows.tolist()]
        assert_batch(batch, [{name: row[name] for name in batch.columns} for row in expected])


@pytest.mark.parametrize("columns, share", [(["hidden", "compressed"], 1 / 4), (None, 3 / 4)])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_all_batches_of_an_epoch_may_be_held_and_their_memory_is_used_again(
    large_path, large_rows, num_workers, columns, share
):
    """Every batch stays right while others are read; two more epochs take the same memory.

    Blocks of one size fit again at once; ragged ones of many sizes may take some more, less than an
    epoch.
    """
    loader = TraceLoader(large_path, columns, 8, True, SEED, num_workers=num_workers)
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


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_view_of_one_row_keeps_the_memory_of_its_batch(large_path, large_rows, num_workers):
    """Rows kept of every batch are right after all batches are gone and two more epochs were
    read."""
    loader = TraceLoader(large_path, None, 8, True, SEED, num_workers=num_workers)
    kept = [
        (int(batch.rows[i % len(batch)]), batch[i % len(batch)]) for i, batch in enumerate(loader)
    ]
    for _ in range(2):
        for batch in loader:
            for tensor in pooled(batch):
                tensor.zero_()
    for number, row in kept:
        for name in LARGE.columns:
            assert bits(row[name]) == bits(large_rows[number][name]), name


def resources(path):
    """Maps of the store's files, open descriptors and living threads of this process."""
    gc.collect()
    maps = sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())
    return maps, len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208 - a count


@pytest.mark.parametrize(
    "num_workers, cached",
    [
        pytest.param(0, True, marks=pytest.mark.slow),
        pytest.param(1, False, marks=pytest.mark.slow),
        (4, True),
    ],
)
def test_a_hundred_loaders_leave_nothing(small_path, monkeypatch, num_workers, cached):
    """Half of them abandoned in the middle of an epoch; also where the kernel is asked to read
    ahead."""
    monkeypatch.setattr(RowReader, "is_cached", lambda *_: cached)
    before = resources(small_path)
    for i in range(100):
        loader = TraceLoader(small_path, None, 5, True, num_workers=num_workers)
        for step, _ in enumerate(loader):
            if i % 2 and step == i % 4:
                break
        if i == 50:
            assert resources(small_path)[0] > before[0]
        del loader
    assert resources(small_path) == before


def test_a_hundred_open_stores_leave_nothing(small_path):
    """Read in every way: ids, rows, batches, views."""
    before = resources(small_path)
    for i in range(100):
        store = TraceStore.open(small_path)
        row = store.row_of(str(i % N_ROWS))
        view = store[row]["raw"]
        store.read([row, 0, row])
        assert list(store.ids[:2]) == ["0", "1"]
        del store, view
    assert resources(small_path) == before


def test_a_batch_holds_no_map(small_path, small_rows):
    """Batches are copies: files are closed with the loader, even if its batches are kept."""
    before = resources(small_path)
    batches = list(TraceLoader(small_path, None, 5, num_workers=2))
    assert resources(small_path) == before
    for batch in batches:
        assert_batch(batch, [small_rows[row] for row in batch.rows.tolist()])


LOADER_LEFT = """
import sys
from store import TraceLoader
for _ in TraceLoader(sys.argv[1], None, 1, True, num_workers=2):
    break
"""
LOADER_HELD = """
import sys
from store import TraceLoader
batches = iter(TraceLoader(sys.argv[1], None, 2, True, num_workers=3))
next(batches)
"""
COLD_LOADER_HELD = """
import sys
from store import TraceLoader, TraceStore
TraceStore.is_cached = lambda *_: False
batches = iter(TraceLoader(sys.argv[1], None, 2, True))
next(batches)
"""
DATALOADER_HELD = """
import sys
from torch.utils.data import DataLoader
from store import TraceDataset
if __name__ == "__main__":
    dataset = TraceDataset(sys.argv[1])
    dataset[3]
    batches = iter(DataLoader(dataset, 2, num_workers=2))
    next(batches)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "code",
    [LOADER_LEFT, LOADER_HELD, COLD_LOADER_HELD, DATALOADER_HELD],
    ids=["loop left", "loader held", "cold loader held", "DataLoader held"],
)
def test_a_process_that_ends_in_the_middle_of_an_epoch_ends_in_silence(small_path, code):
    """Whether the iterator is gone by then or still in hand: no worker hangs, no finalizer
    complains."""
    command = [sys.executable, "-W", "error", "-c", code, str(small_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_start_from_a_store_in_use(small_path, small_rows, method):
    """Its cache full, its maps open, its threads reading, a lock taken: workers read the same, the
    parent too."""
    store = TraceStore.open(small_path)
    threads = iter(TraceLoader(store, None, 5, num_workers=2))
    store.read(range(N_ROWS))
    received = [next(threads)]
    assert store.cache.stats.bytes > 0
    dataset = TraceDataset(store, ["compressed", "label", "raw"])
    sampler = GlobalShuffleSampler(dataset, SEED)
    with store.cache._lock:
        loader = DataLoader(
            dataset, 7, sampler=sampler, num_workers=2, multiprocessing_context=method, timeout=60
        )
        batches = list(loader)
    for i, batch in enumerate(batches):
        assert isinstance(batch, Batch)
        wanted = order_of(0)[7 * i : 7 * i + 7]
        assert_batch(
            batch,
            [
                {name: small_rows[row][name] for name in ("compressed", "label", "raw")}
                for row in wanted
            ],
        )
    assert len(batches) == 4
    received += threads
    for i, batch in enumerate(received):
        assert_batch(batch, small_rows[5 * i : 5 * i + 5])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch_size": -1}, "batch_size: expected an integer of 1 or more, found -1"),
        ({"batch_size": 2.5}, "batch_size: expected an integer of 1 or more, found 2.5"),
        ({"batch_size": "8"}, "batch_size: expected an integer of 1 or more, found '8'"),
        ({"num_workers": 1.5}, "num_workers: expected an integer of 0 or more, found 1.5"),
        ({"prefetch_bytes": -1}, "prefetch_bytes: expected an integer of 0 or more, found -1"),
        ({"seed": -1}, "seed: expected an integer of 0 or more, found -1"),
        ({"rank": -1}, "expected 0 <= rank < world_size, or neither, found rank -1 of None"),
        ({"world_size": 0}, "expected 0 <= rank < world_size, or neither, found rank None of 0"),
        (
            {"rank": 2, "world_size": 2},
            "expected 0 <= rank < world_size, or neither, found rank 2 of 2",
        ),
        (
            {"cache_bytes": 47},
            "cache_bytes: expected 0, or at least one chunk of 48 bytes, found 47",
        ),
    ],
)
def test_a_wrong_number_is_named_with_what_is_allowed(small_path, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        TraceLoader(small_path, **arguments)


@pytest.mark.parametrize("open_with", [TraceDataset, TraceStore.open])
def test_a_cache_below_one_chunk_is_refused_everywhere(small_path, open_with):
    """Also for a store that is open already."""
    for store in (small_path, TraceStore.open(small_path)):
        with pytest.raises(ValueError, match="at least one chunk of 48 bytes, found 1"):
            open_with(store, cache_bytes=1)


@pytest.mark.parametrize("wrong", [[0, 23], [2**40], np.array([2**63], np.uint64)])
def test_rows_out_of_range_are_refused_with_the_range(small_path, wrong):
    with pytest.raises(IndexError, match=f"expected a row from 0 to 22, found {int(wrong[-1])}"):
        TraceLoader(small_path, rows=wrong)
    with pytest.raises(IndexError, match="expected a row from 0 to 22, found"):
        TraceDataset(small_path).__getitems__(wrong)


@pytest.mark.parametrize("wrong", [[-24], [0, -(2**40)]])
def test_negative_rows_out_of_range_are_refused_with_the_range(small_path, wrong):
    with pytest.raises(IndexError, match=f"expected a row from -23 to 22, found {wrong[-1]}"):
        TraceLoader(small_path, rows=wrong)
    with pytest.raises(IndexError, match="expected a row from -23 to 22, found"):
        TraceDataset(small_path).__getitems__(wrong)


@pytest.mark.parametrize("wrong", [[[0]], [0.5], "0", [0, "0"], ["0", 0], np.array([0], object), 3])
def test_rows_that_are_no_integers_are_refused(small_path, wrong):
    with pytest.raises(TypeError, match=r"rows: expected a sequence of (integers|trace ids)"):
        TraceLoader(small_path, rows=wrong)


def test_a_mask_of_another_length_is_refused(small_path):
    with pytest.raises(
        IndexError, match=r"small.zarr: expected a mask of its 23 rows, found one of 1"
    ):
        TraceLoader(small_path, rows=[True])


@pytest.mark.parametrize("make", [TraceLoader, TraceDataset])
@pytest.mark.parametrize(
    "select, error, message",
    [
        (
            {"layered": {"layers": slice(0, 5)}},
            IndexError,
            "'layers': expected a selection from 0 to 4, found 0:5",
        ),
        (
            {"layered": {"layers": slice(3, 1)}},
            IndexError,
            "expected a selection from 0 to 4, found 3:1",
        ),
        ({"layered": {"layers": 4}}, IndexError, "expected a selection from 0 to 4, found 4:5"),
        (
            {"layered": {"layers": slice(-5, None)}},
            IndexError,
            "expected a selection from 0 to 4, found -5:None",
        ),
        (
            {"layered": {"layers": [0, 1]}},
            TypeError,
            r"expected a slice or an integer, found \[0, 1\]",
        ),
        (
            {"layered": {"heads": 0}},
            NotFoundError,
            r"expected an axis of \['layers'\], found 'heads'",
        ),
        ({"raw": {"words": 0}}, NotFoundError, r"expected an axis of \['.*'\], found 'words'"),
        (
            {"lables": {}},
            NotFoundError,
            "select: expected one of the columns read, .* found 'lables'",
        ),
    ],
)
def test_a_wrong_selection_fails_before_the_first_batch(small_path, make, select, error, message):
    with pytest.raises(error, match=message):
        make(small_path, select=select)


def test_an_unknown_column_is_named_with_the_closest(small_path):
    store = TraceStore.open(small_path)
    for ask in (store.n_items, store.lengths, lambda name: store[0][name]):
        with pytest.raises(NotFoundError, match="found 'lable'; closest: 'label'"):
            ask("lable")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"position": -1}, "expected position from 0 to 23, found -1"),
        ({"position": 24}, "expected position from 0 to 23, found 24"),
        ({"position": 2.5}, "expected position from 0 to 23, found 2.5"),
        ({"position": "3"}, "expected position from 0 to 23, found '3'"),
        ({"epoch": -1}, "expected epoch from 0 to .*, found -1"),
        ({"epoch": None}, "expected epoch from 0 to .*, found None"),
        ({"seed": SEED + 1}, f"expected seed {SEED}, found {SEED + 1}"),
        ({"n_rows": 22}, "expected n_rows 23, found 22"),
    ],
)
def test_a_state_that_fits_nothing_is_refused_and_changes_nothing(small_path, change, message):
    (loader,) = make_ranks(small_path, "raw", 3, 0, 1)
    next(iter(loader))
    before = saved(loader)
    with pytest.raises(ValueError, match=f"^state_dict: {message}$"):
        loader.load_state_dict(before | change)
    assert saved(loader) == before


def test_a_state_of_another_store_with_the_same_rows_is_refused(small_path, small_rows, tmp_path):
    twin = write_store(
        tmp_path / "twin.zarr", SMALL, [(str(i), row) for i, row in enumerate(small_rows)]
    )
    state = saved(TraceLoader(twin, rows=[1, 2]))
    with pytest.raises(ValueError, match=f"expected store '.*', found '{state['store']}'"):
        TraceLoader(small_path, rows=[1, 2]).load_state_dict(state)
