"""Threads share a writer, and a reader: no row takes values of another, whatever they do."""

import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from damage import assert_store
from faults import start

from store import Column, IncompleteError, Schema, SchemaError, StoreWriter, TraceStore
from store.write.files import Files

SCHEMA = Schema(
    {
        "number": Column("int32", chunk_items=64, shard_items=512),
        "tokens": Column("int32", axis="tokens", chunk_items=64, shard_items=512),
        "text": Column("utf8"),
    }
)
N_THREADS = 8


@pytest.fixture(autouse=True)
def _threads_change_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def row(number):
    tokens = np.full(number % 5, number, np.int32)
    return {"number": np.int32(number), "tokens": tokens, "text": f"text {number}"}


def in_threads(call):
    """Call it with the number of each of eight threads; raises what one of them raised."""
    with ThreadPoolExecutor(N_THREADS) as pool:
        return list(pool.map(call, range(N_THREADS)))


def append(writer, numbers):
    for number in numbers:
        writer.append(str(number), row(number))


def assert_right(path, n_rows):
    """Every row has the values of its id, and no byte is wrong."""
    ids = list(TraceStore.open(path).ids)
    assert sorted(map(int, ids)) == list(range(n_rows))
    assert_store(path, [(trace_id, row(int(trace_id))) for trace_id in ids])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


@pytest.mark.parametrize("n_rows", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_threads_append_to_one_writer(path, n_rows):
    """While one of them commits now and then."""

    def work(thread):
        for first in range(thread * n_rows, (thread + 1) * n_rows, n_rows // 4):
            append(writer, range(first, first + n_rows // 4))
            if thread == 0:
                writer.commit()

    with StoreWriter.create(path, SCHEMA) as writer:
        in_threads(work)
        assert len(writer) == N_THREADS * n_rows
    assert_right(path, N_THREADS * n_rows)


def test_threads_that_append_one_id_have_one_row(path):
    """All others are refused."""

    def work(thread):
        for number in range(50):
            try:
                writer.append(str(number), row(number))
            except SchemaError:
                refused.append(number)

    refused = []
    with StoreWriter.create(path, SCHEMA) as writer:
        in_threads(work)
    assert_right(path, 50)
    assert sorted(refused) == sorted([*range(50)] * (N_THREADS - 1))


def test_a_column_is_added_while_another_thread_appends(path):
    """A row is appended before it, or refused because it lacks a value."""
    is_added = threading.Event()

    def work():
        for number in range(4, 10**6):
            writer.append(str(number), row(number))
            writer.commit()
            is_added.wait(0.001)

    with StoreWriter.create(path, SCHEMA) as writer:
        append(writer, range(4))
        writer.commit()
        thread = ThreadPoolExecutor(1).submit(work)
        while not is_added.is_set():
            try:
                writer.add_column("more", Column("int32"), range(len(writer)))
            except SchemaError as error:  # a row came between
                if not re.search("commit first|expected values for its", str(error)):
                    raise
            else:
                is_added.set()
        with pytest.raises(SchemaError, match=r"expected a value for every column, .* \['more'\]"):
            thread.result()
    store = TraceStore.open(path)
    assert_right(path, len(store))
    assert store.column("more").tolist() == [*range(len(store))]


@pytest.mark.parametrize("use", ["append", "commit", "set_columns"])
def test_values_of_a_column_cannot_come_from_what_writes(path, use):
    """The store stays as it was, and the writer goes on."""

    def values():
        yield 1
        if use == "append":
            writer.append("9", row(9))
        elif use == "commit":
            writer.commit()
        else:
            writer.add_column("other", Column("int32"), range(4))
        yield from range(3)

    with StoreWriter.create(path, SCHEMA) as writer:
        append(writer, range(4))
        writer.commit()
        with pytest.raises(IncompleteError, match="setting columns stopped half-way"):
            writer.add_column("more", Column("int32"), values())
        append(writer, range(4, 8))
    assert list(TraceStore.open(path).schema.columns) == list(SCHEMA.columns)
    assert_right(path, 8)


def test_values_of_a_column_cannot_close_the_writer(path):
    """What another writer commits meanwhile is not lost."""

    def values():
        yield from range(4)
        writer.close()
        with StoreWriter.open(path) as other:
            append(other, range(4, 8))

    writer = StoreWriter.create(path, SCHEMA)
    append(writer, range(4))
    writer.commit()
    with pytest.raises(IncompleteError, match="it was closed"):
        writer.add_column("more", Column("int32"), values())
    with pytest.raises(IncompleteError, match="it was closed"):
        writer.commit()
    assert_right(path, 8)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_child_forked_while_a_thread_writes_is_refused_at_once(path):
    """It waits for no thread that only its parent has."""

    class Slow(Files):
        def sync(self, fd):
            if began is not None:
                began.set()
                may_end.wait()
            super().sync(fd)

    def write():
        with pytest.raises(IncompleteError, match="forked"):
            writer.append("4", row(4))
        writer.close()

    began = None
    with StoreWriter.create(path, SCHEMA, files=Slow()) as writer:
        append(writer, range(4))
        began, may_end = threading.Event(), threading.Event()
        thread = threading.Thread(target=writer.commit)
        thread.start()
        began.wait()
        child = start(write)
        pid, status = 0, None
        deadline = time.monotonic() + 5
        while not pid and time.monotonic() < deadline:
            pid, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if not pid:
            os.kill(child, 9)
            os.waitpid(child, 0)
        may_end.set()
        thread.join()
    assert (pid, status) == (child, 0)
    assert_right(path, 4)


def test_threads_of_an_old_reader_find_its_ids_after_their_table_was_merged(path):
    """Whichever of them looks first for where the ids are now."""
    with StoreWriter.create(path, SCHEMA) as writer:
        append(writer, range(4))
        writer.commit()
        olds = [TraceStore.open(path) for _ in range(20)]
        append(writer, range(4, 16))
        writer.merge_runs()
    for old in olds:
        barrier = threading.Barrier(N_THREADS)

        def find(thread, old=old, barrier=barrier):
            barrier.wait()
            return old.row_of(str(thread % 4))

        assert in_threads(find) == [0, 1, 2, 3] * 2
