"""Loaders at length: resumed at every step, every batch held, abandoned, forked while they read."""

import gc
import json
import math
import mmap
import os
import resource
import subprocess
import sys
import threading
from itertools import count, product, zip_longest
from pathlib import Path

import numpy as np
import pytest
from oracle import assert_batch, make_rows, write_store
from torch.utils.data import DataLoader

from store import (
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
from store.read.arrays.buffers import SMALL_BYTES
from store.read.row_reader import RowReader

ROOT = Path(__file__).parents[3]
N_ROWS, SEED, EPOCH = 23, 11, 3  # a prime number of rows: no batch size or number of ranks fits
CHUNKS = {"chunk_items": 4, "shard_items": 16}
SMALL = Schema(
    {
        "raw": Column("float16", (2,), axis="tokens", **CHUNKS),
        "compressed": Column("float32", (3,), axis="tokens", codec="zstd", **CHUNKS),
        "label": Column("int16", codec="zstd", chunk_items=3, shard_items=6),
        "layered": Column("int8", (4,), axis_names=("layers",), split=("layers",), **CHUNKS),
    }
)
LARGE = Schema(
    {
        "hidden": Column("bfloat16", (16, 4096), **CHUNKS),
        "tokens": Column("float32", (4096,), axis="tokens", chunk_items=8, shard_items=64),
        "compressed": Column("float16", (8192,), codec="zstd", **CHUNKS),
    }
)
BATCH_SIZES, WORKERS, WORLD_SIZES = (1, 3, 7), range(5), (1, 2, 3, 4)
SHAPES = list(product(BATCH_SIZES, WORKERS, WORLD_SIZES))
SOME_SHAPES = SHAPES[::7]  # every batch size, number of workers and number of ranks
SLOW = pytest.mark.slow
# of fewer rows than ranks, and of rows taken one by one, some ranks get none in the last step
may_be_empty = pytest.mark.filterwarnings("ignore:.* get an empty last batch:RuntimeWarning")


def write(folder, schema, rows, **options):
    numbered = [(str(i), row) for i, row in enumerate(rows)]
    return write_store(folder / "s.zarr", schema, numbered, **options)


@pytest.fixture(scope="module")
def small_rows():
    return [row for _, row in make_rows(SMALL, N_ROWS, seed=1)]


@pytest.fixture(scope="module")
def small_path(tmp_path_factory, small_rows):
    return write(tmp_path_factory.mktemp("small"), SMALL, small_rows, commits=2)


@pytest.fixture(scope="module")
def large_rows():
    return [row for _, row in make_rows(LARGE, 64, seed=2)]


@pytest.fixture(scope="module")
def large_path(tmp_path_factory, large_rows):
    """Rows of which eight are beyond what malloc recycles, in every column."""
    return write(tmp_path_factory.mktemp("large"), LARGE, large_rows)


def make_ranks(store, column, shape, state=None, **order):
    """The loaders of all ranks, each gone on from `state` if there is one."""
    batch_size, num_workers, world_size = shape
    order = {"shuffle": True, "seed": SEED, "num_workers": num_workers} | order
    ranks = [{"rank": rank, "world_size": world_size} for rank in range(world_size)]
    loaders = [TraceLoader(store, [column], batch_size, **order, **rank) for rank in ranks]
    for loader in loaders if state else ():
        loader.load_state_dict(state)
        loader.set_epoch(state["epoch"])  # as a loop does: the position stays
    return loaders


def in_step(loaders):
    """What all ranks deliver in every step, until the last of them is done: a list of their
    batches."""
    for batches in zip_longest(*loaders):
        yield [batch for batch in batches if batch is not None]


def checked(batches, column, rows):
    """Rows of one step in the global order (the ranks take turns, row by row), their values equal
    to those in memory."""
    for batch in batches:
        assert_batch(batch, [{column: rows[row][column]} for row in batch.rows.tolist()])
    shares = zip_longest(*(batch.rows.tolist() for batch in batches))
    return [row for share in shares for row in share if row is not None]


def epoch_of(loaders, column, rows):
    """The rows of all steps of an epoch."""
    return [row for batches in in_step(loaders) for row in checked(batches, column, rows)]


def saved(loader):
    """A state as it comes back from a file."""
    return json.loads(json.dumps(loader.state_dict()))


def order_of(epoch):
    return permutation(N_ROWS, SEED, epoch).tolist()


@may_be_empty
@pytest.mark.parametrize("column", ["raw", "compressed"])
@pytest.mark.parametrize(
    "shape",
    [one if one in SOME_SHAPES else pytest.param(one, marks=SLOW) for one in SHAPES],
    ids=str,
)
def test_a_state_of_any_step_resumes_in_the_global_order(small_path, small_rows, shape, column):
    """Another batch size, other workers and ranks deliver exactly what is missing, then the next
    epoch whole."""
    store = TraceStore.open(small_path)
    ranks = make_ranks(store, column, shape)
    for loader in ranks:
        loader.set_epoch(EPOCH)
    others = [one for one in SHAPES if not any(a == b for a, b in zip(one, shape, strict=True))]
    seen, steps = [], in_step(ranks)
    for step in count():
        other = others[7 * step % len(others)]
        resumed = make_ranks(store, column, other, saved(ranks[0]))
        if len(seen) < N_ROWS:
            assert seen + epoch_of(resumed, column, small_rows) == order_of(EPOCH)
        assert epoch_of(resumed, column, small_rows) == order_of(EPOCH + 1)
        assert {loader.epoch for loader in resumed} == {EPOCH + 2}
        batches = next(steps, None)
        if batches is None:
            break
        seen += checked(batches, column, small_rows)
    assert seen == order_of(EPOCH)
    batch_size, _, world_size = shape
    assert step == math.ceil(math.ceil(N_ROWS / world_size) / batch_size)


@pytest.mark.parametrize("abandon", ["del", "close"])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_state_taken_after_a_loop_was_left_is_the_same(
    small_path, small_rows, num_workers, abandon
):
    """Whatever was read ahead counts for nothing."""
    for stop in range(0, N_ROWS, 6):
        loader = TraceLoader(small_path, ["compressed"], 1, True, SEED, num_workers=num_workers)
        batches = iter(loader)
        seen = [int(next(batches).rows) for _ in range(stop)]
        if abandon == "close":
            batches.close()
        else:
            del batches
        resumed = make_ranks(small_path, "compressed", (7, 4 - num_workers, 1), saved(loader))
        assert seen + epoch_of(resumed, "compressed", small_rows) == order_of(0)


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


SOME_WORKERS = [0, *(pytest.param(n, marks=SLOW) for n in (1, 2, 3)), 4]


@pytest.mark.parametrize("columns, share", [(["hidden", "compressed"], 1 / 4), (None, 3 / 4)])
@pytest.mark.parametrize("num_workers", SOME_WORKERS)
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


def resources(path):
    """Maps of the store's files, open descriptors and living threads of this process."""
    gc.collect()
    maps = sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())
    return maps, len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208 - a count


@pytest.mark.parametrize(
    "num_workers, cached",
    [pytest.param(0, True, marks=SLOW), pytest.param(1, False, marks=SLOW), (4, True)],
)
def test_loaders_leave_nothing(small_path, monkeypatch, num_workers, cached):
    """Half of them abandoned in the middle of an epoch; also where the kernel is asked to read
    ahead."""
    monkeypatch.setattr(RowReader, "is_cached", lambda *_: cached)
    before = resources(small_path)
    for i in range(30):
        loader = TraceLoader(small_path, None, 5, True, num_workers=num_workers)
        for step, _ in enumerate(loader):
            if i % 2 and step == i % 4:
                break
        if i == 20:
            assert resources(small_path)[0] > before[0]
        del loader
    assert resources(small_path) == before


def test_open_stores_leave_nothing(small_path):
    """Read in every way: ids, rows, batches, views."""
    before = resources(small_path)
    for i in range(30):
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
def test_a_process_that_ends_in_the_middle_of_an_epoch_ends_in_silence(small_path, ending):
    """Whether the iterator is gone by then or still in hand: no worker hangs, no finalizer
    complains."""
    code = "import sys; from store import *\n"
    code += f"if __name__ == '__main__':\n    path = sys.argv[1]\n    {ENDINGS[ending]}"
    command = [sys.executable, "-W", "error", "-c", code, str(small_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    "method", ["fork", pytest.param("spawn", marks=SLOW), pytest.param("forkserver", marks=SLOW)]
)
def test_workers_start_from_a_store_in_use(small_path, small_rows, method):
    """Its cache full, its maps open, its threads reading, a lock taken: workers read the same, the
    parent too."""
    store = TraceStore.open(small_path)
    threads = iter(TraceLoader(store, None, 5, num_workers=2))
    store.read(range(N_ROWS))
    received = [next(threads)]
    assert store.cache.stats.bytes > 0
    names = ("compressed", "label", "raw")
    dataset = TraceDataset(store, names)
    options = {"sampler": GlobalShuffleSampler(dataset, SEED), "num_workers": 2, "timeout": 60}
    with store.cache._lock:
        batches = list(DataLoader(dataset, 7, multiprocessing_context=method, **options))
    for i, batch in enumerate(batches):
        wanted = [small_rows[row] for row in order_of(0)[7 * i : 7 * i + 7]]
        assert_batch(batch, [{name: row[name] for name in names} for row in wanted])
    assert len(batches) == 4
    received += threads
    for i, batch in enumerate(received):
        assert_batch(batch, small_rows[5 * i : 5 * i + 5])


CACHE = "cache_bytes: expected 0, or at least one chunk of 48 bytes, found"
WRONG = [
    ({"batch_size": 2.5}, ValueError, "^batch_size: expected an integer of 1 or more, found 2.5$"),
    ({"num_workers": -1}, ValueError, "^num_workers: expected an integer of 0 or more, found -1$"),
    ({"rank": 2, "world_size": 2}, ValueError, "^expected 0 <= rank < world_size"),
    ({"cache_bytes": 47}, ValueError, f"^{CACHE} 47$"),
    ({"rows": [True]}, IndexError, r"s.zarr: expected a mask of its 23 rows, found one of 1"),
    ({"rows": [0, 23]}, IndexError, "expected a row from 0 to 22, found 23"),
    ({"rows": [-24]}, IndexError, "expected a row from -23 to 22, found -24"),
    ({"rows": np.array([2**63], np.uint64)}, IndexError, f"to 22, found {2**63}"),
    *(
        ({"rows": wrong}, TypeError, r"rows: expected a sequence of (integers|trace ids)")
        for wrong in ([[0]], "0", [0, "0"], np.array([0], object))
    ),
]


@pytest.mark.parametrize("arguments, error, message", WRONG)
def test_a_wrong_argument_is_named_with_what_is_allowed(small_path, arguments, error, message):
    with pytest.raises(error, match=message):
        TraceLoader(small_path, **arguments)
    if error is IndexError and "mask" not in message:
        with pytest.raises(IndexError, match=message.partition(", found")[0]):
            TraceDataset(small_path).__getitems__(arguments["rows"])


@pytest.mark.parametrize("make", [TraceLoader, TraceDataset])
@pytest.mark.parametrize(
    "select, error, message",
    [
        ({"layered": {"layers": slice(0, 5)}}, IndexError, "expected a selection from 0 to 4"),
        ({"layered": {"heads": 0}}, NotFoundError, r"expected an axis of \['layers'\], found 'h"),
        ({"lables": {}}, NotFoundError, "select: expected one of the columns read, .* 'lables'"),
    ],
)
def test_a_wrong_selection_fails_before_the_first_batch(small_path, make, select, error, message):
    with pytest.raises(error, match=message):
        make(small_path, select=select)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"position": 24}, "expected position from 0 to 23, found 24"),
        ({"position": 2.5}, "expected position from 0 to 23, found 2.5"),
        ({"epoch": -1}, "expected epoch from 0 to .*, found -1"),
        ({"seed": SEED + 1}, f"expected seed {SEED}, found {SEED + 1}"),
        ({"shuffle": False}, "expected shuffle True, found False"),
        ({"order": 2}, "expected order 1, found 2"),
        ({"n_rows": 24}, "expected n_rows 23, found 24"),
        ({"rows": "others"}, "expected rows 'all', found 'others'"),
        ({"store": "another"}, "expected store '.*', found 'another'"),  # with the same rows
    ],
)
def test_a_state_that_fits_nothing_is_refused_and_changes_nothing(small_path, change, message):
    (loader,) = make_ranks(small_path, "raw", (3, 0, 1))
    next(iter(loader))
    before = saved(loader)
    with pytest.raises(ValueError, match=f"^state_dict: {message}$"):
        loader.load_state_dict(before | change)
    assert saved(loader) == before
