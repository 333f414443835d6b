"""What a store promises where several things go wrong, or several hands are at work, at once."""

import fcntl
import io
import os
import shutil
import sys
import time
from threading import Thread

import numpy as np
import pytest
from damage import flip
from faults import Faulty, full_disk
from small import make_store, one_column

from store import Column, CorruptError, LockedError, Schema, SchemaError, StoreWriter, TraceStore
from store.check.repair import plan_repair, repair_store
from store.check.verify import verify_store
from store.cli.main import main
from store.write import writer as writer_module
from store.write.files import Files
from store.write.lock import WriterLock

COLUMNS = {"x": Column("int32", axis="t", chunk_items=4, shard_items=8), "label": Column("int8")}


def row(i):
    return f"r{i}", {"x": np.arange(i % 5, dtype="i4") + i, "label": i % 2}


def make(path):
    return make_store(path, COLUMNS, dict(map(row, range(20)))).path


def ids(path):
    return list(TraceStore.open(path, check=True).ids)


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "s.zarr")


def test_provenance_is_what_will_be_read(path):
    """Numbers as keys become texts before the checksum is taken; a change inside of it is seen."""
    with StoreWriter.open(path) as writer:
        writer.provenance = {"layers": {8: "a", 16: ("b",)}}
    assert TraceStore.open(path).provenance == {"layers": {"8": "a", "16": ["b"]}}
    with StoreWriter.open(path) as writer:
        writer.provenance["note"] = "x"
    assert TraceStore.open(path).provenance["note"] == "x"


def test_metadata_that_no_reader_would_take_is_refused(path, monkeypatch):
    monkeypatch.setattr("store.write.writer.MAX_FILE_BYTES", 10_000)
    with (
        pytest.raises(SchemaError, match="expected metadata of at most 10000 bytes"),
        StoreWriter.open(path) as writer,
    ):
        writer.provenance = {"x": "a" * 10_000}
    assert len(ids(path)) == 20


@pytest.mark.parametrize(
    "provenance, message",
    [
        ({"layers": [24, 8, 16]}, "expected the numbers of layers rising"),
        ({"layers": [8, 8]}, "expected the numbers of layers rising"),
        ({"layers": [-1, 2]}, "expected the numbers of layers rising"),
        ({"a": float("nan")}, "provenance: expected a JSON object"),
        ({"a": {1, 2}}, "provenance: expected a JSON object"),
    ],
)
def test_a_provenance_that_says_nothing_is_refused(tmp_path, provenance, message):
    """Before anything is there."""
    with pytest.raises(SchemaError, match=message):
        StoreWriter.create(tmp_path / "s.zarr", Schema(COLUMNS), provenance)
    assert not (tmp_path / "s.zarr").exists()


def test_a_store_that_came_to_be_meanwhile_is_not_touched(tmp_path, monkeypatch):
    """By another process, between the check and the lock."""
    path, lock = tmp_path / "s.zarr", writer_module.WriterLock

    def late(root):
        with monkeypatch.context() as patched:
            patched.setattr(writer_module, "WriterLock", lock)
            make(path)
        return lock(root)

    with monkeypatch.context() as patched:
        patched.setattr(writer_module, "WriterLock", late)
        with pytest.raises(SchemaError, match="expected a new path"):
            StoreWriter.create(path, Schema(COLUMNS))
    assert len(ids(path)) == 20
    assert not verify_store(path).problems


def test_a_reader_of_a_store_that_was_repaired_says_so(path):
    """What it has not mapped yet is another store's now."""
    reader, early = TraceStore.open(path), TraceStore.open(path)
    assert early["r19"]["label"] == 1
    flip(path / "x/c/1")
    repair_store(path, plan_repair(path))
    for use in (lambda: reader.read([0], ["label"]), lambda: reader["r19"], lambda: reader.ids[0]):
        with pytest.raises(CorruptError, match=r"open (the store|it) again"):
            use()
    assert early["r19"]["label"] == 1
    assert len(reader.refresh()) < 20


def test_a_lock_is_that_of_what_is_at_the_path(path, tmp_path, monkeypatch):
    """A repair may exchange directories while a writer waits."""
    other, opened = make(tmp_path / "o.zarr"), []
    real = os.open

    def exchanging(name, *arguments):
        fd = real(name, *arguments)
        if not opened:
            opened.append(name)
            Files().exchange(path, other)
        return fd

    with monkeypatch.context() as patched:
        patched.setattr("store.write.lock.os.open", exchanging)
        lock = WriterLock(path)
    with pytest.raises(LockedError):
        WriterLock(path)
    lock.release()


def test_a_repair_that_stopped_is_not_finished_for_other_rows(path):
    """The first would have dropped other traces than the second."""
    flip(path / "x/c/0")
    plan = plan_repair(path)

    class Stopped(Files):
        def exchange(self, one, other):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair_store(path, plan, files=Stopped())
    flip(path / "x/c/0")
    flip(max(path.glob("x/c/*"), key=lambda file: int(file.name)))
    second = plan_repair(path)
    assert second.rows != plan.rows
    repair_store(path, second)
    assert ids(path) == [f"r{i}" for i in range(20) if i not in second.rows]
    assert not verify_store(path).problems


def test_the_list_of_dropped_traces_grows(path):
    listed = path.with_name("s.zarr.dropped.txt")
    before = ""
    for n in (1, 2):
        flip(path / "x/c/0")
        repair_store(path, plan_repair(path))
        shutil.rmtree(path.with_name("s.zarr.damaged"))
        assert listed.read_text().startswith(before)
        before = listed.read_text()
        assert before.count("# ") == n


def test_rows_are_looked_for_where_offsets_can_be_trusted(tmp_path):
    column = Column("int32", axis="t", chunk_items=1, shard_items=4096)
    path = one_column(tmp_path / "s.zarr", "x", column, [[i] for i in range(3000)]).path
    offsets = path / "_offsets/t/c/0"
    data = bytearray(offsets.read_bytes())
    data[1000 * 8 + 5] ^= 1  # border 1000 becomes 2**40
    offsets.write_bytes(data)
    flip(path / "x/c/0", 2500 * 4)
    rows = {problem.rows for problem in verify_store(path).problems if problem.column == "x"}
    assert rows == {(2500, 2500)}


def test_verify_between_the_files_of_a_commit(path):
    """Arrays are longer than the truth says: the writer's business, while there is one."""
    seen = []

    class Looking(Files):
        def rename(self, source, target):
            if target == path / "zarr.json":
                seen.append(verify_store(path))
            super().rename(source, target)

    with StoreWriter.open(path, Looking()) as writer:
        writer.append(*row(20))
    assert [(report.problems, report.writer) for report in seen] == [([], True)]


@pytest.mark.parametrize("operation, n", [("sync", 1), ("sync", 3), ("rename", 1), ("create", 4)])
def test_a_store_whose_creation_failed_is_created_again(tmp_path, operation, n):
    files = Faulty(n, full_disk, only=operation)
    with pytest.raises(OSError, match="No space left"):
        StoreWriter.create(tmp_path / "a.zarr", Schema(COLUMNS), files=files)
    StoreWriter.create(tmp_path / "a.zarr", Schema(COLUMNS)).close()
    assert not verify_store(tmp_path / "a.zarr").problems


def test_a_commit_is_done_when_only_its_leftovers_stay(path):
    """They are cleared by the next writer."""
    with StoreWriter.open(path, Faulty(2, full_disk, only="remove_tree")) as writer:
        writer.append(*row(20))
        writer.merge_runs()
    assert len(ids(path)) == 21
    StoreWriter.open(path).close()
    report = verify_store(path)
    assert report.problems == report.leftovers == []


def test_odd_files_are_told(path, monkeypatch):
    """A pipe is not waited for; a name that is no text is shown as it can be."""
    (path / os.fsdecode(b"\xff")).touch()
    (path / "label/c/0").unlink()
    os.mkfifo(path / "label/c/0")
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8", "strict"))
    assert main(["verify", str(path)]) == 1
    sys.stdout.flush()
    assert b"not a regular file" in out.getvalue()
    assert rb"\udcff: expected no file that does not belong" in out.getvalue()


def test_repair_from_within_the_store(path, monkeypatch, capsys):
    flip(path / "x/c/0")
    monkeypatch.chdir(path)
    assert main(["repair", "."]) == 1
    assert "traces to drop" in capsys.readouterr().out


def test_asking_for_a_writer_keeps_none_from_writing(path):
    """The lock is tried again for a moment."""
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)

    def let_go():
        time.sleep(0.02)
        fcntl.flock(fd, fcntl.LOCK_UN)

    thread = Thread(target=let_go)
    thread.start()
    StoreWriter.open(path).close()
    thread.join()
    os.close(fd)


@pytest.mark.parametrize(
    "dtype, value",
    [
        ("float32", 16777217),
        ("float16", [2049, 1]),
        ("float32", [123456789]),
        ("float64", 2**53 + 1),
        ("float64", np.array([1, 2**53 + 1])),
        ("float32", 2**64 - 1),
    ],
)
def test_whole_numbers_are_not_rounded(tmp_path, dtype, value):
    """Each digit of an id or a count is meant; floats are rounded."""
    schema = Schema({"x": Column(dtype, np.shape(value))})
    with StoreWriter.create(tmp_path / "s.zarr", schema) as writer:
        with pytest.raises(SchemaError, match=f"expected integers that {dtype} holds exactly"):
            writer.append("a", {"x": value})
        writer.append("b", {"x": np.asarray(value, "f8").tolist()})
        writer.append("c", {"x": np.full(np.shape(value), 2048).tolist()})


def test_a_column_that_is_damaged_in_every_row_can_be_replaced_or_dropped(path, tmp_path):
    """What repair says would lose everything; the command that it names loses one column."""
    flip(path / "label/c/0")
    assert len(plan_repair(path).rows) == 20
    scores = "".join(f"r{i},{i % 2}\n" for i in range(20))
    (tmp_path / "s.csv").write_text(f"question_id,score\n{scores}")
    assert main(["label", str(path), "--scores", str(tmp_path / "s.csv")]) == 0
    assert not verify_store(path).problems
    assert TraceStore.open(path, check=True).column("label").tolist() == [1, 0] * 10
    (file,) = path.glob("label*/c/0")
    os.truncate(file, 1)
    assert "do without: --drop-columns label" in plan_repair(path).hopeless
    assert not plan_repair(path, drop_columns=["label"]).hopeless
