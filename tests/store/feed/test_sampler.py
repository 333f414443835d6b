import json

import numpy as np
import pytest
from torch.utils.data import DistributedSampler

from store import GlobalShuffleSampler, permutation


def shares(n, world_size, **options):
    """The samplers of all ranks."""
    return [GlobalShuffleSampler(n, 1, rank, world_size, **options) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_share_one_order(world_size):
    """All ranks together visit each row once, in the order that one process would, turn by turn."""
    rows = [list(sampler) for sampler in shares(23, world_size, drop_last=False)]
    turns = [share[i] for i in range(23) for share in rows if i < len(share)]
    assert turns == permutation(23, 1, 0).tolist()
    assert [len(sampler) for sampler in shares(23, world_size, drop_last=False)] == list(
        map(len, rows)
    )


def test_rows_that_ranks_cannot_share_evenly_need_a_choice():
    with pytest.raises(
        ValueError, match=r"3 ranks.*found 23; drop_last=True leaves out 2 .*=False"
    ):
        GlobalShuffleSampler(23, 1, 0, 3)
    with pytest.raises(ValueError, match="or neither, found rank 0 of None"):
        GlobalShuffleSampler(8, rank=0)
    samplers = shares(23, 3, drop_last=True)
    assert [len(sampler) for sampler in samplers] == [7, 7, 7]
    rows = list(zip(*samplers, strict=True))
    assert [row for step in rows for row in step] == permutation(23, 1, 0)[:21].tolist()
    assert sorted(row for sampler in shares(24, 3) for row in sampler) == list(range(24))


def test_ranks_share_evenly_what_a_state_of_others_left():
    """Also where all rows would divide, or the position is no multiple of the new ranks."""
    state = GlobalShuffleSampler(24, 1, drop_last=True).state_dict(5)
    samplers = shares(24, 4, drop_last=True)
    for sampler in (*samplers, whole := shares(24, 4)[0]):
        sampler.load_state_dict(state)
    rows = list(zip(*samplers, strict=True))
    assert [row for step in rows for row in step] == permutation(24, 1, 0)[5:21].tolist()
    with pytest.raises(ValueError, match=r"4 ranks.*found 19; drop_last=True leaves out 3 "):
        list(whole)
    whole.set_epoch(1)
    assert len(list(whole)) == 6


def test_it_is_a_distributed_sampler():
    """By that Lightning and others know that they need not share its rows once more."""
    assert isinstance(GlobalShuffleSampler(8), DistributedSampler)


def test_a_state_is_json_with_numbers_of_numpy():
    sampler = GlobalShuffleSampler(50, seed=np.int64(3))
    sampler.set_epoch(np.int64(1))
    state = json.loads(json.dumps(sampler.state_dict(np.int64(10))))
    again = GlobalShuffleSampler(50, seed=3)
    again.load_state_dict(state)
    assert list(again) == list(sampler)[10:]


@pytest.mark.parametrize("key", ["epoch", "position", "seed", "n_rows"])
def test_a_state_that_lacks_something_is_refused(key):
    sampler = GlobalShuffleSampler(50)
    state = sampler.state_dict()
    del state[key]
    with pytest.raises(ValueError, match=f"state_dict: expected {key} .*found None"):
        sampler.load_state_dict(state)
