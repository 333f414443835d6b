"""Batches on a device: the order of copies, events and waits, on a device that is none."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from small import complaint, store_columns

from store import Column, CorruptError, TokenLoader, TraceLoader
from store.feed.device import HELD, DeviceCopies

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the fake stands for a GPU")


class FakeCuda:
    """Streams and events that write down what is asked of them; copies take some queries."""

    def __init__(self):
        self.log = []
        self.n_pending = self.most_pending = 0

    def Stream(self, device):
        return "side"

    def Event(self):
        return FakeEvent(self, sum(entry[0] == "record" for entry in self.log))

    @contextmanager
    def stream(self, stream):
        self.log.append(("enter", stream))
        yield
        self.log.append(("leave", stream))

    def current_stream(self, device):
        return FakeStream(self)


class FakeStream:
    def __init__(self, cuda):
        self.cuda = cuda

    def wait_event(self, event):
        self.cuda.log.append(("wait", event.number))


class FakeEvent:
    def __init__(self, cuda, number):
        self.cuda, self.number = cuda, number

    def record(self, stream):
        self.cuda.log.append(("record", self.number))
        self.cuda.n_pending += 1
        self.cuda.most_pending = max(self.cuda.most_pending, self.cuda.n_pending)

    def query(self):
        return False

    def synchronize(self):
        self.cuda.n_pending -= 1
        self.cuda.log.append(("synchronize", self.number))


@pytest.fixture
def path(tmp_path):
    columns = {
        "x": (Column("int32", axis="t"), [np.full(i % 3, i) for i in range(20)]),
        "text": ("utf8", map(str, range(20))),
    }
    return store_columns(tmp_path / "s.zarr", columns).path


@pytest.mark.parametrize("kind", [TraceLoader, TokenLoader])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_a_loader_without_a_device(path, kind, num_workers):
    plain = kind(path, ["x", "text"], 3, True)
    loader = kind(path, ["x", "text"], 3, True, num_workers=num_workers)
    cuda = FakeCuda()
    loader.copies = DeviceCopies(torch.device("cpu"), cuda)
    states = []
    for wanted, batch in zip(plain, loader, strict=True):
        assert batch.rows.tolist() == wanted.rows.tolist()
        assert batch["text"] == wanted["text"]
        values, others = (
            one["x"] if kind is TokenLoader else one["x"].values for one in (batch, wanted)
        )
        assert values.tolist() == others.tolist()
        states.append((loader.state_dict(), plain.state_dict()))
    assert all(one == other for one, other in states)
    n = len(states)
    assert [number for what, number in cuda.log if what == "wait"] == list(range(n))
    assert cuda.most_pending == HELD
    for number in range(n - 1):  # one is on its way before the one before it is waited for
        assert cuda.log.index(("record", number + 1)) < cuda.log.index(("wait", number))
    sides = [what for what, _ in cuda.log if what in ("enter", "record", "leave")]
    assert sides == ["enter", "record", "leave"] * n


def test_an_error_comes_after_the_batches_before_it(path):
    def batches():
        yield from list(TraceLoader(path, ["x"], 8))[:2]
        raise CorruptError("the third")

    copies = DeviceCopies(torch.device("cpu"), FakeCuda()).of(batches())
    assert [len(next(copies)), len(next(copies))] == [8, 8]
    with pytest.raises(CorruptError, match="the third"):
        next(copies)


def test_without_cuda_a_device_is_refused(path):
    for device in ("cuda", "cuda:3"):
        said = complaint(ValueError, TraceLoader, path, device=device)
        assert said == f"device: expected one of 0 of CUDA, found {device!r}; leave it out"
