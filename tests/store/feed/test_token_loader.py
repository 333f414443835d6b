"""TokenLoader: each chosen token once, its values, exact resume, and how random the order is."""

import inspect
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import SCHEMA
from small import make_store, one_column
from torch.utils.data import DataLoader, IterableDataset

from store import (
    Column,
    NotFoundError,
    RowRanges,
    SchemaError,
    TokenLoader,
    TraceLoader,
)
from store.feed import prefetch
from store.feed.loader import LoaderOptions
from store.feed.order import BlockOrder, EpochOrder
from store.read.token_choice import TokenChoice

COLUMNS = ["tokens", "hidden_states", "zipped", "label", "states", "question", "flag"]


def keys(batch):
    """(row, position) of each token of a batch."""
    return list(zip(batch.rows.tolist(), batch.positions.tolist(), strict=True))


def delivered(loader):
    return [key for batch in loader for key in keys(batch)]


def all_tokens(rows):
    return [(i, at) for i, (_, row) in enumerate(rows) for at in range(len(row["tokens"]))]


def as_bytes(value):
    """A value's bits: bfloat16 has no NumPy type of its own, and NaN equals nothing."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        value = value.view(torch.int16)
    return value if isinstance(value, str) else np.asarray(value).tobytes()


def assert_values(batch, rows, columns=COLUMNS, part=lambda name, value: value):
    """What each token has, compared with a plain look-up in the rows that were written."""
    for i, (row, at) in enumerate(keys(batch)):
        for name in columns:
            value = rows[row][1][name]
            wanted = value[at] if SCHEMA.columns[name].axis else value
            assert as_bytes(batch[name][i]) == as_bytes(part(name, wanted)), (name, row, at)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_each_token_comes_once_with_its_values(store_path, rows, batch_size, num_workers):
    loader = TokenLoader(store_path, COLUMNS, batch_size, shuffle=True, num_workers=num_workers)
    batches = list(loader)
    found = [key for batch in batches for key in keys(batch)]
    assert sorted(found) == all_tokens(rows) != found
    assert len(batches) == -(-len(found) // batch_size)
    assert batches[0]["hidden_states"].shape[1:] == (3, 5)
    for batch in batches:
        assert_values(batch, rows)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_large_batches_are_gathered_in_parts(store_path, rows, monkeypatch, num_workers):
    """By several threads, into memory that is used again."""
    for name in ("read_options.SHARED_BYTES", "raw_array.SHARED_BYTES", "copies.WINDOWS_BYTES"):
        monkeypatch.setattr(f"store.read.arrays.{name}", 64)
    loader = TokenLoader(store_path, COLUMNS, 50, shuffle=True, num_workers=num_workers)
    for _ in range(2):
        for batch in loader:
            assert_values(batch, rows)


LAYERS = ["1", "2,3", "1,3", slice(None, None, 2), slice(None, None, -1), 1]
HIDDEN = [slice(None), slice(1, 4), slice(None, None, 2)]
SPLITS = [(), ("layers",), ("hidden",)]
PARTS = list(product(LAYERS, HIDDEN, SPLITS))
SOME_PARTS = PARTS[::2]  # every pair of two of them


@pytest.mark.parametrize(
    "layers, hidden, split",
    [one if one in SOME_PARTS else pytest.param(*one, marks=pytest.mark.slow) for one in PARTS],
)
def test_parts_of_an_item(tmp_path, layers, hidden, split):
    column = Column(
        "int32", (3, 20), "tokens", ("layers", "hidden"), split, shard_items=4 * 16, chunk_items=4
    )
    values = np.arange(300 * 60, dtype=np.int32).reshape(300, 3, 20)
    store = make_store(
        tmp_path / "s.zarr",
        {"x": column},
        {f"t{i}": {"x": values[3 * i : 3 * i + 3]} for i in range(100)},
    )
    positions = {"1": [0], "2,3": [1, 2], "1,3": [0, 2], 1: [1]}
    taken = positions[layers] if isinstance(layers, str | int) else layers
    select = {"x": {"layers": layers, "hidden": hidden}}
    loader = TokenLoader(store, ["x"], 64, shuffle=True, select=select, arrays="numpy")
    for batch in loader:
        wanted = values[3 * batch.rows + batch.positions][:, taken][:, :, hidden]
        np.testing.assert_array_equal(batch["x"], wanted)


def small(tmp_path, lengths, **more):
    """A store whose tokens are numbered through, with a prompt of half of each trace."""
    cuts = np.cumsum([0, *lengths])
    columns = {
        "x": Column("int32", axis="tokens"),
        "mask": Column("int8", axis="tokens"),
        "prompt_len": "int32",
        "y": Column("float32", (2,), axis="pairs"),
    }
    rows = {
        f"t{i}": {
            "x": np.arange(cuts[i], cuts[i + 1]),
            "mask": np.arange(cuts[i], cuts[i + 1]) % 3 - 1,
            "prompt_len": -1 if i == 1 else n // 2,
            "y": np.zeros((i, 2), np.float32),
        }
        for i, n in enumerate(lengths)
    }
    return make_store(tmp_path / "small.zarr", columns, rows)


def values_of(store, **options):
    return [x for batch in TokenLoader(store, ["x"], 3, **options) for x in batch["x"].tolist()]


def test_which_tokens_are_chosen(tmp_path):
    store = small(tmp_path, [4, 3, 0, 5, 1])
    assert values_of(store) == list(range(13))
    assert values_of(store, tokens="prompt") == [0, 1, 4, 5, 6, 7, 8]
    assert values_of(store, tokens="answer") == [2, 3, 4, 5, 6, 9, 10, 11, 12]
    assert values_of(store, tokens="mask") == [2, 5, 8, 11]
    assert values_of(store, tokens=slice(-1, None)) == [3, 6, 11, 12]
    ranges = RowRanges(np.array([1, 0, 0, 4, 0]), np.array([3, 0, 1, 9, 0]))
    assert values_of(store, tokens=ranges) == [1, 2, 11]
    assert values_of(store, tokens="answer", where="prompt_len == 2") == [2, 3, 9, 10, 11]
    assert values_of(store, tokens="all", rows=[4, 1]) == [12, 4, 5, 6]
    assert values_of(store, tokens="mask", rows=[3, 2, 1]) == [8, 11, 5]
    assert values_of(store, rows=[]) == []
    for tokens in ("all", "answer", "mask"):
        shuffled = values_of(store, tokens=tokens, shuffle=True)
        assert sorted(shuffled) == values_of(store, tokens=tokens)


@pytest.mark.parametrize("tokens", ["mask", "prompt", "answer", slice(1, -1)])
def test_tokens_are_chosen_in_blocks(tmp_path, monkeypatch, tokens):
    store = small(tmp_path, [4, 3, 0, 5, 1, 40])
    whole = values_of(store, tokens=tokens)
    for n in (1, 2, 3, 7):
        monkeypatch.setattr("store.feed.token_loader.BLOCK_ITEMS", n)
        monkeypatch.setattr("store.feed.token_loader.BLOCK_ROWS", n)
        assert values_of(store, tokens=tokens) == whole


@given(
    lengths=st.lists(st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 3000)), max_size=40),
    seed=st.integers(0, 2**40),
)
def test_numbers_and_tokens_are_the_same(lengths, seed):
    """Any lengths, empty rows anywhere: numbers and tokens are one to one, in order."""
    cuts = np.cumsum([0, *lengths])
    found = TokenChoice("tokens", cuts, cuts).find(np.arange(cuts[-1]))
    rows = np.repeat(np.arange(len(lengths)), lengths)
    assert found.rows.tolist() == rows.tolist()
    assert found.items.tolist() == list(range(cuts[-1]))
    assert found.positions.tolist() == [at for n in lengths for at in range(n)]
    order = EpochOrder(int(cuts[-1]), seed, 0, listed=-1)[range(cuts[-1])]
    assert sorted(order) == list(range(cuts[-1]))


def test_a_state_of_other_tokens_is_refused(tmp_path):
    store = small(tmp_path, [4, 3, 0, 5, 1])
    state = TokenLoader(store, ["x"], tokens="answer").state_dict()
    assert state["n_tokens"] == 9
    TokenLoader(store, ["mask"], tokens="answer", batch_size=2).load_state_dict(state)
    for options in ({"tokens": "all"}, {"tokens": "answer", "rows": [0, 1, 3, 4, 2]}):
        with pytest.raises(ValueError, match="state_dict: expected"):
            TokenLoader(store, ["x"], **options).load_state_dict(state)


def test_wrong_arguments(tmp_path):
    store = small(tmp_path, [4, 3])
    for columns, found in ((["prompt_len"], "none"), (["x", "y"], "'pairs', 'tokens'")):
        with pytest.raises(SchemaError, match=f"one ragged axis, found .*{found}"):
            TokenLoader(store, columns)
    with pytest.raises(SchemaError, match="choose tokens by tokens=slice"):
        TokenLoader(store, ["x"], select={"x": {"tokens": slice(2)}})
    for tokens in ("prompt_len", "y"):
        with pytest.raises(
            SchemaError, match=f"one number a token of the axis 'tokens', found '{tokens}'"
        ):
            TokenLoader(store, ["x"], tokens=tokens)
    with pytest.raises(NotFoundError, match="maks"):
        TokenLoader(store, ["x"], tokens="maks")
    bare = make_store(
        tmp_path / "bare.zarr", {"x": Column("int8", axis="tokens")}, {"a": {"x": [1]}}
    )
    with pytest.raises(NotFoundError, match="expected the column 'prompt_len'"):
        TokenLoader(bare, ["x"], tokens="answer")
    assert len(TokenLoader(bare, ["x"], rows=[])) == 0


def test_windows_and_cold_groups_keep_positions(store_path, rows, monkeypatch):
    """Small batches are cut from windows; what seems cold is asked for first."""
    monkeypatch.setattr(prefetch.Readahead, "_seem_cached", lambda *_: False)
    for batch in TokenLoader(store_path, COLUMNS, 2, shuffle=True, num_workers=1):
        assert batch.positions.dtype == batch.rows.dtype == torch.int64
        assert_values(batch, rows)


FORMAT = (Path(__file__).parents[3] / "docs" / "format.md").read_text()
VECTORS = re.findall(r"^\| (\d+) tokens \| (\d+), (\d+) \| ([^|]+) \| ([^|]+) \|$", FORMAT, re.M)


def test_the_order_is_the_one_written_down():
    assert len(VECTORS) == 4
    for n, seed, epoch, positions, numbers in VECTORS:
        order = EpochOrder(int(n), int(seed), int(epoch), listed=-1)
        if positions == "0 to 9":
            positions = ", ".join(map(str, range(10)))
        found = [int(order[range(p, p + 1)][0]) for p in map(int, positions.split(", "))]
        assert found == [int(number) for number in numbers.split(", ")]


def test_the_options_are_those_of_the_other_loader():
    parameters = inspect.signature(TraceLoader).parameters.values()
    by_name = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert by_name == set(LoaderOptions.__annotations__)


def test_the_order_of_blocks_is_the_one_written_down():
    (numbers,) = re.findall(r"^\| 10 tokens \| 2, 4 \| 0, 0 \| 0 to 9 \| ([^|]+) \|$", FORMAT, re.M)
    assert BlockOrder(10, 0, 0, 2, 4)[range(10)].tolist() == list(map(int, numbers.split(", ")))


N = 1_000_000


def test_a_million_tokens_are_shuffled_well():
    """Against a fair shuffle, with five standard deviations to spare: where a token comes to lie,
    who its neighbours are, and how far apart neighbours come to lie."""
    order = EpochOrder(N, 0, 0, listed=-1)[range(N)]
    assert np.bincount(order, minlength=N).max() == 1
    positions = np.arange(N)
    # moves between hundredths: 10,000 cells of 100
    cells = np.bincount(order // 10_000 * 100 + positions // 10_000, minlength=10_000)
    chi2 = ((cells - 100) ** 2 / 100).sum()
    assert abs(chi2 - 99**2) < 5 * np.sqrt(2 * 99**2)
    # tokens that still follow each other, in either direction: two are expected
    assert (np.abs(np.diff(order)) == 1).sum() < 15
    for lag in (1, 2, 3, 10, 100, 1000, 8192):
        correlation = np.corrcoef(order[lag:], order[:-lag])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(N)
    distances = np.abs(np.diff(np.argsort(order)))
    assert abs(distances.mean() - N / 3) < 5 * N / np.sqrt(18 * N)
    assert abs(np.corrcoef(order, positions)[0, 1]) < 5 / np.sqrt(N)
    other = EpochOrder(N, 0, 1, listed=-1)[range(N)]
    assert abs(np.corrcoef(order, other)[0, 1]) < 5 / np.sqrt(N)
    assert (order == other).sum() < 10


class AllOf(IterableDataset):
    """What a user may put around a loader, without thinking of its workers."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


def test_several_workers_of_a_dataloader_are_refused(tmp_path):
    """Each would give every token; one gives each once."""
    store = one_column(tmp_path / "w.zarr", "x", Column("int32", axis="t"), [range(3), range(5)])
    loader = TokenLoader(store, ["x"], batch_size=4)
    batches = DataLoader(AllOf(loader), batch_size=None, num_workers=1)
    assert sorted(value for batch in batches for value in batch["x"].tolist()) == [
        *(0, 0, 1, 1, 2, 2, 3, 4)
    ]
    with pytest.raises(RuntimeError, match="one of 2 workers of a DataLoader"):
        list(DataLoader(AllOf(loader), batch_size=None, num_workers=2))


def blocks_of(n, epoch=0, block=8, buffer=64):
    return BlockOrder(n, 7, epoch, block, buffer)[range(n)]


@pytest.mark.parametrize("n", [0, 1, 7, 8, 64, 65, 517, 1000])
def test_an_order_of_blocks_has_each_row_once(n):
    """In any parts, whether or not the last block and the last window are full."""
    order = blocks_of(n)
    assert sorted(order) == list(range(n))
    parts = [BlockOrder(n, 7, 0, 8, 64)[range(i, min(i + 13, n))] for i in range(0, n, 13)]
    assert np.concatenate([[], *parts]).tolist() == order.tolist()
    assert n < 7 or order.tolist() != blocks_of(n, epoch=1).tolist()
    with pytest.raises(NotImplementedError):
        BlockOrder(n, 7, 0, 8, 64).positions_of(order)


def test_a_block_is_at_most_all_rows():
    """So that no walk looks for the few places that have a row among all those of a block."""
    for n in (1, 10):
        order = BlockOrder(n, 7, 0, 2**40, 2**41)
        assert order[range(n)].tolist() == blocks_of(n, block=n, buffer=2**41).tolist()
        assert order.announced(range(n)).tolist() == list(range(n))


def test_how_well_blocks_are_mixed():
    """Neighbours of one block are as rare as stated, and means of batches vary as stated."""
    n, block, buffer, size = 2**20, 64, 2**14, 512
    order = blocks_of(n, block=block, buffer=buffer)
    same = np.mean(order[1:] // block == order[:-1] // block)
    assert same == pytest.approx(block / buffer, rel=0.05)
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.01
    values = np.random.default_rng(0).normal(size=n // block).repeat(block)  # rho = 1
    means = values[order].reshape(-1, size).mean(1)
    stated = (1 + (size - 1) * block / buffer) / size
    assert means.var() == pytest.approx(stated, rel=0.1)


def test_windows_are_announced_one_window_ahead():
    n, block, buffer = 1000, 8, 64
    order = BlockOrder(n, 7, 0, block, buffer)
    windows = [np.sort(order[range(i, min(i + buffer, n))]) for i in range(0, n, buffer)]
    steps = [order.announced(range(i, min(i + 10, n))).tolist() for i in range(0, n, 10)]
    found = [row for rows in steps for row in rows]
    assert sorted(found) == list(range(n))
    assert set(windows[0]) <= set(steps[0])
    assert [len(rows) for rows in steps[1:6]] == [0] * 5
    assert set(windows[2]) == set(steps[6])


def test_tokens_in_blocks(tmp_path, store_path, rows):
    """Each token once with its values, warm or cold, and exact states as of any shuffle."""
    options = {"shuffle": "blocks", "block": 3, "buffer": 20}
    loader = TokenLoader(store_path, COLUMNS, 7, num_workers=1, **options)
    batches = list(loader)
    assert sorted(key for batch in batches for key in keys(batch)) == all_tokens(rows)
    for batch in batches:
        assert_values(batch, rows)
    store = small(tmp_path, [4, 3, 0, 5, 1, 40])
    whole = values_of(store, **options)
    assert sorted(whole) == list(range(53)) != whole != values_of(store, shuffle=True)
    first = TokenLoader(store, ["x"], 5, **options)
    parts = [x for _, batch in zip(range(4), first, strict=False) for x in batch["x"].tolist()]
    for more in ({}, {"buffer": 21}):
        second = TokenLoader(store, ["x"], 11, **options | more)
        if more:
            with pytest.raises(ValueError, match="expected buffer 21, found 20"):
                second.load_state_dict(first.state_dict())
            continue
        second.load_state_dict(first.state_dict())
        assert parts + [x for batch in second for x in batch["x"].tolist()] == whole
    with pytest.raises(ValueError, match="expected 0 < block <= buffer, found 5 and 4"):
        TokenLoader(store, ["x"], block=5, buffer=4)
    with pytest.raises(ValueError, match="shuffle: expected one of False, True, found 'blocks'"):
        TraceLoader(store, shuffle="blocks")
