"""Many processes that read one store through one mirror: with a limit, and killed all the time."""

import os
import random
import signal
import time
from importlib.util import find_spec

import pytest
from mirroring import SCHEMA, column_bytes, make_rows, watched
from oracle import write_store
from reading import Readers
from test_fetching_process import fetchers, wait_until
from web_server import WebServer

from store import TraceStore

N_ROWS = 300
STATED_S = 60.0  # to import, to wait, and to read an epoch on a busy machine
N_KILLS = 100

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("obstore") is None, reason="pip install '.[remote]'"),
]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The store that is at the address."""
    path = tmp_path_factory.mktemp("many") / "traces.zarr"
    return write_store(path, SCHEMA, make_rows(N_ROWS), 3)


@pytest.fixture
def served(local, tmp_path):
    """What all readers get: of a server that bounds them less than one of S3 in Python does."""
    server = WebServer(local.parent)
    url = f"{server.url}/files/{local.name}"
    yield {"url": url, "cache_dir": tmp_path / "cache", "local": local}
    server.close()


def test_eight_ranks_fetch_each_byte_once(served, local):
    """With two threads each, and a cache that holds all; together they read each row once."""
    store = TraceStore.open(served["url"], 10**9, cache_dir=served["cache_dir"])
    n_before = store.mirror.stats()["fetched_bytes"]
    options = {"limit": 10**9, "epochs": 1, "num_workers": 2, "seed": 3, "world_size": 8}
    with Readers(8, N_ROWS, **served, **options) as readers:
        for rank in range(8):
            readers.start(rank, rank=rank)
        assert readers.join(STATED_S)
        assert [*readers.n_read] == [1] * N_ROWS
    counts = store.mirror.stats()
    assert counts["fetched_twice_bytes"] == 0
    fetched = counts["fetched_bytes"] - n_before
    assert 0.9 * column_bytes(local) < fetched <= 1.05 * column_bytes(local)


def test_the_disk_never_has_more_than_the_limit(served, local):
    """Eight readers, each in its own order, and room for a fifth of what they read."""
    limit = column_bytes(local) // 5
    options = {"limit": limit, "epochs": 2}
    with (
        Readers(8, N_ROWS, **served, **options) as readers,
        watched(served["cache_dir"]) as seen,
    ):
        for number in range(8):
            readers.start(number, seed=number)
        assert readers.join(4 * STATED_S)
    print(f"{len(seen)} times, at most {max(seen) / limit:.3f} of the limit")
    assert len(seen) > 100
    assert max(seen) <= limit


def test_whoever_is_killed_holds_nobody_up(served, local):
    """Readers and the fetching process, in turn at random: no value is wrong, nobody waits for
    ever, the disk stays below the limit, and nothing is left in the end.

    The longest wait, which is printed, depends on what else the machine does."""
    limit = column_bytes(local) // 3
    cache_dir = served["cache_dir"]
    dice = random.Random(0)  # noqa: S311
    waits = []
    n_fetchers = 0
    options = {"limit": limit, "epochs": 10**6}
    with Readers(4, N_ROWS, **served, **options) as readers, watched(cache_dir) as seen:
        for number in range(4):
            readers.start(number, seed=number)
        for _ in range(N_KILLS):
            end = time.monotonic() + dice.uniform(0.2, 0.8)
            # one that was killed is started again
            while time.monotonic() < end or not fetchers(cache_dir):
                waits.append(readers.longest_wait())
                time.sleep(0.02)
            running = fetchers(cache_dir)
            if running and dice.random() < 0.5:
                os.kill(dice.choice(running), signal.SIGKILL)
                n_fetchers += 1
            else:
                number = dice.randrange(4)
                readers.kill(number)
                readers.start(number, seed=number)
            assert all(process.exitcode is None for process in readers.processes.values())
        for number in range(4):
            readers.kill(number)
            readers.start(number, seed=number, epochs=1)
        assert readers.join(STATED_S)
        assert min(readers.n_read) > 0
    print(f"{n_fetchers} of the fetching process, longest wait {max(waits):.2f} s")
    assert n_fetchers > N_KILLS / 4
    assert max(waits) < STATED_S
    assert len(seen) > 100
    assert max(seen) <= limit
    wait_until(lambda: not fetchers(cache_dir))
