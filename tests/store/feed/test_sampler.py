import pytest

from store import GlobalShuffleSampler, permutation


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_share_one_order(world_size):
    """All ranks together visit each row once, in the order that one process would, turn by turn."""
    shares = [list(GlobalShuffleSampler(23, 1, rank, world_size)) for rank in range(world_size)]
    turns = [share[i] for i in range(23) for share in shares if i < len(share)]
    assert turns == permutation(23, 1, 0).tolist()
    assert [len(GlobalShuffleSampler(23, 1, r, world_size)) for r in range(world_size)] == list(
        map(len, shares)
    )


def test_sampler_changes_with_the_epoch():
    sampler = GlobalShuffleSampler(range(50), seed=3)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert sorted(sampler) == sorted(first)
