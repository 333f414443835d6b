"""Batches that are read together: the same batches, with fewer chunks decoded."""

import numpy as np
import pytest
import torch

from store import (
    Batch,
    Column,
    Ragged,
    Schema,
    StoreWriter,
    TraceLoader,
    TraceStore,
)
from store.feed.windows import (
    SMALL_WINDOW_BYTES,
    batches_together,
    cut_batches,
    plan_windows,
    small_batches_together,
)
from store.read.arrays.read_options import ReadOptions

N_ROWS, CHUNK_ITEMS = 240, 32
SCHEMA = Schema(
    {
        "x": Column("float32", (3,), "t", codec="zstd:1", chunk_items=CHUNK_ITEMS, shard_items=256),
        "half": Column("bfloat16", (), "t"),
        "y": Column("int32", (4,), codec="blosc:lz4", chunk_items=16, shard_items=64),
        "flag": Column("bool"),
        "text": Column("utf8"),
    }
)
CACHE_BYTES = 3 * 1024


class Apart(TraceLoader):
    """A loader that reads each batch by itself."""

    def _batches_together(self):
        return 1


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Rows of 0 to 3 items: each chunk holds many."""
    path = tmp_path_factory.mktemp("windows") / "s.zarr"
    random = np.random.default_rng(0)
    with StoreWriter.create(path, SCHEMA) as writer:
        for i in range(N_ROWS):
            x = random.normal(size=(i % 4, 3)).astype(np.float32)
            half = torch.full((i % 4,), i, dtype=torch.bfloat16)
            row = {"x": x, "half": half, "y": [i] * 4, "flag": i % 3 == 0, "text": f"é{i}"}
            writer.append(str(i), row)
    return path


def parts(batch):
    """All that a batch holds, as lists of bytes and texts."""
    held = [batch.rows.numpy().tobytes()]
    for values in batch.columns.values():
        tensors = values if isinstance(values, Ragged) else [values]
        held += [v if isinstance(v, list) else v.contiguous().view(-1).tolist() for v in tensors]
    return held


@pytest.mark.parametrize("num_workers, drop_last", [(0, False), (1, True), (2, False)])
def test_batches_are_the_same_and_chunks_are_decoded_less_often(path, num_workers, drop_last):
    loaders = []
    for loader_type in (Apart, TraceLoader):
        options = {"cache_bytes": CACHE_BYTES, "num_workers": num_workers, "drop_last": drop_last}
        loaders.append(loader_type(path, batch_size=7, shuffle=True, **options))
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


@pytest.mark.parametrize("num_workers, shuffle", [(0, False), (1, True), (2, True)])
@pytest.mark.parametrize("columns", [["half", "flag", "text"], None])
def test_small_batches_that_share_memory_are_the_same(path, num_workers, shuffle, columns):
    """They stay as they are when others are written to, and after the loader is gone."""
    options = {"columns": columns, "batch_size": 7, "shuffle": shuffle}
    expected = [parts(batch) for batch in Apart(path, **options)]
    loader = TraceLoader(path, num_workers=num_workers, **options)
    assert loader._batches_together() == 4096 // 7
    batches = list(loader)
    for batch in batches[::2]:
        batch["half"].values.zero_()
        batch["half"].offsets.zero_()
        batch.rows.zero_()
    assert [parts(batch) for batch in batches[1::2]] == expected[1::2]


def test_rows_that_take_longer_to_copy_than_to_find_are_read_by_batch(tmp_path):
    with StoreWriter.create(
        tmp_path / "s.zarr", Schema({"x": Column("uint8", axis="t")})
    ) as writer:
        for i in range(9):
            writer.append(str(i), {"x": np.full(10_000 + 2_500 * i, i, np.uint8)})  # 20,000 each
    store = TraceStore.open(tmp_path / "s.zarr")
    assert small_batches_together(store, store.plan(["x"]), 2) == 1
    assert small_batches_together(store, store.plan(["trace_id"]), 2) == 2048
    assert small_batches_together(store, store.plan(["trace_id"]), 5000) == 1


@pytest.mark.parametrize("num_workers, first", [(0, 0), (2, 0), (0, 9000)])
def test_a_window_of_rows_far_above_the_mean_is_read_batch_by_batch(tmp_path, num_workers, first):
    """Thousands of short rows say nothing of the long ones behind them."""
    lengths = [1] * 4000 + [200_000] * 100
    with StoreWriter.create(
        tmp_path / "s.zarr", Schema({"x": Column("uint8", axis="t")})
    ) as writer:
        for i, n in enumerate(lengths):
            writer.append(str(i), {"x": np.full(n, i % 251, np.uint8)})
    most = 0

    class Watched(TraceLoader):
        def batch_reader(self):
            read = super().batch_reader()

            def watch(located, options):
                nonlocal most
                batch = read(located, options)
                most = max(most, batch["x"].values.nbytes)
                return batch

            return watch

    options = {"num_workers": num_workers, "select": {"x": {"t": slice(first, None)}}}
    loader = Watched(tmp_path / "s.zarr", ["x"], 10, **options)
    assert loader._batches_together() > 10
    found = [len(row["x"]) for batch in loader for row in batch]
    assert found == [max(0, n - first) for n in lengths]
    assert 1000 < most <= 2 * SMALL_WINDOW_BYTES
