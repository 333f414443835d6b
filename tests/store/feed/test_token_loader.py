"""TokenLoader: which tokens are chosen, their values, and what is refused. What holds of both
loaders is in `test_loading.py`."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import complaint, make_store, one_column
from torch.utils.data import DataLoader, IterableDataset

from store import Column, NotFoundError, RowRanges, SchemaError, TokenLoader, TraceLoader
from store.feed.loader import LoaderOptions
from store.read.token_choice import TokenChoice

LAYERS = {"1": [0], "2,3": [1, 2], "1,3": [0, 2], 1: [1]}


@pytest.fixture(scope="module")
def layered(tmp_path_factory):
    """A column of three layers, split by them, by another axis, or not."""
    folder = tmp_path_factory.mktemp("layered")
    values = np.arange(300 * 60, dtype=np.int32).reshape(300, 3, 20)
    rows = [values[3 * i : 3 * i + 3] for i in range(100)]
    names = ("layers", "hidden")
    return values, {
        split: one_column(
            folder / f"{split}.zarr",
            "x",
            Column("int32", (3, 20), "tokens", names, split, shard_items=64, chunk_items=4),
            rows,
        )
        for split in ((), ("layers",), ("hidden",))
    }


@pytest.mark.parametrize("split", [(), ("layers",), ("hidden",)])
@given(
    layers=st.sampled_from([*LAYERS, slice(None, None, 2), slice(None, None, -1)]),
    hidden=st.sampled_from([slice(None), slice(1, 4), slice(None, None, 2)]),
)
def test_parts_of_an_item(layered, split, layers, hidden):
    values, stores = layered
    taken = layers if isinstance(layers, slice) else LAYERS[layers]
    select = {"x": {"layers": layers, "hidden": hidden}}
    loader = TokenLoader(stores[split], ["x"], 64, shuffle=True, select=select, arrays="numpy")
    for batch in loader:
        wanted = values[3 * batch.rows + batch.positions][:, taken][:, :, hidden]
        np.testing.assert_array_equal(batch["x"], wanted)


def small(tmp_path, lengths):
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


RANGES = RowRanges(np.array([1, 0, 0, 4, 0]), np.array([3, 0, 1, 9, 0]))


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, [*range(13)]),
        ({"tokens": "prompt"}, [0, 1, 4, 5, 6, 7, 8]),
        ({"tokens": "answer"}, [2, 3, 4, 5, 6, 9, 10, 11, 12]),
        ({"tokens": "mask"}, [2, 5, 8, 11]),
        ({"tokens": slice(-1, None)}, [3, 6, 11, 12]),
        ({"tokens": RANGES}, [1, 2, 11]),
        ({"tokens": "answer", "where": "prompt_len == 2"}, [2, 3, 9, 10, 11]),
        ({"tokens": "all", "rows": [4, 1]}, [12, 4, 5, 6]),
        ({"tokens": "mask", "rows": [3, 2, 1]}, [8, 11, 5]),
        ({"rows": []}, []),
    ],
)
def test_which_tokens_are_chosen(tmp_path, monkeypatch, options, expected):
    """However large the blocks in which they are looked for."""
    store = small(tmp_path, [4, 3, 0, 5, 1])
    assert sorted(values_of(store, shuffle=True, **options)) == sorted(expected)
    for n in (2**22, 1, 2, 3, 7):
        monkeypatch.setattr("store.feed.token_loader.BLOCK_ITEMS", n)
        monkeypatch.setattr("store.feed.token_loader.BLOCK_ROWS", n)
        assert values_of(store, **options) == expected


@given(st.lists(st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 3000)), max_size=40))
def test_numbers_and_tokens_are_the_same(lengths):
    """Any lengths, empty rows anywhere: numbers and tokens are one to one, in order."""
    cuts = np.cumsum([0, *lengths])
    found = TokenChoice("tokens", cuts, cuts).find(np.arange(cuts[-1]))
    rows = np.repeat(np.arange(len(lengths)), lengths)
    assert found.rows.tolist() == rows.tolist()
    assert found.items.tolist() == list(range(cuts[-1]))
    assert found.positions.tolist() == [at for n in lengths for at in range(n)]


def test_a_state_of_other_tokens_is_refused(tmp_path):
    store = small(tmp_path, [4, 3, 0, 5, 1])
    state = TokenLoader(store, ["x"], tokens="answer").state_dict()
    assert state["n_tokens"] == 9
    TokenLoader(store, ["mask"], tokens="answer", batch_size=2).load_state_dict(state)
    for options in ({"tokens": "all"}, {"tokens": "answer", "rows": [0, 1, 3, 4, 2]}):
        with pytest.raises(ValueError, match="state_dict: expected"):
            TokenLoader(store, ["x"], **options).load_state_dict(state)
    blocks = {"shuffle": "blocks", "block": 3}
    state = TokenLoader(store, ["x"], buffer=20, **blocks).state_dict()
    with pytest.raises(ValueError, match="expected buffer 21, found 20"):
        TokenLoader(store, ["x"], buffer=21, **blocks).load_state_dict(state)


OF_ONE = "one number a token of the axis 'tokens', found '{}'"


@pytest.mark.parametrize(
    "columns, options, error, message",
    [
        (["prompt_len"], {}, SchemaError, "expected some of one ragged axis, found"),
        (["x", "y"], {}, SchemaError, "of ['pairs', 'tokens']"),
        (["x"], {"select": {"x": {"tokens": slice(2)}}}, SchemaError, "tokens by tokens=slice"),
        (["x"], {"tokens": "prompt_len"}, SchemaError, OF_ONE.format("prompt_len")),
        (["x"], {"tokens": "y"}, SchemaError, OF_ONE.format("y")),
        (["x"], {"tokens": "maks"}, NotFoundError, "maks"),
        (["x"], {"block": 5, "buffer": 4}, ValueError, "0 < block <= buffer, found 5 and 4"),
    ],
)
def test_wrong_arguments(tmp_path, columns, options, error, message):
    store = small(tmp_path, [4, 3])
    assert message in complaint(error, TokenLoader, store, columns, **options)


def test_an_answer_needs_the_length_of_the_prompt(tmp_path):
    bare = one_column(tmp_path / "bare.zarr", "x", Column("int8", axis="tokens"), [[1]])
    with pytest.raises(NotFoundError, match="expected the column 'prompt_len'"):
        TokenLoader(bare, ["x"], tokens="answer")
    assert len(TokenLoader(bare, ["x"], rows=[])) == 0


def test_the_options_are_those_of_the_other_loader():
    parameters = inspect.signature(TraceLoader).parameters.values()
    by_name = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert by_name == set(LoaderOptions.__annotations__)


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
    found = [value for batch in batches for value in batch["x"].tolist()]
    assert sorted(found) == [0, 0, 1, 1, 2, 2, 3, 4]
    with pytest.raises(RuntimeError, match="one of 2 workers of a DataLoader"):
        list(DataLoader(AllOf(loader), batch_size=None, num_workers=2))
