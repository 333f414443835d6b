"""TraceLoader and TraceDataset: order, workers, exact resume, errors in the caller."""

import json
import threading

import numpy as np
import pytest
import torch
from oracle import assert_batch
from torch.utils.data import ConcatDataset, DataLoader

from store import (
    Batch,
    Column,
    CorruptError,
    GlobalShuffleSampler,
    NotFoundError,
    Schema,
    SchemaError,
    StoreWriter,
    TraceDataset,
    TraceLoader,
    TraceStore,
    permutation,
)
from store.read.batch_reads import BatchReads
from store.read.file_reads import FileReads
from store.read.mapped_file import MappedFile


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


def test_a_plain_loop_never_repeats_an_order(store_path):
    loader = TraceLoader(store_path, ["label"], shuffle=True)
    epochs = [delivered(loader) for _ in range(3)]
    assert epochs == [permutation(40, 0, epoch).tolist() for epoch in range(3)]
    loader.set_epoch(1)
    assert delivered(loader) == epochs[1]


def test_rows_restrict_the_loader(store_path):
    rows = np.array([3, 30, 4, 17])
    assert delivered(TraceLoader(store_path, ["label"], 3, rows=rows)) == rows.tolist()
    assert sorted(delivered(TraceLoader(store_path, ["label"], 3, True, rows=rows))) == sorted(rows)


def test_drop_last(store_path):
    loader = TraceLoader(store_path, ["label"], 16, drop_last=True)
    assert [len(batch) for batch in loader] == [16, 16]
    assert len(loader) == 2


@pytest.mark.parametrize("stop", range(7))
@pytest.mark.parametrize(
    "batch_size, num_workers, world_size", [(7, 0, 1), (3, 2, 1), (5, 1, 2), (1, 0, 3)]
)
def test_resuming_at_any_step_delivers_the_rest_once(
    store_path, stop, batch_size, num_workers, world_size
):
    """With another batch size, other workers and ranks; the epoch after it is complete again."""
    first = TraceLoader(store_path, ["label"], 6, shuffle=True, seed=2, num_workers=2)
    batches = iter(first)
    seen = [row for _ in range(stop) for row in next(batches).rows.tolist()]
    state = json.loads(json.dumps(first.state_dict()))
    batches.close()
    rest = []
    for rank in range(world_size):
        loader = TraceLoader(
            store_path,
            ["label"],
            batch_size,
            True,
            2,
            num_workers=num_workers,
            rank=rank,
            world_size=world_size,
        )
        loader.load_state_dict(state)
        loader.set_epoch(state["epoch"])
        rest += delivered(loader)
        assert loader.epoch == 1
    assert sorted(seen + rest) == list(range(40))
    assert seen == permutation(40, 2, 0)[: len(seen)].tolist()


def test_a_state_of_another_order_is_refused(store_path):
    state = TraceLoader(store_path, seed=1, shuffle=True).state_dict()
    for loader in (TraceLoader(store_path, seed=2, shuffle=True), TraceLoader(store_path, seed=1)):
        with pytest.raises(ValueError, match="state_dict: expected"):
            loader.load_state_dict(state)
    loader = TraceLoader(store_path, seed=1, shuffle=True)
    with pytest.raises(ValueError, match="position from 0 to 40, found 41"):
        loader.load_state_dict(state | {"position": 41})
    with pytest.raises(ValueError, match="expected store"):
        loader.load_state_dict(state | {"store": "other"})


def test_a_state_names_its_order(store_path):
    """States of older versions, which named none, go on; another order is refused by name."""
    loader = TraceLoader(store_path, ["label"], 8, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    assert state.pop("order") == 1
    loader.load_state_dict(state)
    assert delivered(loader) == permutation(40, 0, 0)[8:].tolist()
    with pytest.raises(ValueError, match="state_dict: expected order 1, found 2"):
        loader.load_state_dict(state | {"order": 2})


def test_an_abandoned_loader_leaves_no_thread(store_path):
    before = threading.active_count()
    for _ in range(20):
        for _ in TraceLoader(store_path, batch_size=1, num_workers=2):
            break
    assert threading.active_count() == before


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_a_worker_is_raised_in_the_caller(broken_path, num_workers):
    loader = TraceLoader(broken_path, ["label", "tokens"], 5, num_workers=num_workers)
    (broken_path / "tokens/c/1").unlink()
    with pytest.raises(CorruptError, match="array 'tokens', shard 1"):
        delivered(loader)


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


def test_wrong_arguments_fail_before_the_first_batch(store_path):
    for arguments in ({"batch_size": 0}, {"num_workers": -1}, {"rank": 2, "world_size": 2}):
        with pytest.raises(ValueError, match="expected"):
            TraceLoader(store_path, **arguments)
    for wrong in (TraceLoader, TraceDataset):
        with pytest.raises(NotFoundError, match="closest: 'label'"):
            wrong(store_path, ["lable"])
    with pytest.raises(IndexError, match="expected a row from 0 to 39, found 40"):
        TraceLoader(store_path, rows=[40])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_torch_dataloader_with_every_start_method(store_path, rows, method):
    """Packed batches through torch's own loader and default collate, after the parent has read."""
    dataset = TraceDataset(store_path)
    dataset[3]
    loader = DataLoader(
        dataset,
        batch_size=8,
        sampler=GlobalShuffleSampler(dataset, seed=4),
        num_workers=2 if method else 0,
        multiprocessing_context=method,
    )
    batches = list(loader)
    order = permutation(40, 4, 0)
    for i, batch in enumerate(batches):
        assert isinstance(batch, Batch)
        assert_batch(batch, [rows[row][1] for row in order[8 * i : 8 * i + 8]])
    assert len(batches) == 5


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
        ("tokens", None, "none"),
        ("question", None, "none"),
        ("label", lambda value: value.double(), r"float64 \(\)"),
        ("hidden_states", lambda value: value[..., :2], r"ragged float16 \(3, 2\)"),
        ("hidden_states", lambda value: value[:, 0], r"ragged float16 \(5,\)"),
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


def test_a_state_of_other_rows_is_refused(store_path):
    state = TraceLoader(store_path, rows=range(10)).state_dict()
    with pytest.raises(ValueError, match="expected rows"):
        TraceLoader(store_path, rows=range(10, 20)).load_state_dict(state)
    with pytest.raises(ValueError, match="expected position from 0 to 10, found None"):
        TraceLoader(store_path, rows=range(10)).load_state_dict(
            {k: v for k, v in state.items() if k != "position"}
        )


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
    monkeypatch.setattr(BatchReads, "is_cached", lambda *_: False)
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
