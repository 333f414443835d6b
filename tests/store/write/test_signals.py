"""Signals that come while a row is written wait until it is."""

import os
import signal
import threading
from contextlib import suppress

import numpy as np
import pytest

from store import Column, Schema
from store.write import writer
from store.write.behind import WriteBehind
from store.write.build import build_store, open_begun
from store.write.signals import HeldSignals


@pytest.fixture(autouse=True)
def python_handles_ctrl_c():
    """As in a terminal; a job in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_waits_until_the_block_ends():
    done = []

    def work():
        with HeldSignals() as signals:
            with signals.held():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("the block")
            done.append("after it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["the block"]


def test_a_signal_between_blocks_comes_at_once():
    with HeldSignals() as signals:
        with signals.held():
            pass
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_as_before():
    """Also after an error, and where a signal ends the process at once."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with suppress(ZeroDivisionError), HeldSignals():
        assert signal.getsignal(signal.SIGTERM) == before[1]
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_builds_as_well():
    """Only the main thread may set handlers."""
    found = []

    def work():
        with HeldSignals() as signals, signals.held():
            found.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]


class Rows:
    """Four rows."""

    schema, provenance, remarks = Schema({"x": Column("int32", axis="t")}), {}, {}

    def rows(self, start=0):
        for i in range(start, 4):
            yield f"t{i}", {"x": np.full(3, i, np.int32)}


@pytest.mark.parametrize("row", [1, 3])
def test_ctrl_c_while_another_thread_appends_loses_no_row(tmp_path, monkeypatch, row):
    """What the source had made is written and committed, and the same build goes on."""
    path = tmp_path / "s.zarr"
    encode = writer.encode_row

    def interrupted(values, columns, where):
        if where == f"trace 't{row}'":
            os.kill(os.getpid(), signal.SIGINT)
        return encode(values, columns, where)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "encode_row", interrupted)
        with pytest.raises(KeyboardInterrupt) as stopped:
            build_store(path, Rows(), behind=WriteBehind(1))
    n_kept = len(open_begun(path))
    assert row < n_kept <= 4
    assert f"{n_kept} traces are kept in" in stopped.value.__notes__[0]
    store = build_store(path, Rows(), behind=WriteBehind(1))
    assert store.ids[:] == ["t0", "t1", "t2", "t3"]
    for i, trace in enumerate(store):
        assert trace["x"].tolist() == [i] * 3


@pytest.mark.parametrize("row", [1, 3])
def test_ctrl_c_in_the_middle_of_an_append_loses_no_row(tmp_path, monkeypatch, row):
    """The row is finished, all of them are committed, and the same build goes on."""
    path = tmp_path / "s.zarr"
    encode = writer.encode_row

    def interrupted(values, columns, where):
        if where == f"trace 't{row}'":
            os.kill(os.getpid(), signal.SIGINT)
        return encode(values, columns, where)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "encode_row", interrupted)
        with pytest.raises(KeyboardInterrupt) as stopped:
            build_store(path, Rows())
    n_kept = row + 1
    assert len(open_begun(path)) == n_kept
    assert f"{n_kept} traces are kept in" in stopped.value.__notes__[0]
    assert build_store(path, Rows()).ids[:] == ["t0", "t1", "t2", "t3"]
