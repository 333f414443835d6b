"""Batches that are read together: the same batches, with fewer chunks decoded."""

import numpy as np
import pytest
import torch
from oracle import bits
from small import one_column, store_columns

from store import Batch, Column, Ragged, TraceLoader, TraceStore
from store.feed.windows import (
    SMALL_WINDOW_BYTES,
    batches_together,
    cut_batches,
    plan_windows,
    small_batches_together,
)
from store.read.arrays.read_options import ReadOptions

N_ROWS, CACHE_BYTES = 240, 3 * 1024
LENGTHS = np.arange(N_ROWS) % 4
BYTES = Column("uint8", axis="t")


class Apart(TraceLoader):
    """A loader that reads each batch by itself."""

    def _batches_together(self):
        return 1


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Rows of 0 to 3 items: each chunk holds many."""
    random = np.random.default_rng(0)
    x = Column("float32", (3,), "t", codec="zstd:1", chunk_items=32, shard_items=256)
    columns = {
        "x": (x, [random.normal(size=(n, 3)).astype("f4") for n in LENGTHS]),
        "half": (
            Column("bfloat16", (), "t"),
            [torch.full((n,), i, dtype=torch.bfloat16) for i, n in enumerate(LENGTHS)],
        ),
        "y": (
            Column("int32", (4,), codec="blosc:lz4", chunk_items=16, shard_items=64),
            [[i] * 4 for i in range(N_ROWS)],
        ),
        "flag": ("bool", [i % 3 == 0 for i in range(N_ROWS)]),
        "text": ("utf8", [f"é{i}" for i in range(N_ROWS)]),
    }
    return store_columns(tmp_path_factory.mktemp("windows") / "s.zarr", columns).path


def parts(batch):
    """All that a batch holds, as bytes and texts."""
    held = [bits(batch.rows)]
    for values in batch.columns.values():
        tensors = values if isinstance(values, Ragged) else [values]
        held += [one if isinstance(one, list) else bits(one) for one in tensors]
    return held


@pytest.mark.parametrize("num_workers, drop_last", [(0, False), (1, True), (2, False)])
def test_batches_are_the_same_and_chunks_are_decoded_less_often(path, num_workers, drop_last):
    options = {"cache_bytes": CACHE_BYTES, "num_workers": num_workers, "drop_last": drop_last}
    loaders = [kind(path, batch_size=7, shuffle=True, **options) for kind in (Apart, TraceLoader)]
    for loader in loaders:
        loader.load_state_dict(loader.state_dict() | {"position": 5})
    for _ in range(2):
        apart, together = ([parts(batch) for batch in loader] for loader in loaders)
        assert together == apart
    apart, together = (loader.store.cache.stats.misses for loader in loaders)
    assert 1.3 * together < apart


def test_windows_grow_and_cover_every_batch():
    for n_batches in range(40):
        windows = list(plan_windows(n_batches, 6))
        assert [i for window in windows for i in window] == list(range(n_batches))
    assert [len(window) for window in windows] == [1, 2, 4, *[6] * 5, 2]


def test_batches_are_read_together_only_where_it_gains(path):
    store = TraceStore.open(path)
    plan = store.plan(["x", "y"])
    assert batches_together(store, plan, 7, CACHE_BYTES, CACHE_BYTES) > 4
    assert batches_together(store, plan, 7, CACHE_BYTES, 10**6) == 1  # the cache has all chunks
    assert batches_together(store, plan, 200, CACHE_BYTES, CACHE_BYTES) == 1  # no memory for two
    assert batches_together(store, plan, 7, 0, 0) == 1
    assert batches_together(store, store.plan(["flag"]), 7, CACHE_BYTES, 0) == 1  # not compressed


@pytest.mark.parametrize("required", [True, False])
def test_cut_batches_pickle_their_rows_alone(path, required):
    """Copies and views have storages of their own extent, and begin where any array may."""
    whole = TraceStore.open(path).read(range(20))
    batches = list(cut_batches(whole, [0, 8, 16, 20], ReadOptions(required=required)))
    assert [len(batch) for batch in batches] == [8, 8, 4]
    for batch in batches:
        for tensor in (*batch.columns["x"], *batch["half"], batch["y"], batch.rows):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
            assert tensor.data_ptr() % 16 == 0
        assert batch["x"].offsets is batch["half"].offsets
    assert parts(Batch.from_rows([row for batch in batches for row in batch])) == parts(whole)


def test_small_batches_that_share_memory_stay_as_they_are(path):
    """When others are written to, and after the loader is gone."""
    expected = [parts(batch) for batch in Apart(path, batch_size=7)]
    loader = TraceLoader(path, num_workers=1, batch_size=7)
    assert loader._batches_together() == 4096 // 7
    batches = list(loader)
    del loader
    for batch in batches[::2]:
        batch["half"].values.zero_()
        batch["half"].offsets.zero_()
        batch.rows.zero_()
    assert [parts(batch) for batch in batches[1::2]] == expected[1::2]


def test_rows_that_take_longer_to_copy_than_to_find_are_read_by_batch(tmp_path):
    lengths = [10_000 + 2_500 * i for i in range(9)]  # 20,000 each
    store = one_column(tmp_path / "s.zarr", "x", BYTES, [np.zeros(n, np.uint8) for n in lengths])
    assert small_batches_together(store, store.plan(["x"]), 2) == 1
    assert small_batches_together(store, store.plan(["trace_id"]), 2) == 2048
    assert small_batches_together(store, store.plan(["trace_id"]), 5000) == 1


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """A store of many short rows and long ones behind them, and how long they are."""
    lengths = [1] * 2000 + [200_000] * 50
    rows = [np.full(n, i % 251, np.uint8) for i, n in enumerate(lengths)]
    return one_column(tmp_path_factory.mktemp("uneven") / "s.zarr", "x", BYTES, rows).path, lengths


class Watched(TraceLoader):
    """Writes down how many bytes are read at once."""

    def batch_reader(self):
        self.sizes = []
        read = super().batch_reader()

        def watch(located, options):
            batch = read(located, options)
            self.sizes.append(batch["x"].values.nbytes)
            return batch

        return watch


@pytest.mark.parametrize("num_workers, first", [(0, 0), (2, 0), (0, 9000)])
def test_a_window_of_rows_far_above_the_mean_is_read_batch_by_batch(uneven, num_workers, first):
    path, lengths = uneven
    select = {"x": {"t": slice(first, None)}}
    loader = Watched(path, ["x"], 10, num_workers=num_workers, select=select)
    assert loader._batches_together() > 10
    found = [len(row["x"]) for batch in loader for row in batch]
    assert found == [max(0, n - first) for n in lengths]
    assert 1000 < max(loader.sizes) <= 2 * SMALL_WINDOW_BYTES
