"""The global shuffle as a sampler: shares of ranks, and exact resume."""

import json

import numpy as np
import pytest
from small import complaint
from torch.utils.data import DataLoader, DistributedSampler

from store import GlobalShuffleSampler, permutation


def shares(n, world_size, **options):
    """The samplers of all ranks."""
    return [GlobalShuffleSampler(n, 1, rank, world_size, **options) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_share_one_order(world_size):
    """All ranks together visit each row once, in the order that one process would, turn by turn;
    `drop_last` leaves out what they cannot share evenly."""
    rows = [list(sampler) for sampler in shares(23, world_size, drop_last=False)]
    turns = [share[i] for i in range(23) for share in rows if i < len(share)]
    assert turns == permutation(23, 1, 0).tolist()
    lengths = [len(sampler) for sampler in shares(23, world_size, drop_last=False)]
    assert lengths == [len(share) for share in rows]
    even = list(zip(*shares(23, world_size, drop_last=True), strict=True))
    assert [row for step in even for row in step] == turns[: 23 - 23 % world_size]


def test_rows_that_ranks_cannot_share_evenly_need_a_choice():
    said = complaint(ValueError, GlobalShuffleSampler, 23, 1, 0, 3)
    assert "expected rows that 3 ranks can share evenly, found 23; drop_last=True leaves" in said
    assert "out 2 of them, drop_last=False gives" in said
    assert "found rank 0 of None" in complaint(ValueError, GlobalShuffleSampler, 8, rank=0)
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


@pytest.mark.parametrize("stop", range(6))
def test_a_plain_data_loader_resumes(stop):
    """A state is JSON, also of numbers of NumPy."""
    order = permutation(23, 0, 1).tolist()
    sampler = GlobalShuffleSampler(23, seed=np.int64(0))
    sampler.set_epoch(np.int64(1))
    steps = iter(DataLoader(range(23), 4, sampler=sampler))
    found = [row for _ in range(stop) for row in next(steps).tolist()]
    state = json.loads(json.dumps(sampler.state_dict()))
    assert state == sampler.state_dict(np.int64(len(found)))
    again = GlobalShuffleSampler(23)
    again.load_state_dict(state)
    again.set_epoch(1)
    assert len(again) == 23 - len(found)
    assert found + list(again) == order
    assert list(again) == order


@pytest.mark.parametrize("key", ["epoch", "position", "seed", "n_rows"])
def test_a_state_that_lacks_something_is_refused(key):
    sampler = GlobalShuffleSampler(50)
    state = sampler.state_dict() | {key: None}
    said = complaint(ValueError, sampler.load_state_dict, state)
    assert said.startswith(f"state_dict: expected {key} ")
    assert said.endswith("found None")
