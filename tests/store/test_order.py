import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import GlobalShuffleSampler, permutation
from store.order import rank_positions


@given(n=st.integers(0, 500), seed=st.integers(0, 2**63), epoch=st.integers(0, 1000))
def test_an_epoch_visits_every_row_once(n, seed, epoch):
    assert sorted(permutation(n, seed, epoch)) == list(range(n))


def test_it_is_a_pure_function_of_seed_and_epoch():
    """Also across versions: a stored position must go on meaning the same rows."""
    assert permutation(8, 0, 0).tolist() == PINNED
    assert np.array_equal(permutation(1000, 5, 3), permutation(1000, 5, 3))


def test_epochs_and_seeds_differ_and_do_not_add_up():
    orders = {permutation(100, seed, epoch).tobytes() for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_it_is_a_global_shuffle():
    """Any row may come first: 2,000 epochs of 20 rows, each row first about 100 times."""
    firsts = np.bincount([permutation(20, 0, epoch)[0] for epoch in range(2000)], minlength=20)
    assert firsts.min() > 60
    assert firsts.max() < 150


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_share_one_order(world_size):
    """All ranks together visit each row once, in the order that one process would, turn by turn."""
    shares = [list(GlobalShuffleSampler(23, 1, rank, world_size)) for rank in range(world_size)]
    turns = [share[i] for i in range(23) for share in shares if i < len(share)]
    assert turns == permutation(23, 1, 0).tolist()
    assert [len(GlobalShuffleSampler(23, 1, r, world_size)) for r in range(world_size)] == list(map(len, shares))


def test_sampler_changes_with_the_epoch():
    sampler = GlobalShuffleSampler(range(50), seed=3)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert sorted(sampler) == sorted(first)


def test_wrong_arguments():
    for arguments in [(-1, 0, 0), (3, -1, 0), (3, 0, -1)]:
        with pytest.raises(ValueError, match=">= 0"):
            permutation(*arguments)
    for rank, world_size in [(2, 2), (-1, 2), (0, 0)]:
        with pytest.raises(ValueError, match="0 <= rank < world_size"):
            rank_positions(10, 0, rank, world_size)


PINNED = [2, 4, 3, 6, 5, 0, 1, 7]
