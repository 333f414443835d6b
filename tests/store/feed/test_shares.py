"""Weights of stores: how often each is visited, each row's turn, and resume at any step."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import complaint, one_column
from stopping import visits

from store import Column, GlobalShuffleSampler, StoreWriter, TokenLoader, TraceDataset, TraceLoader
from store.feed.order import EpochOrder
from store.feed.shares import Shares, read_weights
from store.read.joined.joined_store import open_joined, prefixes_of

FORMAT = (Path(__file__).parents[3] / "docs" / "format.md").read_text()
RAGGED = Column("int32", axis="tokens")
SIZES = {"squad": 30, "nq": 11, "coqa": 5}
WEIGHTS = {"coqa": 0.1, "squad": 0.6, "nq": 0.3}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Row i of a store has i % 3 tokens, so that every third one has none."""
    folder = tmp_path_factory.mktemp("shares")
    return [make(folder / f"{name}.zarr", n) for name, n in SIZES.items()]


def make(path, n, lengths=lambda i: i % 3, column=RAGGED):
    return one_column(path, "x", column, [np.full(lengths(i), i) for i in range(n)]).path


def visits_of(loader):
    return [visit for batch in loader for visit in visits(batch)]


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    data=st.data(),
    replacement=st.booleans(),
    seed=st.integers(0, 2**40),
)
def test_each_store_has_its_share_and_each_row_its_turn(sizes, data, replacement, seed):
    one = st.floats(0.05, 20)
    weights = data.draw(st.lists(one, min_size=len(sizes), max_size=len(sizes)))
    cuts = np.cumsum([0, *sizes])
    shares = Shares(cuts, weights, seed, replacement)
    n = len(shares)
    scale = sum(sizes) / sum(weights)
    if not replacement:
        scale = min(size / weight for size, weight in zip(sizes, weights, strict=True))
        assert all(count <= size for count, size in zip(shares.counts, sizes, strict=True))
    for count, weight in zip(shares.counts, weights, strict=True):
        assert abs(count - max(1, weight * scale)) <= 0.5 + 1e-6
    total = Counter()
    for epoch in range(4):
        rows = shares.visited(epoch, EpochOrder(n, seed, epoch)[range(n)])
        found = Counter(rows.tolist())
        total += found
        for i, (size, count) in enumerate(zip(sizes, shares.counts, strict=True)):
            of_store = [found[row] for row in range(cuts[i], cuts[i + 1])]
            assert sum(of_store) == count
            assert max(of_store) <= -(-count // size)
            assert min(of_store) >= count // size
            if epoch < max(1, size // count):  # within the first pass
                assert max(total[row] for row in range(cuts[i], cuts[i + 1])) <= max(
                    1, -(-count // size)
                )


VECTORS = re.findall(
    r"^\| ([\d, ]+, [\d, ]+) \| ([\d., ]+) \| (\w+) \| (\d+), (\d+) \| ([^|]+) \| ([^|]+) \|$",
    FORMAT,
    re.MULTILINE,
)


@pytest.mark.parametrize("sizes, weights, replacement, seed, epoch, counts, rows", VECTORS)
def test_the_vectors_of_the_document(sizes, weights, replacement, seed, epoch, counts, rows):
    cuts = np.cumsum([0, *map(int, sizes.split(", "))])
    shares = Shares(cuts, list(map(float, weights.split(", "))), int(seed), replacement == "with")
    assert shares.counts == [int(count) for count in counts.split(", ")]
    places = EpochOrder(len(shares), int(seed), int(epoch))[range(len(shares))]
    found = shares.visited(int(epoch), places).tolist()
    assert found == [int(row) for row in rows.split(", ")]


@pytest.mark.parametrize("replacement, wanted", [(False, [22, 11, 4]), (True, [28, 14, 5])])
def test_loaders_and_samplers_visit_the_shares_of_stores(stores, replacement, wanted):
    """In one order, whatever the loader; epoch after epoch, with the values of each row."""
    given = {"weights": WEIGHTS, "replacement": replacement}
    loader = TraceLoader(stores, ["x"], 7, True, num_workers=2, **given)
    again = TraceLoader(stores, ["x"], 5, True, arrays="numpy", **given | {"weights": [6, 3, 1]})
    dataset = TraceDataset(stores)
    sampler = GlobalShuffleSampler(dataset, **given)
    for epoch in range(3):
        batches = list(loader)
        found = [row for batch in batches for row in batch.rows.tolist()]
        owners = np.searchsorted([30, 41], found, "right")
        assert np.bincount(owners).tolist() == wanted
        assert found == [row for row, _ in visits_of(again)]
        sampler.set_epoch(epoch)
        assert found == list(sampler)
        assert len(sampler) == sum(wanted)
        for batch in batches:
            for row, one in zip(batch.rows.tolist(), batch, strict=True):
                own = row - [0, 30, 41][np.searchsorted([30, 41], row, "right")]
                assert one["x"].tolist() == [own] * (own % 3)
    assert replacement or len(set(found)) == len(found)
    state = json.loads(json.dumps(sampler.state_dict(10)))
    other = GlobalShuffleSampler(dataset, **given | {"weights": [6, 3, 1]})
    other.load_state_dict(state)
    assert list(other) == found[10:]
    with pytest.raises(ValueError, match=r"expected (n_rows|shares)"):
        GlobalShuffleSampler(dataset).load_state_dict(state)
    with pytest.raises(TypeError, match="expected a TraceDataset, found int"):
        GlobalShuffleSampler(5, weights=[1])


@pytest.mark.parametrize("replacement", [False, True])
def test_tokens_are_shared_too(stores, replacement):
    """The shares are of tokens; a mask chooses them by runs."""
    rows = np.r_[40:20:-1, 45:40:-1, 0:20]
    for options in ({}, {"tokens": "x"}, {"rows": rows}, {"tokens": slice(0, 1), "rows": rows}):
        every = visits_of(TokenLoader(stores, ["x"], 8, True, **options))
        sizes = np.bincount(np.searchsorted([30, 41], [row for row, _ in every], "right"))
        given = {"weights": WEIGHTS, "replacement": replacement}
        found = visits_of(TokenLoader(stores, ["x"], 8, True, **given, **options))
        counts = np.bincount(np.searchsorted([30, 41], [row for row, _ in found], "right"))
        shares = Shares(np.cumsum([0, *sizes]), [0.6, 0.3, 0.1], 0, replacement)
        assert counts.tolist() == shares.counts
        assert set(found) <= set(every)
        assert replacement or len(set(found)) == len(found)


@pytest.mark.parametrize("codec", [None, "zstd:3"])
def test_a_store_that_grew_has_its_share_in_the_next_epoch(tmp_path, codec):
    """Also where chunks that are decoded do not fit the cache, which is told of two epochs."""
    column = Column("int32", axis="tokens", codec=codec, chunk_items=4, shard_items=64)
    both = [
        make(tmp_path / name, n, lambda _: 1, column)
        for name, n in (("squad.zarr", 30), ("new.zarr", 8))
    ]
    options = {"weights": {"squad": 1, "new": 1}, "cache_bytes": 64}
    wanted = visits_of(TraceLoader(both, ["x"], 4, True, **options))
    loader = TraceLoader(both, ["x"], 4, True, **options)
    steps = iter(loader)
    found = [visit for _ in range(2) for visit in visits(next(steps))]
    state = loader.state_dict()
    with StoreWriter.open(both[1]) as writer:
        for i in range(8, 20):
            writer.append(f"t{i}", {"x": np.full(1, i, np.int32)})
    for follow in (False, True):
        loader = TraceLoader(both, ["x"], 4, True, follow=follow, **options)
        loader.load_state_dict(state)
        assert found + visits_of(loader) == wanted
        assert sum(map(len, loader)) == 40


@pytest.mark.parametrize(
    "weights, message",
    [
        ([1, 2], "expected 3, one a store, found 2"),
        ([1, 2, 0], "coqa.zarr, found 0"),
        ([1, None, 3], "nq.zarr, found None"),
        ({"squad": 1, "nq": 1}, "expected one of each of squad, nq, coqa, found squad, nq"),
        ({**WEIGHTS, "hotpot": 1}, "found coqa, squad, nq, hotpot"),
    ],
)
def test_weights_that_do_not_fit_are_refused(stores, weights, message):
    assert message in complaint(ValueError, TraceLoader, stores, shuffle=True, weights=weights)


def test_a_state_is_of_its_shares(stores):
    with pytest.raises(ValueError, match="replacement: expected weights with it"):
        GlobalShuffleSampler(TraceDataset(stores), replacement=True)
    with pytest.raises(ValueError, match="found none of store 2"):
        TraceLoader(stores, shuffle=True, rows=range(41), weights=WEIGHTS)
    state = TraceLoader(stores, shuffle=True, weights=WEIGHTS).state_dict()
    for other in ({}, {"weights": [1, 1, 1]}, {"weights": WEIGHTS, "replacement": True}):
        with pytest.raises(ValueError, match="state_dict: expected shares"):
            TraceLoader(stores, shuffle=True, **other).load_state_dict(state)


def test_weights_are_of_the_names_that_ids_begin_with(tmp_path):
    """Whether ids have these names or not."""
    paths = [tmp_path / name / "qa.zarr" for name in "ab"]
    for path in paths:
        path.parent.mkdir()
        make(path, 4)
    store = open_joined(paths)
    names = [prefix.rstrip("/") for prefix in prefixes_of(store)]
    assert names == ["a/qa", "b/qa"]
    assert read_weights(store, dict(zip(names, (1, 2), strict=True))) == [1, 2]
    assert read_weights(store, {"b/qa/": 2, "a/qa.zarr": 1}) == [1, 2]
    twice = open_joined([paths[0], paths[0]])
    assert read_weights(twice, {"qa#2": 2, "qa": 1}) == [1, 2]
    with pytest.raises(ValueError, match="one of each of a/qa, b/qa, found qa"):
        read_weights(store, {"qa": 1})
