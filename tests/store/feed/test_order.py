"""The orders of `docs/format.md`, and how batches and ranks cut them."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import complaint

from store import GlobalShuffleSampler, permutation
from store.feed import order as order_module
from store.feed.order import Batches, BlockOrder, EpochOrder, current_rank

FORMAT = (Path(__file__).parents[3] / "docs" / "format.md").read_text()
N = 1_000_000


def listed(n, seed, epoch):
    """Order 1 of `docs/format.md` as a list, of nothing but the bits that NumPy promises."""
    numbers = np.random.PCG64([seed, epoch]).random_raw(4 * n + 100).tolist()
    halves = iter([half for number in numbers for half in (number & 0xFFFFFFFF, number >> 32)])
    rows = list(range(n))
    for i in range(n - 1, 0, -1):
        kept_bits = (1 << i.bit_length()) - 1
        other = next(found for half in halves if (found := half & kept_bits) <= i)
        rows[i], rows[other] = rows[other], rows[i]
    return rows


def keyed(n, seed, epoch, position):
    """Order 1 of `docs/format.md` of one position of many rows, in Python's integers."""
    base = next(b for b in itertools.count(math.isqrt(n)) if b * b >= n)
    keys = np.random.SeedSequence([seed, epoch]).generate_state(8, np.uint64).tolist()
    row = position
    while True:
        high, low = divmod(row, base)
        for key in keys:
            x = (low + key) % 2**64
            x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
            high, low = low, (high + ((x ^ (x >> 31)) >> 1)) % base
        row = high * base + low
        if row < n:
            return row


def assert_inverse(order, positions):
    assert order.positions_of(order[positions]).tolist() == list(positions)


@given(n=st.integers(0, 700), seed=st.integers(0, 2**63), epoch=st.integers(0, 2**29))
def test_the_order_is_the_one_written_down(n, seed, epoch):
    assert permutation(n, seed, epoch).tolist() == listed(n, seed, epoch)
    assert_inverse(EpochOrder(n, seed, epoch), range(n))
    assert_inverse(EpochOrder(n, seed, epoch, shuffle=False), range(n))


@given(
    n=st.integers(1, 300) | st.integers(10_000_001, 2**62),
    seed=st.integers(0, 2**63),
    data=st.data(),
)
def test_the_order_of_many_rows_is_the_one_written_down(n, seed, data):
    """Each position on its own; every row once."""
    order = EpochOrder(n, seed, 3, listed=-1 if n < 1000 else None)
    first = 0 if n < 1000 else data.draw(st.integers(0, n - 300))
    positions = range(first, min(n, first + 300))
    rows = order[positions].tolist()
    assert rows[::9] == [keyed(n, seed, 3, position) for position in positions[::9]]
    assert_inverse(order, positions)
    assert n >= 1000 or sorted(rows) == [*range(n)]


VECTORS = re.findall(
    r"^\| (\d+)( tokens)? \| (\d+), (\d+) \| ([^|]+) \| ([^|]+) \|$", FORMAT, re.MULTILINE
)


@pytest.mark.parametrize("n, tokens, seed, epoch, positions, rows", VECTORS)
def test_the_vectors_of_the_document(n, tokens, seed, epoch, positions, rows):
    order = EpochOrder(int(n), int(seed), int(epoch), listed=-1 if tokens else None)
    if positions == "0 to 9":
        positions = ", ".join(map(str, range(10)))
    found = [int(order[range(p, p + 1)][0]) for p in map(int, positions.split(", "))]
    assert found == [int(row) for row in rows.split(", ")]


def test_the_orders_are_pinned(monkeypatch):
    """Whatever the document says: a stored position must go on meaning the same rows. Of NumPy's
    `Generator`, no method's stream is promised (NEP 19)."""
    assert len(VECTORS) == 9
    many = EpochOrder(100_000_007, 3, 1)
    assert many[range(3)].tolist() == [52924764, 56724453, 97537771]
    monkeypatch.delattr(np.random, "Generator")
    assert permutation(10, 0, 1).tolist() == [9, 1, 3, 8, 7, 6, 0, 4, 2, 5]


def test_wrong_arguments():
    for arguments in [(-1, 0, 0), (3, -1, 0), (3, 0, -1)]:
        assert ">= 0" in complaint(ValueError, permutation, *arguments)
    for rank, world_size in [(2, 2), (-1, 2), (0, 0), (0, None), (None, 2)]:
        assert "0 <= rank < world_size" in complaint(ValueError, current_rank, rank, world_size)


def test_many_rows_are_ordered_without_a_list(monkeypatch):
    """Beyond the limit, loaders and samplers use the keyed permutation; below it, the list."""
    monkeypatch.setattr(order_module, "LISTED_ROWS", 300)
    assert permutation(300, 5, 2).tolist() == listed(300, 5, 2)
    monkeypatch.setattr(order_module, "LISTED_ROWS", 299)
    order = [keyed(300, 5, 2, position) for position in range(300)]
    assert permutation(300, 5, 2).tolist() == order
    sampler = GlobalShuffleSampler(300, 5, rank=1, world_size=3)
    sampler.set_epoch(2)
    assert list(sampler) == order[1::3]


def by_turns(shares):
    """The rows of one step of all ranks, one of each rank in turn."""
    longest = max(map(len, shares))
    return [int(share[i]) for i in range(longest) for share in shares if i < len(share)]


@settings(max_examples=200)
@given(
    n=st.integers(0, 60),
    start=st.just(0) | st.integers(0, 60),
    batch_size=st.integers(1, 6),
    world_size=st.integers(1, 5),
    lends=st.booleans(),
    drop_last=st.booleans(),
)
def test_ranks_share_what_is_left(n, start, batch_size, world_size, lends, drop_last):
    """Step by step: as many batches on each rank, none too large, each row once, in order; any
    position is one to start from. With `rows`, the order is of them."""
    start = min(start, n)
    n_left = n - start
    order = EpochOrder(n, 1, 0)
    shares = [
        Batches(order, batch_size, drop_last, lambda rows: rows * 2, start, ranks, lends)
        for ranks in ((rank, world_size) for rank in range(world_size))
    ]
    n_steps, n_over = divmod(n_left, world_size * batch_size)
    n_steps += bool(n_over) and not drop_last
    assert [len(share) for share in shares] == [n_steps] * world_size
    steps = [[share[i] for share in shares] for i in range(n_steps)]
    found = [row for step in steps for row in by_turns(step)]
    wanted = (permutation(n, 1, 0) * 2)[start : n - n_over if drop_last else n]
    assert found == wanted.tolist()
    sizes = [[len(batch) for batch in step] for step in steps]
    assert all(max(of_step) <= batch_size for of_step in sizes)
    n_full = n_steps if drop_last else n_steps - 2
    assert all(of_step == [batch_size] * world_size for of_step in sizes[: max(0, n_full)])
    n_empty = sum(size == 0 for of_step in sizes for size in of_step)
    assert {share.n_empty for share in shares} == {n_empty}
    assert not (n_empty and lends and batch_size > 1 and n_left >= world_size)
    for i in range(n_steps):
        assert {share.position(i) for share in shares} == {start + sum(map(sum, sizes[:i]))}
    for rank, share in enumerate(shares):
        visits = np.concatenate([[], *(step[rank] for step in steps)])
        assert share.visits()[: len(visits)].tolist() == visits.tolist()
        with pytest.raises(IndexError):
            share[n_steps]


def test_a_million_tokens_are_shuffled_well():
    """Against a fair shuffle, with five standard deviations to spare: where a token comes to lie,
    and who its neighbours are."""
    order = EpochOrder(N, 0, 0, listed=-1)[range(N)]
    positions = np.arange(N)
    # moves between hundredths: 10,000 cells of 100
    cells = np.bincount(order // 10_000 * 100 + positions // 10_000, minlength=10_000)
    chi2 = ((cells - 100) ** 2 / 100).sum()
    assert abs(chi2 - 99**2) < 5 * np.sqrt(2 * 99**2)
    # tokens that still follow each other, in either direction: two are expected
    assert (np.abs(np.diff(order)) == 1).sum() < 15
    other = EpochOrder(N, 0, 1, listed=-1)[range(N)]
    lagged = [(order[lag:], order[:-lag]) for lag in (1, 2, 3, 10, 100, 1000, 8192)]
    for one, another in (*lagged, (order, positions), (order, other)):
        assert abs(np.corrcoef(one, another)[0, 1]) < 5 / np.sqrt(N)
    assert (order == other).sum() < 10


def blocks_of(n, epoch=0, block=8, buffer=64):
    return BlockOrder(n, 7, epoch, block, buffer)[range(n)]


def test_the_order_of_blocks_is_the_one_written_down():
    (numbers,) = re.findall(r"^\| 10 tokens \| 2, 4 \| 0, 0 \| 0 to 9 \| ([^|]+) \|$", FORMAT, re.M)
    assert BlockOrder(10, 0, 0, 2, 4)[range(10)].tolist() == list(map(int, numbers.split(", ")))


@pytest.mark.parametrize("n", [0, 1, 7, 8, 64, 65, 517, 1000])
def test_an_order_of_blocks_has_each_row_once(n):
    """In any parts, whether or not the last block and the last window are full. A block is at most
    all rows, so that no walk looks for the few places that have a row."""
    order = blocks_of(n)
    assert sorted(order) == list(range(n))
    parts = [BlockOrder(n, 7, 0, 8, 64)[range(i, min(i + 13, n))] for i in range(0, n, 13)]
    assert np.concatenate([[], *parts]).tolist() == order.tolist()
    assert n < 7 or order.tolist() != blocks_of(n, epoch=1).tolist()
    with pytest.raises(NotImplementedError):
        BlockOrder(n, 7, 0, 8, 64).positions_of(order)
    if 0 < n < 10:
        large = BlockOrder(n, 7, 0, 2**40, 2**41)
        assert large[range(n)].tolist() == blocks_of(n, block=n, buffer=2**41).tolist()
        assert large.announced(range(n)).tolist() == list(range(n))


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
