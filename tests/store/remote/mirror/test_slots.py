"""Slots: chunks come into the slab of a cache, are copied, and give way to others."""

import os
import shutil
import threading
import time
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from damage import flip
from hypothesis import given
from hypothesis import strategies as st
from mirroring import N_ROWS, SCHEMA, URL, assert_no_slot_is_lost, disk_bytes
from oracle import assert_batch, write_store

from store import Column, CorruptError, NotFoundError, Schema, StoreError
from store.check.verify import verify_store
from store.remote.cache.chunk_index import BLOCK, are_here, positions_of
from store.remote.cache.fetcher.fetched_column import REQUEST_BYTES, find_heads
from store.remote.cache.fetcher.inventory import choose_victims
from store.remote.cache.fetcher.slab import Slab
from store.remote.cache.fetcher.writable_index import WritableIndex
from store.remote.cache.location import SLAB_FILE
from store.remote.cache.messages import UNKNOWN
from store.remote.cache.reader import chunks
from store.remote.cache.reader.chunks import CacheState

N_BLOCKS = 40
MB = 1024 * 1024
NOTHING = np.empty(0, np.int64)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_no_byte_is_taken_twice(tmp_path_factory, steps):
    """And what is given back, in any order, may be taken again; room is used if it fits."""
    made = Slab(tmp_path_factory.mktemp("slab") / "chunks")
    made.resize(N_BLOCKS * BLOCK, NOTHING, NOTHING)
    held: list[tuple[int, int]] = []
    for takes, n in steps:
        if takes:
            sizes = [BLOCK * (1 + (n + i) % 3) for i in range(n)]
            starts = made.take(sizes)
            if starts is None:
                assert sum(sizes) + 2 * BLOCK * len(held) > made.free_bytes
            else:
                held += [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        elif held:
            start, stop = held.pop(n % len(held))
            made.give_back(np.array([start]), np.array([stop]))
        spans = sorted(held)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert all(0 <= start < stop <= N_BLOCKS * BLOCK for start, stop in spans)
        assert made.n_bytes - made.free_bytes == sum(stop - start for start, stop in spans)
    for start, stop in held:
        made.give_back(np.array([start]), np.array([stop]))
    assert made.take([N_BLOCKS * BLOCK]) == [0]


def test_a_slab_that_becomes_smaller_gives_blocks_back(tmp_path):
    """Also those that are written while it does; what is taken below stays."""
    made = Slab(tmp_path / "chunks")
    made.resize(8 * BLOCK, NOTHING, NOTHING)
    starts = made.take([2 * BLOCK] * 4)
    made.write([memoryview(b"x" * 2 * BLOCK)] * 4, np.array(starts))
    made.resize(3 * BLOCK, np.array(starts[:2]), np.array(starts[:2]) + 2 * BLOCK)
    assert disk_bytes(tmp_path) == 3 * BLOCK
    made.write([memoryview(b"x" * BLOCK)], np.array([3 * BLOCK]))
    made.give_back(np.array(starts[1:2]), np.array(starts[1:2]) + 2 * BLOCK)
    assert disk_bytes(tmp_path) == 3 * BLOCK
    assert made.read(0, 4) == b"xxxx"
    assert made.take([BLOCK]) == [2 * BLOCK]
    assert made.take([BLOCK]) is None
    assert made.file_bytes >= 8 * BLOCK  # readers have it mapped


def test_a_reader_that_checks_compares_each_chunk_before_its_first_use(noisy, monkeypatch):
    """Also what others have read, and what has rotted since it began to read; so does `verify`."""
    node, values = noisy()
    checking, other = node.open(check=True), node.open()

    def rot():
        other.read(range(len(values)))
        with (node.cache_dir / SLAB_FILE).open("r+b") as file:
            file.write(bytes(2 * sum(value.nbytes for value in values)))

    checking.read([0])
    rot()
    for i in range(2, len(values)):  # the first two are of one chunk
        assert np.array_equal(checking.read([i])[0]["x"], values[i])
    rot()
    monkeypatch.setenv("TRACE_STORE_CACHE_DIR", str(node.cache_dir))
    assert verify_store(URL).problems == []


@pytest.mark.parametrize("name", ["states", "zipped"])
def test_chunks_that_are_damaged_at_the_address_are_problems(
    name, serve, local, tmp_path, monkeypatch
):
    """`verify` names each, and the rows of these alone, as of files here."""
    path = tmp_path / "damaged.zarr"
    shutil.copytree(local, path)
    shard = path / SCHEMA.layout(name).shard_path(0)
    for place in (1000, shard.stat().st_size * 3 // 4):
        flip(shard, place)
    here = verify_store(path).problems
    assert len(here) == 2
    monkeypatch.setenv("TRACE_STORE_CACHE_DIR", str(serve(path).cache_dir))
    problems = verify_store(URL).problems
    assert {(problem.kind, problem.column) for problem in problems} == {("damaged", name)}
    assert "chunk 0: expected the bytes of its checksum" in problems[0].text
    assert [problem.rows for problem in problems] == [problem.rows for problem in here]


@pytest.mark.parametrize(
    "number, call", [(28, "store.remote.cache.fetcher.slab.write_at"), (122, "os.ftruncate")]
)
def test_a_full_disk_is_named_and_nothing_is_lost(served, rows, monkeypatch, number, call):
    """Or a file that may not grow; once there is room, what failed is fetched."""

    def full(*args):
        raise OSError(number, os.strerror(number))

    store = served.open()
    with monkeypatch.context() as patched:
        patched.setattr(call, full)
        with pytest.raises(StoreError, match=os.strerror(number)):
            store.read([9], ["states"])
    assert not any(index.pins.any() for index in served.server.inventory.indexes.values())
    assert_batch(store.read(range(N_ROWS)), [row for _, row in rows])
    assert_no_slot_is_lost(served.server)


def test_what_has_filled_the_disk_is_given_up(node, rows, monkeypatch):
    """Where a process that comes later has no room for its first file."""
    with node.running():
        node.open().read(range(N_ROWS))
    file = node.cache_dir / SLAB_FILE
    filled = file.stat().st_blocks
    fallocate = os.posix_fallocate

    def full(fd, start, n_bytes):
        if file.stat().st_blocks >= filled:
            raise OSError(28, "No space left on device")
        fallocate(fd, start, n_bytes)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with node.running() as server:
        assert_batch(node.open().read(range(N_ROWS)), [row for _, row in rows])
        assert_no_slot_is_lost(server)


def test_messages_name_the_address(served):
    """Not the folder of the cache."""

    def flipped(key, data):
        return data[:8] + bytes([data[8] ^ 1]) + data[9:] if "_offsets/" in key else data

    store = served.open()
    with pytest.raises(NotFoundError, match=f"^{URL}: expected one of its"):
        store["nobody"]
    assert URL in repr(store[0])
    served.files.spoil = flipped
    with pytest.raises(CorruptError, match=f"{URL}: array '_offsets/.*checksum"):
        served.open(check=True).read([3])


def test_a_reader_is_told_why_it_waits(served, rows, monkeypatch):
    """Then what it waited for comes."""

    def late(key, data):
        time.sleep(0.3)
        return data

    store = served.open()
    served.files.spoil = late
    monkeypatch.setattr("store.remote.cache.reader.mirror.TELL_S", 0.1)
    with pytest.warns(RuntimeWarning, match=r"no answer for 0.1 s.*for 600 s in all"):
        assert_batch(store.read([3]), [rows[3][1]])


@pytest.fixture
def noisy(serve, tmp_path):
    """Serve rows of bytes that no codec makes smaller, of which nothing is fetched that is not
    asked for: two rows a chunk, in one shard of many. A node and the values."""

    def start(codec=None, lengths=(16,) * 64):
        column = Column("uint8", (1024,), axis="t", codec=codec, chunk_items=32, shard_items=320)
        rng = np.random.default_rng(0)
        values = [rng.integers(0, 256, (n, 1024)).astype(np.uint8) for n in lengths]
        rows = [(f"id{i}", {"x": value}) for i, value in enumerate(values)]
        return serve(write_store(tmp_path / "n.zarr", Schema({"x": column}), rows, 3)), values

    return start


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_chunk_that_takes_the_place_of_another_is_never_read_as_that(noisy, monkeypatch, codec):
    """Its slot is taken just when it is copied. Compressed ones have checksums of their own."""
    node, values = noisy(codec)
    store, other = node.open(), node.open()
    store.read([0])
    store.cache._chunks.clear()
    column = store.reader.column("x")
    state = column._chunks.state
    swaps = [True]

    def swap(words: np.ndarray) -> np.ndarray:
        if swaps:
            swaps.pop()
            node.set_limits(0, 10**8)
            other.read([10])  # its chunk has the slot now
        return positions_of(words)

    positions_of = chunks.positions_of
    monkeypatch.setattr(chunks, "positions_of", swap)
    for i in (0, 1):
        assert np.array_equal(store.read([i])[0]["x"], values[i])
    assert not swaps
    assert column._chunks.state is state


def test_an_empty_row_needs_no_shard(noisy):
    lengths = [16] * 29 + [9, 0, 0, 7, 0]
    node, values = noisy(lengths=lengths)
    store = node.open()
    for rows in ([0, 31], [31, 30], [33], [32, 31], [0, 31]):
        found = store.read(rows)
        for i, row in enumerate(rows):
            assert np.array_equal(found[i]["x"], values[row])


def test_a_reader_that_stops_does_not_keep_others_waiting(noisy, monkeypatch):
    """What it asked for is let go after a while, and when it asks again."""
    monkeypatch.setattr("store.remote.cache.fetcher.fetch_queue.LEASE_S", 0.1)
    node, values = noisy()
    store = node.open()
    store.read([0])
    server = node.server
    ((column,),) = map(dict.values, server.columns.values())
    node.do(server.queue.need, column, column.cells.start + np.arange(30))
    limit = server.inventory.file_bytes + 31 * 32 * 1024 + 8192
    node.set_limits(limit)
    began = time.monotonic()
    assert np.array_equal(store.read([63])[0]["x"], values[63])
    assert time.monotonic() - began < 2


def test_what_comes_for_a_reader_that_has_gone_is_the_next_ones(noisy):
    """Although its store was closed when it had gone."""
    is_asked, may_come = threading.Event(), threading.Event()

    def late(_key, data):
        is_asked.set()
        may_come.wait(10)
        return data

    node, values = noisy()
    store = node.open()
    store.read([2])  # the table of its shard is here
    node.files.spoil = late
    store.mirror.want("x", np.array([[0, 1000, 10**6]]), 0)
    assert is_asked.wait(10)
    node.files.spoil = lambda _key, data: data
    store.mirror.drop_link()
    while node.server.stores:
        time.sleep(0.01)
    threading.Timer(0.5, may_come.set).start()
    began = time.monotonic()
    assert np.array_equal(node.open().read([0])[0]["x"], values[0])
    assert time.monotonic() - began < 5


def test_an_index_that_is_removed_stays_while_something_comes_into_its_slots(noisy):
    """Else they would be another chunk's when that is written."""
    node, _ = noisy()
    node.open().read([0])
    server = node.server
    ((column,),) = map(dict.values, server.columns.values())

    def remove() -> None:
        (job,) = server.inventory.take(column, column.cells.start + np.arange(4, 6), 0.0)
        before = job.index.slots(job.cells)
        job.index.path.unlink()
        server.inventory.open_store(column.store)
        assert np.array_equal(job.index.slots(job.cells), before)
        server.inventory.settle(job, 10**6)

    node.do(remove)
    assert_no_slot_is_lost(server)


def bring(index, cells, sizes, positions, tick):
    """Have chunks come into slots of their own."""
    cells = np.array(cells)
    index.sizes[cells] = sizes
    index.take(cells, np.array(positions))
    index.settle(cells, np.ones(len(cells), bool), tick)


def test_an_index_says_what_came_and_went(tmp_path):
    """Also what a process has left that has died: its readers see nothing, the next one all."""
    path = tmp_path / "index"
    slab = tmp_path / "chunks"
    slab.touch()
    state = partial(CacheState, path, slab, range(1, 6))
    first = WritableIndex(path, 6)
    reader = state()
    bring(first, [2, 4], [10, 20], [8192, 2**41], 7)
    assert are_here(reader.words).tolist() == [False, True, False, True, False]
    assert positions_of(reader.words[[1, 3]]).tolist() == [8192, 2**41]
    assert reader.count() == 2
    seen = reader.words[1:2].copy()
    first.clear(np.array([2]))
    assert reader.count() == 1
    bring(first, [2], [10], [8192], 8)
    assert seen != reader.words[1:2]  # the same chunk in the same slot, at another time
    second = WritableIndex(path)
    assert not reader.words.any()
    assert not reader.is_current()
    assert state().count() == 0
    assert second.missing(np.arange(6)).tolist() == [0, 1, 2, 3, 4, 5]
    assert second.movable().tolist() == [2, 4]
    assert positions_of(second.words[[2, 4]]).tolist() == [8192, 2**41]
    assert second.sizes[[2, 4]].tolist() == [10, 20]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3 * MB)), max_size=20))
def test_chunks_that_touch_are_one_request(parts):
    """Of a bounded size; nothing between chunks is asked for."""
    gaps, sizes = np.array(parts, np.int64).reshape(-1, 2).T
    starts = np.cumsum(gaps + sizes) - sizes
    heads = find_heads(starts, sizes).tolist()
    for first, last in pairwise([*heads, len(parts)]):
        assert not gaps[first + 1 : last].any()
        assert sizes[first:last].sum() <= REQUEST_BYTES + sizes[first]
    for head in heads[1:]:
        assert gaps[head] or sizes[: head + 1].sum() >= REQUEST_BYTES


def test_what_an_earlier_process_left_makes_room_for_what_is_announced(tmp_path):
    """From the first announcement on."""
    some = np.array([1, 2])
    index = WritableIndex(tmp_path / "index", 4)
    bring(index, some, np.array([100, 100]), some * BLOCK, 7)
    index = WritableIndex(tmp_path / "index")
    index.is_open = True
    past = -1000.0  # readers have read next to nothing
    cells, _, _ = index.evictable(past, needed_after=50.0)
    assert cells.tolist() == [1, 2]


def test_what_is_needed_last_leaves_first():
    """As much as is wanted; of what nobody has announced, the least recently used."""
    next_use = np.array([5.0, 9.0, UNKNOWN - 2, UNKNOWN - 1, 1.0])
    sizes = np.full(5, 10)
    assert choose_victims(next_use, sizes, 10).tolist() == [3]
    assert choose_victims(next_use, sizes, 25).tolist() == [3, 2, 1]
    assert sorted(choose_victims(next_use, sizes, 1000).tolist()) == [0, 1, 2, 3, 4]
