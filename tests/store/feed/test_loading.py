"""TraceLoader and TraceDataset: order, workers, exact resume, errors in the caller."""

import os
import pickle
import signal

import numpy as np
import pytest
import torch
from oracle import assert_batch, write_store
from torch.utils.data import ConcatDataset, DataLoader

from store import (
    Batch,
    Column,
    CorruptError,
    GlobalShuffleSampler,
    NotFoundError,
    Ragged,
    Schema,
    SchemaError,
    StoreWriter,
    TraceDataset,
    TraceLoader,
    TraceStore,
    permutation,
)
from store.read.arrays.file_reads import FileReads
from store.read.arrays.mapped_file import MappedFile
from store.read.row_reader import RowReader


def delivered(loader):
    return [row for batch in loader for row in batch.rows.tolist()]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_batches_follow_the_permutation_whatever_the_workers(store_path, rows, num_workers):
    loader = TraceLoader(store_path, batch_size=7, shuffle=True, seed=5, num_workers=num_workers)
    order = permutation(40, 5, 0)
    for i, batch in enumerate(loader):
        wanted = order[7 * i : 7 * i + 7]
        assert batch.rows.tolist() == wanted.tolist()
        assert_batch(batch, [rows[row][1] for row in wanted])
    assert i + 1 == len(loader) == 6


def test_rows_restrict_the_loader(store_path):
    rows = np.array([3, 30, 4, 17])
    assert delivered(TraceLoader(store_path, ["label"], 3, rows=rows)) == rows.tolist()
    assert sorted(delivered(TraceLoader(store_path, ["label"], 3, True, rows=rows))) == sorted(rows)
    chosen = TraceStore.open(store_path).where("label == 1").tolist()
    assert delivered(TraceLoader(store_path, ["label"], 3, where="label == 1")) == chosen
    with pytest.raises(ValueError, match="where: expected None with rows"):
        TraceLoader(store_path, ["label"], 3, rows=rows, where="label == 1")


def ranks(store, world_size, state=None, **options):
    """The loaders of all ranks."""
    store = TraceStore.open(store)
    shares = [
        TraceLoader(store, shuffle=True, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    for loader in shares if state else ():
        loader.load_state_dict(state)
    return shares


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("n_rows, batch_size, world_size", [(33, 16, 2), (40, 13, 3), (9, 2, 4)])
@pytest.mark.parametrize("window_rows", [1, 4096])
def test_ranks_deliver_as_many_batches(
    store_path, rows, monkeypatch, n_rows, batch_size, world_size, num_workers, window_rows
):
    """Also where a last step cut from the order would have a row for some ranks alone; every value
    is right, one by one and in windows, and `len` says what comes, of the rest as well."""
    monkeypatch.setattr("store.feed.windows.SMALL_WINDOW_ROWS", window_rows)
    options = {"batch_size": batch_size, "num_workers": num_workers, "rows": range(n_rows)}
    shares = ranks(store_path, world_size, **options)
    n_steps = -(-n_rows // (batch_size * world_size))
    assert [len(loader) for loader in shares] == [n_steps] * world_size
    delivered_rows, states = [], []
    for step in zip(*shares, strict=True):
        for batch in step:
            assert_batch(batch, [rows[row][1] for row in batch.rows.tolist()])
            assert 1 <= len(batch) <= batch_size
        delivered_rows.append([batch.rows.tolist() for batch in step])
        states.append([loader.state_dict() for loader in shares])
    every = [row for step in delivered_rows for share in step for row in share]
    assert sorted(every) == list(range(n_rows))
    for done, of_step in enumerate(states[:-1], start=1):
        assert of_step == [of_step[0]] * world_size
        rest = ranks(store_path, world_size, of_step[0], **options)
        assert [len(loader) for loader in rest] == [n_steps - done] * world_size
        steps = [[batch.rows.tolist() for batch in step] for step in zip(*rest, strict=True)]
        assert steps == delivered_rows[done:]
        assert [len(loader) for loader in rest] == [n_steps] * world_size


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("window_rows", [1, 4096])
@pytest.mark.parametrize(
    "n_rows, batch_size, n_empty, cure",
    [(3, 8, 1, "last 3 rows"), (5, 1, 3, "last 1 rows, batch_size=2 or more shares them")],
)
def test_a_rank_without_a_row_gets_an_empty_batch_and_a_warning(
    store_path, rows, monkeypatch, num_workers, window_rows, n_rows, batch_size, n_empty, cure
):
    """Fewer rows than ranks: an empty batch has every column, and can be pickled, moved, padded."""
    monkeypatch.setattr("store.feed.windows.SMALL_WINDOW_ROWS", window_rows)
    options = {"batch_size": batch_size, "num_workers": num_workers, "rows": range(n_rows)}
    last = []
    for loader in ranks(store_path, 4, **options):
        with pytest.warns(
            RuntimeWarning, match=rf"{n_empty} of 4 ranks get an empty last batch.*{cure}"
        ):
            batches = list(loader)
        assert len(batches) == len(loader)
        last.append(batches[-1])
    assert sum(len(batch) == 0 for batch in last) == n_empty
    empty = last[-1]
    assert len(empty) == 0
    whole = TraceStore.open(store_path).read([0])
    for name in whole.columns:
        if isinstance(whole[name], Ragged):
            assert empty[name].offsets.tolist() == [0]
            assert empty[name].values.shape[1:] == whole[name].values.shape[1:]
            assert empty.padded(name)[0].shape[:2] == (0, 0)
        elif isinstance(whole[name], torch.Tensor):
            assert empty[name].shape == (0, *whole[name].shape[1:])
            assert empty[name].dtype == whole[name].dtype
        else:
            assert empty[name] == []
    moved = pickle.loads(pickle.dumps(empty)).to("cpu")  # noqa: S301 - our own
    assert list(moved.keys()) == list(whole.keys())
    assert list(moved) == []


def test_a_warning_that_is_an_error_keeps_the_position(store_path):
    loader = TraceLoader(store_path, ["label"], 1, rows=range(6), rank=0, world_size=4)
    loader.load_state_dict(loader.state_dict() | {"position": 4})
    for _ in range(2):
        with pytest.raises(RuntimeWarning, match="2 of 4 ranks get an empty last batch"):
            next(iter(loader))
    assert loader.state_dict()["position"] == 4


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_empty_batch_of_cold_files_and_of_compressed_rows(tmp_path, monkeypatch, num_workers):
    """Read past the page cache, and with the times of the chunk cache."""
    monkeypatch.setattr(RowReader, "is_cached", lambda *_: False)
    monkeypatch.setattr(MappedFile, "is_cached", lambda *_: False)
    columns = {
        "x": Column("uint8", (70_000,)),
        "z": Column("float32", (8,), codec="zstd", chunk_items=2),
    }
    with StoreWriter.create(tmp_path / "s.zarr", Schema(columns)) as writer:
        for i in range(7):
            writer.append(str(i), {"x": np.full(70_000, i, np.uint8), "z": np.zeros(8, "f4")})
    loaders = ranks(tmp_path / "s.zarr", 3, num_workers=num_workers, batch_size=1, cache_bytes=64)
    found = []
    for loader in loaders:
        with pytest.warns(RuntimeWarning, match="drop_last=True"):
            found.append([batch["x"][:, 0].tolist() for batch in loader])
    assert [len(shares) for shares in found] == [3, 3, 3]
    assert sorted(row for share in found for batch in share for row in batch) == list(range(7))
    assert found[1][-1] == found[2][-1] == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("columns", [["label"], None])
@pytest.mark.parametrize("window_rows", [1, 4096])
def test_a_forked_child_is_refused_its_parents_iterator(
    store_path, monkeypatch, columns, num_workers, window_rows
):
    """At once, as it has none of the threads that read; a new iteration of the loader goes well
    there, and the parent's goes on."""
    monkeypatch.setattr("store.feed.windows.SMALL_WINDOW_ROWS", window_rows)
    loader = TraceLoader(store_path, columns, 3, True, num_workers=num_workers)
    batches = iter(loader)
    seen = next(batches).rows.tolist()
    child = os.fork()
    if not child:
        signal.alarm(20)
        is_whole = False
        try:
            next(batches)
        except RuntimeError as error:
            is_whole = "belongs to the parent process; make another: iter(loader)" in str(error)
            is_whole = is_whole and sorted(delivered(loader)) == list(range(40))
        finally:
            os._exit(0 if is_whole else 1)
    assert os.waitpid(child, 0)[1] == 0
    seen += [row for batch in batches for row in batch.rows.tolist()]
    assert seen == permutation(40, 0, 0).tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_before_the_damage_arrive(broken_path, rows, num_workers):
    """Reading ahead of a missing shard raises nothing; the read that needs it names the rows."""
    (broken_path / "tokens/c/1").unlink()
    lengths = np.cumsum([len(row["tokens"]) for _, row in rows])
    # rows that lie in the first shard of 16 items
    whole = int(np.searchsorted(lengths, 16, side="right"))
    batches = iter(TraceLoader(broken_path, ["tokens"], 1, num_workers=num_workers))
    for i in range(whole):
        assert next(batches)["tokens"].values.tolist() == rows[i][1]["tokens"].tolist()
    with pytest.raises(CorruptError, match=rf"shard 1: .*; rows? {whole}"):
        next(batches)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "method", [None, "fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)]
)
def test_torch_dataloader_with_every_start_method(store_path, rows, method):
    """Packed batches through torch's own loader and default collate, after the parent has read."""
    dataset = TraceDataset(store_path)
    dataset[3]
    loader = DataLoader(
        dataset,
        batch_size=8,
        sampler=GlobalShuffleSampler(dataset, seed=4),
        num_workers={None: 0, "spawn": 1}.get(method, 2),
        multiprocessing_context=method,
    )
    batches = list(loader)
    order = permutation(40, 4, 0)
    for i, batch in enumerate(batches):
        assert isinstance(batch, Batch)
        assert_batch(batch, [rows[row][1] for row in order[8 * i : 8 * i + 8]])
    assert len(batches) == 5


@pytest.mark.timeout(60)
def test_a_worker_of_torch_sends_a_batch_without_items(tmp_path):
    lengths = (2, 2, 0)
    rows = [(str(n), {"x": np.arange(k, dtype="i4")}) for n, k in enumerate(lengths)]
    path = write_store(tmp_path / "s.zarr", Schema({"x": Column("int32", axis="tokens")}), rows)
    loader = DataLoader(TraceDataset(path), 2, num_workers=1)
    assert [batch["x"].values.tolist() for batch in loader] == [[0, 1, 0, 1], []]


def test_rows_read_one_by_one_pack_to_the_same_batch(store_path, rows):
    """A wrapper that hides `__getitems__`, such as ConcatDataset, gives the same batches."""
    batch = next(iter(DataLoader(ConcatDataset([TraceDataset(store_path)]), batch_size=6)))
    assert_batch(batch, [row for _, row in rows[:6]])
    assert batch.rows.tolist() == list(range(6))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "name, change, found",
    [
        ("label", None, "none"),
        ("label", lambda value: value.double(), r"float64 \(\)"),
        ("hidden_states", lambda value: value[..., :2], r"ragged float16 \(3, 2\)"),
        ("states", str, "a text"),
    ],
)
def test_rows_that_differ_in_a_column_make_no_batch(store_path, name, change, found, first):
    """Whichever comes first; the error names the column and the rows."""
    rows = [TraceDataset(store_path)[i] for i in (3, 5, 8)]
    for row in rows[first : first + 2]:
        value = row.pop(name)
        if change:
            row[name] = change(value)
    numbers = r"row 3, .* in rows \[8\]" if first == 0 else r"row 3, .* in rows \[5, 8\]"
    with pytest.raises(SchemaError, match=f"column {name!r}: .*{numbers}") as error:
        Batch.from_rows(rows)
    assert error.match(f"{found} in row")


def test_a_batch_is_indexed_by_name_and_by_position(store_path):
    batch = TraceStore.open(store_path).read([2, 1])
    assert list(batch.keys()) == list(batch[0])
    assert torch.equal(batch[1]["tokens"], batch["tokens"].row(1))
    with pytest.raises(IndexError, match="from 0 to 1"):
        batch[2]
    with pytest.raises(NotFoundError, match="closest: 'tokens'"):
        batch["token"]


def test_taking_exactly_every_batch_moves_to_the_next_epoch(store_path):
    """Also for a state saved before the loop asks for more."""
    loader = TraceLoader(store_path, ["label"], 8, shuffle=True)
    first = [batch.rows.tolist() for _, batch in zip(range(len(loader)), loader, strict=False)]
    assert loader.state_dict()["epoch"] == 1
    assert loader.state_dict()["position"] == 0
    assert [batch.rows.tolist() for batch in loader] != first


def test_no_columns_are_rows_alone(store_path):
    assert delivered(TraceLoader(store_path, [])) == list(range(40))
    with pytest.raises(TypeError, match="columns: expected a sequence of names"):
        TraceLoader(store_path, "label")


@pytest.mark.parametrize("kept_fraction", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_cold_rows_are_the_same_read_from_files(tmp_path, monkeypatch, num_workers, kept_fraction):
    """Long rows beside short ones, over the ends of shards; some columns are advised instead."""
    rng = np.random.default_rng(0)
    columns = {
        "states": Column("float16", (1024,), axis="t", shard_items=128, chunk_items=32),
        "packed": Column("float16", (1024,), axis="t", codec="zstd:1"),
        "last": Column("uint8", (70_000,), shard_items=4, chunk_items=1),
        "label": Column("int8"),
    }
    rows = []
    with StoreWriter.create(tmp_path / "cold.zarr", Schema(columns)) as writer:
        for i in range(20):
            states = rng.normal(size=(rng.integers(0, 90), 1024)).astype(np.float16)
            last = rng.integers(0, 256, 70_000, np.uint8)
            rows.append({"states": states, "packed": states, "last": last, "label": np.int8(i)})
            writer.append(str(i), rows[-1])
    monkeypatch.setattr(RowReader, "is_cached", lambda *_: False)
    monkeypatch.setattr(MappedFile, "is_cached", lambda *_: False)
    monkeypatch.setattr("store.feed.loader.kept_fraction", lambda *_: kept_fraction)
    found = []
    fill = FileReads.read

    def read(files, ranges):
        found.append(ranges)
        fill(files, ranges)

    monkeypatch.setattr(FileReads, "read", read)
    loader = TraceLoader(tmp_path / "cold.zarr", None, 3, True, num_workers=num_workers)
    n_rows = 0
    for batch in loader:
        assert_batch(batch, [rows[row] for row in batch.rows.tolist()])
        n_rows += len(batch)
    assert n_rows == 20
    assert len(found) > len(loader)  # of two columns


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("rows", [None, [*range(5, 300), *range(310, 700), 2]])
def test_cold_neighbours_are_read_from_files(tmp_path, monkeypatch, num_workers, rows):
    """Small rows in their order, across files and gaps, as long ranges."""
    monkeypatch.setattr(RowReader, "is_cached", lambda *_: False)
    monkeypatch.setattr(MappedFile, "is_cached", lambda *_: False)
    values = np.random.default_rng(0).integers(0, 256, (700, 4096), np.uint8)
    column = Column("uint8", (4096,), chunk_items=8, shard_items=160)
    path = tmp_path / "s.zarr"
    with StoreWriter.create(path, Schema({"x": column})) as writer:
        writer.append_many(list(map(str, range(700))), {"x": values})
    found = []
    fill = FileReads.read

    def read(files, ranges):
        found.append(ranges)
        fill(files, ranges)

    monkeypatch.setattr(FileReads, "read", read)
    loader = TraceLoader(path, ["x"], 100, rows=rows, num_workers=num_workers, arrays="numpy")
    monkeypatch.setattr(loader, "_batches_together", lambda: 1)
    for batch in loader:
        np.testing.assert_array_equal(batch["x"], values[batch.rows])
    assert len(found) > 5
