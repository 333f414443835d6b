"""A remote store is read through a mirror as a local one is."""

import gc
import itertools
import os
import pickle
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from damage import flip, in_child
from mirroring import (
    N_ROWS,
    SCHEMA,
    URL,
    Node,
    assert_no_slot_is_lost,
    column_bytes,
    least_limit,
    watched,
)
from oracle import assert_batch, assert_same_row, write_store
from test_fetching_process import wait_until

from store import (
    Column,
    CorruptError,
    NotFoundError,
    Ragged,
    Schema,
    StoreError,
    StoreWriter,
    TraceLoader,
    TraceStore,
)
from store.format.zarr_json import group_json
from store.remote.cache.chunk_index import parts_of, positions_of
from store.remote.cache.fetcher.slab import write_at
from store.remote.cache.location import prepare_dir
from store.remote.pushed import PUSHED_KEY, PushRecord, as_attribute
from store.remote.transfer.lineage import sums_of


def shuffled(store, **options):
    """Two epochs of batches, as bytes."""
    loader = TraceLoader(store, batch_size=7, shuffle=True, **options)
    return [
        [value.values.numpy().tobytes() if isinstance(value, Ragged) else str(value)
         for value in batch.columns.values()]
        for _ in range(2) for batch in loader
    ]  # fmt: skip


def test_every_way_of_reading_gives_the_rows(served, rows, local):
    """Batches, traces, ids, whole columns, searched texts."""
    store = served.open()
    assert_batch(store.read(range(N_ROWS)), [row for _, row in rows])
    for i in (0, 17, N_ROWS - 1):
        assert_same_row(store[i], rows[i][1])
    assert store.row_of("id33") == 33
    assert store.ids[:] == [name for name, _ in rows]
    assert store.column("label").tolist() == [int(row["label"]) for _, row in rows]
    part = {"split": {"layers": 2}, "states": {"tokens": -1, "layers": slice(1, 3)}}
    expected = TraceStore.open(local).read([3, 40, 3], select=part)
    found = served.open(check=True).read([3, 40, 3], select=part)
    for name, value in expected.columns.items():
        assert str(found.columns[name]) == str(value)
    assert store.text_bytes("question", slice(2, 4))[0] == b"text 2text 3"


def test_an_epoch_fetches_each_byte_once(served, local):
    """Whatever the order, with readers that share the mirror; the next reads fetch nothing."""
    store = served.open()
    copy = pickle.loads(pickle.dumps(store))  # noqa: S301  our own bytes
    stores = [store, copy, served.open(check=True)]
    expected = shuffled(TraceStore.open(local))
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda one: shuffled(one, num_workers=2), stores):
            assert found == expected
    counts = store.mirror.stats()
    assert counts["fetched_bytes"] <= 1.05 * column_bytes(local)
    assert counts["fetched_twice_bytes"] == 0
    asked = served.files.asked.total()
    assert shuffled(store) == expected
    assert served.files.asked.total() == asked
    assert store.reader.is_here(store.plan())


def test_the_least_limit_that_works_is_named_and_works(served, local):
    """And is never exceeded, while several read."""
    limit = least_limit(served) + 10_000
    stores = [served.open(limit) for _ in range(3)]
    expected = shuffled(TraceStore.open(local))
    with watched(served.cache_dir, 0.005) as sizes, ThreadPoolExecutor(3) as pool:
        found = list(pool.map(shuffled, stores))
    assert found == [expected] * 3
    assert max(sizes) <= limit
    assert stores[0].mirror.stats()["evicted_bytes"] > 0


def test_what_was_read_outlasts_its_chunks(served, rows):
    """A column and a value are copies, and not views of files that are emptied."""
    store = served.open()
    labels = store.column_array("label")
    states = store[5]["states"]
    served.set_limits(0)
    assert labels.tolist() == [int(row["label"]) for _, row in rows]
    assert states.tobytes() == rows[5][1]["states"].tobytes()


def test_a_limit_that_falls_and_rises_while_chunks_come(served, rows, monkeypatch):
    """What was written is given back to the disk before it is published: it comes again."""
    store = served.open()
    times = iter(range(3))

    def write(fd, parts, position):
        write_at(fd, parts, position)
        if next(times, None) is not None:
            served.server.set_limit(0)
            served.server.set_limit(10**8)

    monkeypatch.setattr("store.remote.cache.fetcher.slab.write_at", write)
    assert_batch(store.read(range(N_ROWS)), [row for _, row in rows])


def test_readers_of_two_stores_come_back_in_any_order(node, rows):
    """After the process died: who is taken has room beside the others, by the smallest limit."""
    other = {"cache_bytes": 10**8, "cache_dir": node.cache_dir}
    with node.running():
        first = node.open(least_limit(node))
        with pytest.raises(ValueError, match=r"beside 1 other open stores.*smallest") as refused:
            TraceStore.open(f"{URL}.other", **other)
        with ThreadPoolExecutor(1) as pool:  # which has a connection of its own
            assert_same_row(pool.submit(first.read, [3]).result()[0], rows[3][1])
    enough = int(re.search(r"at least ([\d,]+)", str(refused.value))[1].replace(",", ""))
    with node.running():
        first = node.open(enough)
        second = TraceStore.open(f"{URL}.other", **other)
    with node.running():
        for store in (second, first):
            assert_same_row(store.read([3])[0], rows[3][1])


def test_an_interrupted_read_leaves_no_answer_for_the_next(served, rows, monkeypatch):
    """Ctrl-C comes between a request and its answer."""
    store = served.open()

    def interrupted(link):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("store.remote.cache.reader.mirror.receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.read([3], ["label"])
    for name in ("states", "split", "label"):
        assert_batch(store.read([3], [name]), [{name: rows[3][1][name]}])


def test_a_limit_that_is_refused_or_has_left_holds_no_more(served, rows):
    """Others read on, with what they were given."""
    store = served.open(10**8)
    with pytest.raises(ValueError, match="expected at least"):
        served.open(0)
    assert served.server.inventory.limit == 10**8
    small = served.open(2 * 10**6)
    assert served.server.inventory.limit == 2 * 10**6
    del small
    gc.collect()
    deadline = time.monotonic() + 10
    while served.server.inventory.limit < 10**8 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert served.server.inventory.limit == 10**8
    assert_same_row(store[3], rows[3][1])


def test_wrong_bytes_never_become_a_value(served, rows):
    """A damaged answer is asked for again."""
    damaged = set()

    def once(key, data):
        if key in damaged or not data or "zarr.json" in key:
            return data
        damaged.add(key)
        return bytes([data[0] ^ 1]) + data[1:]

    served.files.spoil = once
    store = served.open()
    assert_batch(store.read(range(N_ROWS)), [row for _, row in rows])


def test_a_zarr_json_that_comes_wrong_is_fetched_again(served, rows):
    """Every other time: as the store is opened, and as checksums are compared with it."""
    turns = itertools.cycle([True, False])

    def every_other(key, data):
        return data.replace(b"crc32c", b"crc32b") if key == "zarr.json" and next(turns) else data

    served.files.spoil = every_other
    store = served.open()
    assert_batch(store.read(range(N_ROWS)), [row for _, row in rows])


def flipped(key, data):
    return data[:-1] + bytes([data[-1] ^ 1]) if key.startswith("states/c/0") else data


def without_answer(key, data):
    raise StoreError(f"{key}: no answer")


@pytest.mark.parametrize(
    "spoil, error, words",
    [(flipped, CorruptError, "states"), (without_answer, StoreError, "no answer")],
)
def test_an_error_of_the_server_is_the_readers(served, rows, spoil, error, words):
    """By its name, for the read that met it; the next one may succeed."""
    store = served.open()
    store.read([0], ["label"])
    served.files.spoil = spoil
    with pytest.raises(error, match=words):
        store.read(range(N_ROWS), ["states"])
    served.files.spoil = lambda key, data: data
    expected = [{"states": row["states"]} for _, row in rows]
    assert_batch(store.read(range(N_ROWS), ["states"]), expected)


def test_rows_arrive_beside_a_damaged_one(tmp_path, serve, local, rows):
    """What was asked for together with a damaged chunk is whole."""
    states = SCHEMA.layout("states")
    damaged = tmp_path / "damaged.zarr"
    shutil.copytree(local, damaged)
    flip(damaged / states.shard_path(0), (states.shard_items - 1) * states.item_bytes)
    node = serve(damaged)
    node.files.spoil = late
    ends = np.cumsum([len(row["states"]) for _, row in rows])
    arrived = []
    batches = iter(TraceLoader(node.open(), ["states"], batch_size=1, shuffle=False))
    with pytest.raises(CorruptError, match=r"states/c/0/0/0, chunk 9"):
        arrived.extend(batch.rows.item() for batch in batches)
    assert arrived == np.flatnonzero(ends <= states.shard_items - states.chunk_items).tolist()


def late(key, data):
    """Readers wait meanwhile."""
    time.sleep(0.02)
    return data


def test_a_check_goes_on_where_the_cache_has_less_room_by_then(served):
    """Another reader has a smaller limit: what was asked for at a time is too much now."""
    column = served.open().reader.column("split")
    small = served.open(least_limit(served))
    assert column.mirror.portion_bytes > small.mirror.portion_bytes
    assert [*column.faults(0, column.layout.n_chunks(column.n_items))] == []


def test_chunks_outlast_the_process_that_fetched_them(node, rows):
    """The next one checks them, and fetches only those that are not right."""
    with node.running():
        store = node.open()
        store.read(range(N_ROWS))
    (file,) = node.cache_dir.glob("stores/*/index")
    _, words, _ = parts_of(np.fromfile(file, np.uint8))
    first = store.mirror.first_cells["states"]
    with (node.cache_dir / "chunks").open("r+b") as damaged:
        damaged.seek(int(positions_of(words[first])) + 100)
        damaged.write(b"zzz")
    file.with_name("index.new").write_bytes(b"")  # it was killed as it made another index
    node.files.asked.clear()
    with node.running():
        assert_batch(node.open().read(range(N_ROWS)), [row for _, row in rows])
        again = store.read(range(N_ROWS))  # a reader of before goes on
    assert_batch(again, [row for _, row in rows])
    sizes = {key: head.size for key, head in node.files.list().items()}
    chunks = [(key, start, stop) for key, start, stop in node.files.asked if stop < sizes[key]]
    assert chunks == [("states/c/0/0/0", 0, 50 * 4 * 64 * 2)]


TINY = Schema({"x": Column("int16", (16, 8), axis_names=("a", "b"), split=("a",), codec="blosc",
                           chunk_items=8, shard_items=80)})  # fmt: skip


def test_tiny_chunks_are_read_with_any_limit_that_is_taken(tmp_path):
    """On the disk they take many times their bytes, which is what a request is cut by."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 9, (100, 16, 8)).astype(np.int16)
    rows = [(f"id{i}", {"x": value}) for i, value in enumerate(values)]
    local = write_store(tmp_path / "t.zarr", TINY, rows, 500)
    for name, limit in (("least", 0), ("more", 9_000_000)):
        node = Node(tmp_path / name, local)
        with node.running():
            store = node.open(limit or least_limit(node))
            assert np.array_equal(store[5]["x"], values[5])
            assert np.array_equal(store.read([7, 99, 80])["x"], values[[7, 99, 80]])


def test_no_value_is_of_a_shard_that_was_made_anew(node, rows):
    """By the next process, for another reader, while the first reader had nothing to ask for."""
    enough = 6_000_000
    with node.running() as killed:
        least = least_limit(node)
        reader = node.open(enough)
        reader.read([1], ["states", "zipped"])
        node.open(enough).read(range(N_ROWS))
        killed._close_unused = lambda: None
    with node.running():
        other = node.open(least)
        for i in (*range(N_ROWS - 1, 30, -1), *range(12)):  # its shards go, and come again
            other.read([i], ["states", "zipped"])
        for i in range(12):
            row = {name: rows[i][1][name] for name in ("states", "zipped")}
            assert_same_row(reader.read([i], [*row])[0], row)


def test_readers_outlast_the_removal_of_the_cache_directory(node, rows):
    """What they have not read yet is fetched anew, also columns that they had not opened.

    A file of somebody else beside the stores, as file managers leave them, is none.
    """
    with node.running():
        store = node.open()
        store.read([0, 5], ["states", "label"])
        shutil.rmtree(node.cache_dir)
    prepare_dir(node.cache_dir)
    (node.cache_dir / "stores").mkdir()
    (node.cache_dir / "stores" / ".directory").write_text("x")
    with node.running():
        assert_batch(store.read(range(N_ROWS)), [row for _, row in rows])


def test_a_compressed_chunk_that_has_rotted_in_the_cache_is_never_a_value(served, rows):
    """It is compared with its checksum each time, and fetched again; an error is the store's."""
    expected = {"zipped": rows[1][1]["zipped"]}
    store = served.open()
    store.cache.capacity_bytes = 0  # of decoded chunks

    def rot() -> None:
        assert_same_row(store.read([1], ["zipped"])[0], expected)
        with (served.cache_dir / "chunks").open("r+b") as slab:
            n_bytes = slab.seek(0, os.SEEK_END)
            for position in range(30, min(n_bytes, 2**20), 64):
                slab.seek(position)
                slab.write(b"x")

    rot()
    rot()
    served.files.spoil = lambda key, data: bytes(len(data)) if "zipped/c" in key else data
    with pytest.raises(CorruptError, match="zipped"):
        store.read([1], ["zipped"])


@pytest.mark.parametrize("pattern", ["zarr.json", "_offsets/*/c/*"])
def test_small_files_that_are_gone_or_rotten_are_fetched_again(served, rows, pattern):
    """As a cleaner of /tmp removes them, while the fetching process lives; for new readers."""
    first = served.open()
    expected = {"states": rows[5][1]["states"]}
    assert_same_row(first.read([5], ["states"])[0], expected)
    for spoil in (Path.unlink, lambda file: flip(file, file.stat().st_size - 9)):
        files = [*served.cache_dir.glob(f"stores/*/store/{pattern}")]
        assert files
        for file in files:
            spoil(file)
        assert_same_row(served.open().read([5], ["states"])[0], expected)
    assert_same_row(first.read([5], ["states"])[0], expected)


@pytest.mark.parametrize("data", [b"{", None])
def test_a_state_whose_zarr_json_has_rotted_is_asked_for_again(node, rows, data):
    """By the next fetching process, for a reader that had it open."""
    with node.running():
        store = node.open()
    (file,) = node.cache_dir.glob("stores/*/store/zarr.json")
    file.write_bytes(bytes(file.stat().st_size) if data is None else data)
    with node.running():
        assert_batch(store.read([5, 6]), [row for _, row in rows[5:7]])


def test_a_state_takes_over_what_is_here_of_another(tmp_path, make_node, rows):
    """Of the one before it, and of a later one, when a backup was put in its place: only what
    differs is fetched, and no value is of the other."""
    remote = write_store(tmp_path / "traces.zarr", SCHEMA, rows[:40], 3)
    node = make_node(remote)

    def read(n_rows):
        with node.running():
            store = node.open()
            assert_batch(store.read(range(n_rows)), [row for _, row in rows[:n_rows]])
            return store.path, store.mirror.stats()["fetched_bytes"]

    def append(start, stop):
        with StoreWriter.open(remote) as writer:
            for trace_id, row in rows[start:stop]:
                writer.append(trace_id, row)

    first, _ = read(40)
    append(40, 50)
    backup = shutil.copytree(remote, tmp_path / "backup.zarr")
    append(50, N_ROWS)
    grown, fetched = read(N_ROWS)
    assert grown != first
    assert fetched < 0.5 * column_bytes(remote)
    shutil.rmtree(remote)
    backup.rename(remote)
    _, fetched = read(50)
    assert fetched < 0.05 * column_bytes(remote)  # of chunks that grew


def test_what_is_refreshed_fetches_only_what_is_new(tmp_path, make_node, rows):
    """Once nobody reads the state before."""
    remote = write_store(tmp_path / "traces.zarr", SCHEMA, rows[:40], 3)
    node = make_node(remote)
    with node.running() as server:
        store = node.open()
        store.read(range(40))
        with StoreWriter.open(remote) as writer:
            for trace_id, row in rows[40:]:
                writer.append(trace_id, row)
        store = store.refresh()
        wait_until(lambda: len(server.stores) == 1)
        before = store.mirror.stats()["fetched_bytes"]
        assert_batch(store.read(range(N_ROWS)), [row for _, row in rows])
        assert store.mirror.stats()["fetched_bytes"] - before < 0.5 * column_bytes(remote)
        assert_no_slot_is_lost(server)


def test_a_forked_process_shares_the_mirror(served, rows):
    """It has connections of its own."""
    store = served.open()
    store.read([1])
    found = in_child(lambda: store.read([3, 9], ["states"])["states"].values.numpy().tobytes())
    assert found == b"".join(rows[i][1]["states"].tobytes() for i in (3, 9))
    store.read([2])


@pytest.mark.parametrize("n_read", [0, 1])
@pytest.mark.parametrize("is_pushed", [True, False])
def test_no_value_comes_of_another_copy_of_the_store(tmp_path, serve, is_pushed, n_read):
    """That grew on its own: a push says what its values are, else chunks that are not whole do.

    Also where the other is opened beside it.
    """
    n_rows = 8 if is_pushed else 7
    schema = Schema({"x": Column("int32", (1024,), chunk_items=2, shard_items=4)})
    copies = [tmp_path / "0", tmp_path / "1"]
    write_store(copies[0], schema, [("t0", {"x": np.zeros(1024, np.int32)})])
    shutil.copytree(*copies)
    for number, path in enumerate(copies):
        with StoreWriter.open(path) as writer:
            for i in range(1, n_rows):
                writer.append(f"t{i}", {"x": np.full(1024, i + 100 * number, np.int32)})
        store = TraceStore.open(path)
        record = PushRecord(in_bucket=sums_of(store) if is_pushed else {})
        attributes = store.manifest.to_attributes() | {PUSHED_KEY: as_attribute(record)}
        (path / "zarr.json").write_bytes(group_json(attributes))
    node = serve(copies[0])
    first = node.open()
    assert [first[i]["x"][0] for i in range(n_read)] == [*range(n_read)]
    node.files.root = copies[1]
    with pytest.raises(NotFoundError, match="another one at its address now; open it again"):
        first.read(range(2, n_rows))
    assert node.open()[2]["x"][0] == 102
    with pytest.raises(NotFoundError, match="another one at its address now; open it again"):
        first.read(range(4, n_rows))
