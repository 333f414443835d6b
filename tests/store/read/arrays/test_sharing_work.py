"""The work of one batch, shared among threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from store.read.arrays.read_options import SHARED_BYTES, Threads


@pytest.mark.parametrize("n_items", [0, 1, 7, 1000])
@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_each_item_is_worked_on_once_neighbours_together(n_items, n_threads):
    runs = []
    with ThreadPoolExecutor(n_threads) as pool:
        Threads(pool, n_threads).run(runs.append, list(range(n_items)), SHARED_BYTES)
    assert sorted(item for run in runs for item in run) == list(range(n_items))
    assert all(run == list(range(run[0], run[0] + len(run))) for run in runs)


def test_a_thread_that_gets_no_core_holds_up_nothing():
    """The pool's only thread is busy until all the work is done."""
    is_done = threading.Event()
    runs = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(is_done.wait)
        Threads(pool, 2).run(runs.append, list(range(100)), SHARED_BYTES)
        is_done.set()
    assert sorted(item for run in runs for item in run) == list(range(100))


@pytest.mark.parametrize("own", [True, False])
def test_an_error_of_any_thread_is_raised_and_ends_the_work(own):
    caller = threading.current_thread()
    has_failed = threading.Event()
    runs = []

    def work(run):
        if (threading.current_thread() is caller) == own:
            has_failed.set()
            raise OSError("broken")
        has_failed.wait()
        time.sleep(0.01)
        runs.append(run)

    with ThreadPoolExecutor(1) as pool, pytest.raises(OSError, match="broken"):
        Threads(pool, 2).run(work, list(range(100)), SHARED_BYTES)
    assert len(runs) < 7  # of 8: whoever works on stops, whoever has failed
