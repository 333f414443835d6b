import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import GlobalShuffleSampler, permutation
from store.feed import order as order_module
from store.feed.order import Batches, EpochOrder, current_rank, keyed_rows

FORMAT = (Path(__file__).parents[3] / "docs" / "format.md").read_text()


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


@given(n=st.integers(0, 700), seed=st.integers(0, 2**63), epoch=st.integers(0, 2**29))
def test_the_order_is_the_one_written_down(n, seed, epoch):
    assert permutation(n, seed, epoch).tolist() == listed(n, seed, epoch)


@given(n=st.integers(10_000_001, 2**62), seed=st.integers(0, 2**63), data=st.data())
def test_the_order_of_many_rows_is_the_one_written_down(n, seed, data):
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    order = EpochOrder(n, seed, 3)
    found = [int(order[range(position, position + 1)][0]) for position in positions]
    assert found == [keyed(n, seed, 3, position) for position in positions]


VECTORS = re.findall(r"^\| (\d+) \| (\d+), (\d+) \| ([^|]+) \| ([^|]+) \|$", FORMAT, re.MULTILINE)


@pytest.mark.parametrize("n, seed, epoch, positions, rows", VECTORS)
def test_the_vectors_of_the_document(n, seed, epoch, positions, rows):
    order = EpochOrder(int(n), int(seed), int(epoch))
    if positions == "0 to 9":
        positions = ", ".join(map(str, range(10)))
    found = [int(order[range(p, p + 1)][0]) for p in map(int, positions.split(", "))]
    assert found == [int(row) for row in rows.split(", ")]


def test_the_orders_are_pinned_with_and_without_a_list():
    """Whatever the document says: a stored position must go on meaning the same rows."""
    assert len(VECTORS) == 5
    assert permutation(10, 0, 1).tolist() == [9, 1, 3, 8, 7, 6, 0, 4, 2, 5]
    many = EpochOrder(100_000_007, 3, 1)
    assert many[range(3)].tolist() == [52924764, 56724453, 97537771]


def test_nothing_rests_on_a_stream_that_numpy_may_change(monkeypatch):
    """NEP 19: of `Generator`, no method's stream is promised."""
    monkeypatch.delattr(np.random, "Generator")
    assert permutation(8, 0, 0).tolist() == PINNED


def test_wrong_arguments():
    for arguments in [(-1, 0, 0), (3, -1, 0), (3, 0, -1)]:
        with pytest.raises(ValueError, match=">= 0"):
            permutation(*arguments)
    for rank, world_size in [(2, 2), (-1, 2), (0, 0), (0, None), (None, 2)]:
        with pytest.raises(ValueError, match="0 <= rank < world_size"):
            current_rank(rank, world_size)


KEYS = np.random.SeedSequence([3, 1]).generate_state(8, np.uint64)


@given(n=st.integers(1, 3000), seed=st.integers(0, 2**63))
def test_the_keyed_permutation_visits_every_row_once(n, seed):
    keys = np.random.SeedSequence(seed).generate_state(8, np.uint64)
    assert sorted(keyed_rows(np.arange(n), n, keys)) == list(range(n))


@pytest.mark.parametrize("n", [10**8, 10**12, 2**62])
def test_the_keyed_permutation_of_many_rows_needs_no_list(n):
    """Positions anywhere: rows in range, all different, and the same together or alone."""
    positions = np.unique(np.random.default_rng(0).integers(0, n, 10_000))
    rows = keyed_rows(positions, n, KEYS)
    assert rows.min() >= 0
    assert rows.max() < n
    assert len(np.unique(rows)) == len(rows)
    assert keyed_rows(positions[17:18], n, KEYS) == rows[17]
    assert abs(rows.mean() / n - 0.5) < 0.02
    assert abs(np.corrcoef(positions, rows)[0, 1]) < 0.05
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < 0.05


def test_many_rows_are_ordered_without_a_list(monkeypatch):
    """Beyond the limit, loaders and samplers use the keyed permutation; below it, the list."""
    listed = permutation(300, 5, 2)
    monkeypatch.setattr(order_module, "LISTED_ROWS", 299)
    keyed = permutation(300, 5, 2)
    assert sorted(keyed) == list(range(300))
    assert keyed.tolist() != listed.tolist()
    sampler = GlobalShuffleSampler(300, 5, rank=1, world_size=3)
    sampler.set_epoch(2)
    assert list(sampler) == keyed[1::3].tolist()


def ranks(n, batch_size, world_size, start=0, **options):
    """The batches of all ranks."""
    order = EpochOrder(n, 1, 0)
    options["start"] = start
    shares = [(rank, world_size) for rank in range(world_size)]
    return [Batches(order, batch_size, ranks=share, **options) for share in shares]


def by_turns(shares):
    """The rows of one step of all ranks, one of each rank in turn."""
    longest = max(map(len, shares))
    return [int(share[i]) for i in range(longest) for share in shares if i < len(share)]


@given(
    n=st.integers(0, 50),
    batch_size=st.integers(1, 9),
    start=st.integers(0, 50),
    world_size=st.integers(1, 3),
    lends=st.booleans(),
)
def test_batches_cut_the_order(n, batch_size, start, world_size, lends):
    """Against slicing of the list; with `rows`, the order is of them."""
    start = min(start, n)
    wanted = (permutation(n, 1, 0) * 2)[start::world_size].tolist()
    options = {"start": start, "ranks": (0, world_size), "lends": lends}
    batches = Batches(EpochOrder(n, 1, 0), batch_size, rows=lambda places: places * 2, **options)
    assert [row for batch in batches for row in batch.tolist()] == wanted
    assert batches.visits().tolist() == wanted
    with pytest.raises(IndexError):
        batches[len(batches)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4])
@pytest.mark.parametrize("lends", [True, False])
def test_the_ranks_share_every_number_of_rows(world_size, batch_size, lends):
    """Step by step: as many batches on each rank, none too large, each row once, in order."""
    for n in range(45):
        shares = ranks(n, batch_size, world_size, lends=lends)
        n_steps = -(-n // (world_size * batch_size))
        assert [len(share) for share in shares] == [n_steps] * world_size
        steps = [[share[i] for share in shares] for i in range(n_steps)]
        assert [row for step in steps for row in by_turns(step)] == permutation(n, 1, 0).tolist()
        sizes = [[len(batch) for batch in step] for step in steps]
        assert all(max(of_step) <= batch_size for of_step in sizes)
        assert all(of_step == [batch_size] * world_size for of_step in sizes[:-2])
        n_empty = sum(size == 0 for of_step in sizes for size in of_step)
        assert {share.n_empty for share in shares} <= {n_empty}
        is_possible = batch_size > 1 and n >= world_size
        assert not (n_empty and lends and is_possible)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_dropping_the_last_step_leaves_out_the_same_on_every_rank(world_size, batch_size):
    for n in range(45):
        n_steps, n_over = divmod(n, world_size * batch_size)
        shares = ranks(n, batch_size, world_size, drop_last=True)
        assert [[len(batch) for batch in share] for share in shares] == [
            [batch_size] * n_steps
        ] * world_size
        rows = [row for step in zip(*shares, strict=True) for row in by_turns(step)]
        assert rows == permutation(n, 1, 0)[: n - n_over].tolist()
        assert {share.n_empty for share in shares} == {0}


@given(
    n=st.integers(1, 300),
    hops=st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 8), st.integers(1, 3)), min_size=1, max_size=8
    ),
)
def test_other_ranks_and_batch_sizes_go_on_from_any_position(n, hops):
    """Each hop makes some steps; every row comes once, in order, as many batches on each rank."""
    position = 0
    seen = []
    for world_size, batch_size, n_steps in [*hops, (3, 4, n)]:
        shares = ranks(n, batch_size, world_size, start=position)
        assert len({len(share) for share in shares}) == 1
        done = min(n_steps, len(shares[0]))
        for i in range(done):
            seen += by_turns([share[i] for share in shares])
        if done < len(shares[0]):
            assert {share.position(done) for share in shares} == {len(seen)}
        position = len(seen)
    assert seen == permutation(n, 1, 0).tolist()


PINNED = [2, 4, 3, 6, 5, 0, 1, 7]


@pytest.mark.parametrize("n", [1, 2, 17, 1000, 10**12])
@pytest.mark.parametrize("options", [{}, {"listed": -1}, {"shuffle": False}])
def test_positions_of_rows(n, options):
    """The inverse of an order, whether it is a list or a keyed permutation."""
    if n > 1000 and options == {}:
        options = {"listed": 0}
    order = EpochOrder(n, 3, 2, **options)
    positions = range(max(0, n - 1000), n)
    assert order.positions_of(order[positions]).tolist() == list(positions)
