"""Chunks come into memory that readers map, and what stays goes on into the files of the mirror."""

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mirroring import N_ROWS, URL, Node, disk_bytes, wait_until_moved
from oracle import assert_batch, assert_same_row, write_store

from store import Column, Schema, StoreError, TraceStore
from store.check.verify import verify_store
from store.remote import mirrored_array
from store.remote.landing import Landing

SIZE = 64 * 40


@pytest.fixture
def node(tmp_path, local, monkeypatch):
    """A node with an empty cache directory; what waits for ever fails soon."""
    monkeypatch.setattr("store.remote.keeper.WAIT_S", 5.0)
    made = Node(tmp_path / "cache", local)
    made.prepare()
    return made


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_no_byte_is_taken_twice(steps):
    """And what is given back, in any order, may be taken again; room is used if it fits."""
    landing = Landing(SIZE)
    held: list[tuple[int, int]] = []
    for takes, n in steps:
        if takes:
            sizes = [64 * (1 + (n + i) % 3) for i in range(n)]
            starts = landing.take(sizes)
            if starts is None:
                assert sum(sizes) + 2 * 64 * len(held) > SIZE - landing.used
            else:
                held += [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        elif held:
            landing.give_back(*held.pop(n % len(held)))
        spans = sorted(held)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert all(0 <= start < stop <= SIZE for start, stop in spans)
        assert landing.used == sum(stop - start for start, stop in spans)
    for start, stop in held:
        landing.give_back(start, stop)
    assert landing.take([SIZE]) == [0]


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
        assert store.reader.is_here(store.plan()) == (not landing_bytes)


def test_rows_are_right_while_their_chunks_move_and_go(node, rows, monkeypatch):
    """Several read while everything is moved at once, and the limit falls and rises."""
    monkeypatch.setattr("store.remote.moving.IDLE_S", 0.0)
    monkeypatch.setattr("store.remote.moving.CALM_S", 0.0)
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


def noise(codec=None, n_rows=64, lengths=None):
    """A column of bytes that no codec makes smaller, two rows a chunk, in one shard of many."""
    rng = np.random.default_rng(0)
    column = Column("uint8", (1024,), axis="t", codec=codec, chunk_items=32, shard_items=320)
    lengths = lengths or [16] * n_rows
    values = [rng.integers(0, 256, (n, 1024)).astype(np.uint8) for n in lengths]
    return Schema({"x": column}), [(f"id{i}", {"x": value}) for i, value in enumerate(values)]


@contextlib.contextmanager
def noisy(tmp_path, monkeypatch, *options):
    """A node with such a store, of which nothing is fetched that is not asked for, nor moved."""
    monkeypatch.setattr("store.read.cached_array.SMALL_BYTES", 0)
    monkeypatch.setattr("store.remote.moving.IDLE_S", 1e9)
    monkeypatch.setattr("store.remote.moving.POLL_S", 0.01)
    schema, rows = noise(*options)
    node = Node(tmp_path / "cache", write_store(tmp_path / "noise.zarr", schema, rows, 3))
    node.prepare()
    with node.running() as node.server:
        yield node, [row["x"] for _, row in rows]


def array_of(node):
    """The account of the column."""
    (opened,) = node.server.stores.values()
    return opened.array(node.server, "x")


def evict_all(node):
    """As soon as the readers have let go."""
    deadline = time.monotonic() + 5
    while array_of(node).status.any():
        assert time.monotonic() < deadline
        node.server.keeper.set_limit(0)
    node.server.keeper.set_limit(10**8)


class Reused(NamedTuple):
    """Landing memory in which other chunks come just before it is read for the first time."""

    memory: np.ndarray
    reuse: list

    def __getitem__(self, where):
        while self.reuse:
            self.reuse.pop()()
        return self.memory[where]


def test_a_chunk_that_takes_the_place_of_another_is_never_kept_as_that(tmp_path, monkeypatch):
    """Compressed chunks of one size have checksums of their own, and are right by those."""
    with noisy(tmp_path, monkeypatch, "zstd") as (node, values):
        store = node.open()
        store.read([0])
        store.cache.clear()
        held = store.reader.column("x")
        other = node.open()
        steps = [lambda: other.read([10]), lambda: evict_all(node)]
        memory = Reused(held._known.landed.memory, steps)
        held._known = held._known._replace(landed=held._known.landed._replace(memory=memory))
        for i in (0, 1):
            assert np.array_equal(store.read([i])[0]["x"], values[i])
        assert not steps


def test_what_is_fetched_again_is_not_moved_for_a_reader_of_before(tmp_path, monkeypatch):
    """Its ticket was let go, since it seemed to have stopped; what is whole is whole."""
    monkeypatch.setattr("store.remote.keeper.LEASE_S", -1.0)
    with noisy(tmp_path, monkeypatch) as (node, values):
        store = node.open()
        store.read([0])
        keeper = node.server.keeper
        array = array_of(node)
        ticket = keeper.need(array, np.array([0]))
        with keeper._changed:
            keeper._end_leases()
        evict_all(node)
        settle = keeper._settle

        def move_before(*arguments):
            keeper._mover.move_ticket(ticket)
            settle(*arguments)

        monkeypatch.setattr(keeper, "_settle", move_before)
        assert np.array_equal(store.read([0])[0]["x"], values[0])
        monkeypatch.setattr(keeper, "_settle", settle)
        monkeypatch.setattr("store.remote.moving.IDLE_S", 0.0)
        monkeypatch.setattr("store.remote.moving.CALM_S", 0.0)
        for i in range(62):
            store.read([i])
        wait_until_moved(node.server)
        assert not store.reader.column("x").is_here()
        assert np.array_equal(store.read([63])[0]["x"], values[63])


def test_an_empty_row_needs_no_shard(tmp_path, monkeypatch):
    lengths = [16] * 29 + [9, 0, 0, 7, 0]
    with noisy(tmp_path, monkeypatch, None, 0, lengths) as (node, values):
        store = node.open()
        for rows in ([0, 31], [31, 30], [33], [32, 31], [0, 31]):
            found = store.read(rows)
            for i, row in enumerate(rows):
                assert np.array_equal(found[i]["x"], values[row])


def test_bytes_of_a_move_that_failed_are_given_back(tmp_path, monkeypatch):
    """Once their chunks go; until then they have the space that was counted for them."""
    write = mirrored_array.write_at
    room = 900_000  # of a million bytes

    def full(fd, data, position):
        nonlocal room
        room -= len(data)
        if room < 0:
            raise OSError(28, "No space left on device")
        write(fd, data, position)

    with noisy(tmp_path, monkeypatch) as (node, _):
        node.open().read(range(64))
        with monkeypatch.context() as patched:
            patched.setattr(mirrored_array, "write_at", full)
            patched.setattr("store.remote.moving.IDLE_S", 0.0)
            time.sleep(0.2)
        assert node.server.keeper.landing.used
        evict_all(node)
        assert disk_bytes(node.cache_dir) <= node.server.keeper.space.used


def test_a_reader_that_gets_an_error_holds_nothing(tmp_path, monkeypatch):
    def full(fd, data, position):
        raise OSError(28, "No space left on device")

    with noisy(tmp_path, monkeypatch) as (node, values):
        store = node.open(check=True)
        array = array_of(node)
        node.server.keeper.open_shards(array, np.arange(len(array.status)))
        with monkeypatch.context() as patched:
            patched.setattr(mirrored_array, "write_at", full)
            with pytest.raises(StoreError, match="No space left"):
                store.read([5, 6])
            assert not array.pins.any()
        assert np.array_equal(store.read([5])[0]["x"], values[5])


def test_what_will_go_is_not_moved_in_a_pause(tmp_path, monkeypatch):
    """Steps of a training are such pauses; where all finds room, it is moved."""
    with noisy(tmp_path, monkeypatch) as (node, _):
        store = node.open()
        store.read(range(10))
        evict_all(node)
        store.read(range(10))
        monkeypatch.setattr("store.remote.moving.IDLE_S", 0.0)
        time.sleep(0.1)
        assert node.server.keeper.landing.used
        monkeypatch.setattr("store.remote.moving.CALM_S", 0.0)
        wait_until_moved(node.server)
        assert array_of(node).n_in_shards == 5


def test_memory_that_is_not_used_is_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr("store.remote.moving.UNUSED_S", 0.0)
    with noisy(tmp_path, monkeypatch) as (node, values):
        store = node.open()
        landing = node.server.keeper.landing
        store.read(range(10))
        assert os.fstat(landing.fd).st_blocks
        evict_all(node)
        deadline = time.monotonic() + 5
        while os.fstat(landing.fd).st_blocks:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert np.array_equal(store.read([3])[0]["x"], values[3])
