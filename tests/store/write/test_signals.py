"""Signals that come while a row is written wait until it is."""

import os
import signal
import threading
from contextlib import suppress

import pytest

from store.write.build import HeldSignals


@pytest.fixture(autouse=True)
def python_handles_ctrl_c():
    """As in a terminal; a job in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
