"""Stores that grow under a loader: states of fewer rows, and loaders that follow a writer."""

import json
import os
import signal
import time
from functools import partial

import numpy as np
import pytest
from faults import Quick, start, wait
from small import one_column
from stopping import visits

from store import Column, StoreWriter, TokenLoader, TraceLoader, TraceStore, permutation
from store.read.joined.joined_store import open_joined

RAGGED = Column("int32", axis="tokens")


def make(path, n):
    return one_column(path, "x", RAGGED, [np.full(3, i, np.int32) for i in range(n)])


def grow(path, n, every=10**6, pause_s=0.0):
    with StoreWriter.open(path, Quick()) as writer:
        for i in range(len(writer), n):
            writer.append(f"t{i}", {"x": np.full(3, i, np.int32)})
            if i % every == every - 1:
                writer.commit()
                time.sleep(pause_s)


@pytest.mark.parametrize("kind", [TraceLoader, TokenLoader])
@pytest.mark.parametrize("is_joined", [False, True])
def test_an_epoch_goes_on_over_the_rows_that_it_had(tmp_path, kind, is_joined):
    last = make(tmp_path / "s", 20)
    others = [make(tmp_path / "other", 5)] if is_joined else []

    def opened():
        return open_joined([*others, TraceStore.open(last.path)])

    def rest(loader):
        return [visit for batch in loader for visit in visits(batch)]

    wanted = rest(kind(opened(), ["x"], 4, True))
    loader = kind(opened(), ["x"], 4, True)
    found = visits(next(iter(loader)))
    state = json.dumps(loader.state_dict())
    grow(last.path, 33)
    loader = kind(opened(), ["x"], 7, True, num_workers=2)
    loader.load_state_dict(json.loads(state))
    assert loader.state_dict() == json.loads(state)
    assert found + rest(loader) == wanted
    later = rest(loader)
    fresh = kind(opened(), ["x"], 7, True)
    fresh.set_epoch(1)
    assert later == rest(fresh)
    assert {row for row, _ in later} == set(range(len(opened())))


def test_several_processes_cannot_follow(tmp_path):
    """Each would see other commits."""
    store = make(tmp_path / "s", 5)
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


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
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
        n = len(TraceStore.open(path))
        writer = start(partial(grow, path, 10**5, every=10, pause_s=0.005))
        try:
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
                    if time.monotonic() > stop:
                        os.kill(writer, signal.SIGKILL)
                sizes.append(skipped + len(rows))
                assert rows == permutation(sizes[-1], 0, epoch)[skipped:].tolist()
            next(iter(loader))
            state = json.dumps(loader.state_dict())
        finally:
            os.kill(writer, signal.SIGKILL)
            assert wait(writer) == -signal.SIGKILL
    list(loader)
    assert sum(map(len, loader)) == len(TraceStore.open(path)) > 20
    assert sizes == sorted(sizes)
