"""Chunks come into memory that readers map, and what stays goes on into the files of the mirror."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mirroring import SCHEMA, URL, Node, make_rows, wait_until_moved
from oracle import assert_batch, assert_same_row, write_store

from store import StoreError, TraceStore
from store.check.verify import verify_store
from store.remote.landing import Landing

N_ROWS = 60
SIZE = 64 * 40


@pytest.fixture(scope="module")
def rows():
    return make_rows(N_ROWS)


@pytest.fixture(scope="module")
def local(rows, tmp_path_factory):
    """The store that is at the address."""
    return write_store(tmp_path_factory.mktemp("remote") / "traces.zarr", SCHEMA, rows, 3)


@pytest.fixture
def node(tmp_path, local, monkeypatch):
    """A node with an empty cache directory; what waits for ever fails soon."""
    monkeypatch.setattr("store.remote.keeper.WAIT_S", 5.0)
    made = Node(tmp_path / "cache", local)
    made.prepare()
    return made


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_no_byte_is_taken_twice(steps):
    """And what is given back, in parts and in any order, may be taken again."""
    landing = Landing(SIZE)
    held: list[tuple[int, int]] = []
    for takes, n in steps:
        if takes:
            start = landing.take(64 * n)
            if start is not None:
                held.append((start, start + 64 * n))
        elif held:
            start, stop = held.pop(n % len(held))
            landing.give_back(start, start + 64)  # a chunk of several that came together
            if stop > start + 64:
                held.append((start + 64, stop))
        spans = sorted(held)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert all(0 <= start < stop <= SIZE for start, stop in spans)
        assert landing.used == sum(stop - start for start, stop in spans)
    for start, stop in held:
        landing.give_back(start, stop)
    assert landing.take(SIZE) == 0
    landing.close()


PARTS = {"split": {"layers": 2}, "states": {"tokens": -1, "layers": slice(1, 3)}}


@pytest.mark.parametrize("landing_bytes", [0, 64 * 1000, 2**24])
def test_rows_are_the_same_from_memory_and_from_files(
    node, rows, local, monkeypatch, landing_bytes
):
    """All in files, some, or all in memory; whole rows, and parts of the split and the whole."""
    monkeypatch.setattr("store.remote.keeper.LANDING_BYTES", landing_bytes)
    monkeypatch.setattr("store.remote.moving.IDLE_S", 1e9)
    expected = TraceStore.open(local).read([3, 40, 3, 59], select=PARTS)
    with node.running() as server:
        store = node.open()
        for order in (range(N_ROWS), [59, 0, 17, 17, 3]):
            assert_batch(store.read(order), [rows[i][1] for i in order])
        assert_same_row(store[17], rows[17][1])
        found = store.read([3, 40, 3, 59], select=PARTS)
        for name, value in expected.columns.items():
            assert str(found.columns[name]) == str(value)
        assert bool(server.keeper.landing.used) == bool(landing_bytes)
        assert store.reads.is_mirrored_whole(store.plan()) == (not landing_bytes)


def test_rows_are_right_while_their_chunks_move_and_go(node, rows, monkeypatch):
    """Several read while everything is moved at once, and the limit falls and rises."""
    monkeypatch.setattr("store.remote.moving.IDLE_S", 0.0)
    monkeypatch.setattr("store.remote.moving.POLL_S", 0.001)
    monkeypatch.setattr("store.remote.keeper.LANDING_BYTES", 64 * 8000)
    until = time.monotonic() + 2
    with node.running() as server:
        stores = [node.open() for _ in range(3)]

        def read(seed: int) -> int:
            order = np.random.default_rng(seed)
            n = 0
            while time.monotonic() < until:
                some = order.choice(N_ROWS, 5, replace=False).tolist()
                assert_batch(stores[seed].read(some), [rows[i][1] for i in some])
                n += 1
            return n

        def evict() -> None:
            while time.monotonic() < until:
                for limit in (0, 10**8):
                    server.keeper.set_limit(limit)
                    time.sleep(0.005)

        evictor = threading.Thread(target=evict)
        evictor.start()
        with ThreadPoolExecutor(3) as pool:
            assert min(pool.map(read, range(3))) > 3
        evictor.join()
        wait_until_moved(server)
        assert server.keeper.space.used == used_of_new(node, server)


def used_of_new(node, server) -> int:
    """What a count from the beginning gives."""
    arrays = server.keeper.space.arrays
    held = sum(int(a.n_bytes[a.status != 0].sum()) + a.opened_bytes() for a in arrays)
    reserved = sum(one.store.reserved_bytes for one in server.stores.values())
    return held + reserved + 64 * 1024 + sum(server.keeper.space._closed.values())


def test_what_is_checked_again_is_read_from_files(node, rows, monkeypatch):
    """By a reader that checks, and by `verify`."""
    with node.running():
        assert_batch(node.open(check=True).read(range(N_ROWS)), [row for _, row in rows])
        store = node.open()
        store.read(range(10))
        monkeypatch.setenv("TRACE_STORE_CACHE_DIR", str(node.cache_dir))
        assert verify_store(URL).problems == []


def test_a_full_disk_stops_nobody_whose_chunks_fit_into_memory(node, rows, monkeypatch):
    """Beyond, the reader is told; nothing is lost once there is room."""

    def full(fd, data, position):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("store.remote.moving.IDLE_S", 0.0)
        with node.running() as server:
            store = node.open()
            store.read([0], ["label"])
            (opened,) = server.stores.values()
            states = opened.array(server, "states")
            server.keeper.open_shards(states, np.arange(len(states.status)))
            for module in ("mirrored_array", "chunk_fetch"):
                patched.setattr(f"store.remote.{module}.write_at", full)
            assert_same_row(store.read([1, 2], ["states"])[0], {"states": rows[1][1]["states"]})
            time.sleep(0.3)
            assert server.keeper.landing.used
            patched.setattr(server.keeper.landing, "take", lambda n_bytes: None)
            for limit in (0, 10**8):  # nothing is left
                server.keeper.set_limit(limit)
            with pytest.raises(StoreError, match="No space left"):
                store.read([9], ["states"])
            patched.undo()
            assert_batch(store.read(range(N_ROWS)), [row for _, row in rows])


def test_memory_of_another_process_is_never_read(node, rows):
    """A reader of before has the memory of before; the next process makes its own."""
    with node.running():
        store = node.open()
        store.read(range(5))
        before = store.mirror.landed
    with node.running() as server:
        assert_batch(store.read(range(N_ROWS)), [row for _, row in rows])
        assert store.mirror.landed.number == server.keeper.landing.number != before.number
        assert np.count_nonzero(before.memory[: 2**20])
