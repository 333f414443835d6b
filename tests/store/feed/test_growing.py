"""Stores that grow under a loader: states of fewer rows, and loaders that follow a writer."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from small import one_column
from stopping import visits
from torch.utils.data import DataLoader

from store import (
    Column,
    GlobalShuffleSampler,
    StoreWriter,
    TokenLoader,
    TraceLoader,
    TraceStore,
    permutation,
)
from store.read.joined.joined_store import open_joined

RAGGED = Column("int32", axis="tokens")
WRITER = """
import sys, time
import numpy as np
from store import StoreWriter
with StoreWriter.open(sys.argv[1]) as writer:
    for i in range(len(writer), 100000):
        writer.append(f"t{i}", {"x": np.full(3, i, np.int32)})
        if i % 10 == 9:
            writer.commit()
            time.sleep(0.005)
"""


def make(path, n):
    return one_column(path, "x", RAGGED, [np.full(3, i, np.int32) for i in range(n)])


def grow(store, n):
    with StoreWriter.open(store.path) as writer:
        for i in range(len(store), n):
            writer.append(f"t{i}", {"x": np.full(3, i, np.int32)})


@pytest.mark.parametrize("kind", [TraceLoader, TokenLoader])
@pytest.mark.parametrize("is_joined", [False, True])
def test_an_epoch_goes_on_over_the_rows_that_it_had(tmp_path, kind, is_joined):
    last = make(tmp_path / "s", 20)
    others = [make(tmp_path / "other", 5)] if is_joined else []

    def opened():
        return open_joined([*others, TraceStore.open(last.path)])

    loader = kind(opened(), ["x"], 4, True)
    wanted = [visit for batch in loader for visit in visits(batch)]
    loader = kind(opened(), ["x"], 4, True)
    found = visits(next(iter(loader)))
    state = json.dumps(loader.state_dict())
    grow(last, 33)
    loader = kind(opened(), ["x"], 7, True, num_workers=2)
    loader.load_state_dict(json.loads(state))
    assert loader.state_dict() == json.loads(state)
    found += [visit for batch in loader for visit in visits(batch)]
    assert found == wanted
    later = [visit for batch in loader for visit in visits(batch)]
    fresh = kind(opened(), ["x"], 7, True)
    fresh.set_epoch(1)
    assert later == [visit for batch in fresh for visit in visits(batch)]
    assert {row for row, _ in later} == set(range(len(opened())))


def test_what_cannot_follow(tmp_path):
    store = make(tmp_path / "s", 5)
    with pytest.raises(ValueError, match="follow: expected False with rows"):
        TraceLoader(store, rows=[1], follow=True)
    with pytest.raises(ValueError, match="follow: expected one process, found 2"):
        next(iter(TraceLoader(store, rank=0, world_size=2, follow=True)))


def test_stats(tmp_path):
    loader = TraceLoader(make(tmp_path / "s", 20), ["x"], 4, num_workers=2)
    assert loader.stats()["waited_s"] == 0
    list(loader)
    stats = loader.stats()
    assert stats["waited_s"] > 0
    assert stats["read_s"] > 0
    assert stats["read_bytes"] == 20 * 3 * 4


@pytest.mark.parametrize("stop", range(6))
def test_a_plain_data_loader_resumes(stop):
    order = permutation(23, 0, 1).tolist()
    sampler = GlobalShuffleSampler(23)
    sampler.set_epoch(1)
    steps = iter(DataLoader(range(23), 4, sampler=sampler))
    found = [row for _ in range(stop) for row in next(steps).tolist()]
    state = json.loads(json.dumps(sampler.state_dict()))
    assert state == sampler.state_dict(len(found))
    again = GlobalShuffleSampler(23)
    again.load_state_dict(state)
    again.set_epoch(1)
    assert len(again) == 23 - len(found)
    assert found + list(again) == order
    assert list(again) == order
    with pytest.raises(ValueError, match="state_dict: expected n_rows 24, found 23"):
        GlobalShuffleSampler(24).load_state_dict(state)


@pytest.mark.parametrize("n_kills", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_loader_follows_writers_that_are_killed_and_resumes(tmp_path, n_kills):
    """Each writer goes on where the last commit is, and each loader in the middle of an epoch; an
    epoch is the permutation of what was committed when it began, and every value is that of its
    row."""
    path = make(tmp_path / "s", 20).path
    rng = np.random.default_rng(0)
    sizes = []
    state = None
    for _ in range(n_kills):
        loader = TraceLoader(path, ["x"], 5, True, follow=True, num_workers=2)
        if state:
            loader.load_state_dict(json.loads(state))
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
        try:
            n = len(TraceStore.open(path))
            while len(TraceStore.open(path)) == n:
                time.sleep(0.01)
            stop = time.monotonic() + rng.random() / 2
            first_epoch = loader.epoch
            while time.monotonic() < stop or loader.epoch < first_epoch + 2:
                epoch, skipped = loader.epoch, loader.state_dict()["position"]
                rows = []
                for batch in loader:
                    numbers = batch.rows.numpy()
                    assert batch["x"].values.tolist() == np.repeat(numbers, 3).tolist()
                    rows += numbers.tolist()
                    if writer.poll() is None and time.monotonic() > stop:
                        writer.send_signal(signal.SIGKILL)
                sizes.append(skipped + len(rows))
                assert rows == permutation(sizes[-1], 0, epoch)[skipped:].tolist()
            next(iter(loader))
            state = json.dumps(loader.state_dict())
        finally:
            writer.kill()
            writer.wait()
    list(loader)
    assert sum(map(len, loader)) == len(TraceStore.open(path)) > 20
    assert sizes == sorted(sizes)
