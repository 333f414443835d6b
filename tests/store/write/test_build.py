"""Builds that are stopped, repeated or begun with other settings."""

import errno
import threading
import time
from itertools import islice

import numpy as np
import pytest
from faults import Faulty, full_disk

from store import (
    Column,
    LockedError,
    Schema,
    SchemaError,
    StoreWriter,
    TraceStore,
)
from store.cli.main import main
from store.traces.identity import COMMAND, REMARKS, identity
from store.write.behind import WriteBehind
from store.write.build import (
    build_store,
    command_line,
    open_begun,
    partial_path,
    unfinished,
)
from store.write.files import Files

SCHEMA = Schema({"x": Column("float32", item_shape=(4,), axis="tokens"), "label": Column("int8")})
N_ROWS = 12


class Numbers:
    """Rows of random numbers; it may stop before any of them."""

    def __init__(self, stop=None, error=KeyboardInterrupt, **provenance):
        self.stop, self.error = stop, error
        self.schema, self.remarks = SCHEMA, {}
        self.provenance = {"source": "numbers", "decoding": {"beams": 4, "seed": 0}} | provenance

    def rows(self, start=0):
        for i in range(start, N_ROWS):
            if i == self.stop:
                raise self.error("stopped")
            yield (
                f"t{i}",
                {"x": np.random.default_rng(i).random((i + 1, 4)).astype("f4"), "label": i % 2},
            )


def content_of(store):
    return {trace.id: (trace["x"].tobytes(), int(trace["label"])) for trace in store}


def begin(path, n_rows, **options):
    """Begin a build that is stopped after so many rows."""
    with pytest.raises(KeyboardInterrupt):
        build_store(path, Numbers(n_rows), **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return content_of(build_store(tmp_path_factory.mktemp("whole") / "s.zarr", Numbers()))


@pytest.fixture(params=[None, 1, 100], ids=["directly", "1", "100"])
def behind(request):
    """How rows are written: by the thread that makes them, or by another one."""
    return request.param and WriteBehind(request.param)


ERRORS = (KeyboardInterrupt, ValueError, SchemaError, OSError)


@pytest.mark.parametrize("stop", [0, 1, 2, N_ROWS - 1])
def test_what_is_whole_is_kept_whatever_stops_a_build(tmp_path, whole, behind, stop):
    """Every row before the error is committed, the error says so, and the same build goes on to the
    same store."""
    error = ERRORS[stop % len(ERRORS)]
    path = tmp_path / "s.zarr"
    with pytest.raises(error) as stopped:
        build_store(path, Numbers(stop, error), behind=behind)
    begun = open_begun(path)
    assert len(begun) == stop
    [note] = stopped.value.__notes__
    if stop:
        kept = "1 trace is kept" if stop == 1 else f"{stop} traces are kept"
        assert note == f"{kept} in {partial_path(path)}; the same command goes on"
    else:
        assert note == "no trace is kept"
    assert content_of(build_store(path, Numbers())) == whole


@pytest.mark.parametrize("n_writes", range(50, 300, 50))
def test_a_full_disk_leaves_what_was_committed(tmp_path, whole, monkeypatch, behind, n_writes):
    """The error says how many traces are kept, and with more space the build goes on to the same
    store."""
    monkeypatch.setattr("store.write.writer.COMMIT_ROWS", 2)
    path = tmp_path / "s.zarr"
    files = Faulty(n_writes, full_disk, lasting=True, only="write")
    with pytest.raises(OSError, match="No space left") as stopped:
        build_store(path, Numbers(), files=files, behind=behind)
    n_kept = len(open_begun(path))
    assert (n_kept > 0) == (n_writes > 50)
    said = f"{n_kept} traces are kept in" if n_kept else "no trace is kept"
    [note] = stopped.value.__notes__
    assert said in note
    assert content_of(build_store(path, Numbers())) == whole


class Remarking(Numbers):
    """A source whose remarks tell how many rows it has made."""

    def rows(self, start=0):
        for i, row in enumerate(super().rows(start), start + 1):
            self.remarks = {REMARKS: i}
            yield row
        self.remarks = {REMARKS: "all"}


@pytest.mark.parametrize("commit_rows, stop", [(1, 1), (1, 4), (5, 4), (5, 5), (5, N_ROWS - 1)])
def test_remarks_are_those_of_the_rows_that_are_committed(
    tmp_path, monkeypatch, behind, commit_rows, stop
):
    """Never of rows that the source has made since, whenever a reader looks."""
    monkeypatch.setattr("store.write.writer.COMMIT_ROWS", commit_rows)
    path = tmp_path / "s.zarr"
    seen = []

    def look(_):
        begun = open_begun(path)
        seen.append((len(begun), begun.provenance.get(REMARKS, 0)))

    with pytest.raises(KeyboardInterrupt):
        build_store(path, Remarking(stop), look, behind=behind)
    assert {n_rows for n_rows, _ in seen} == {*range(0, stop + 1, commit_rows)} - {
        0 if commit_rows == 1 else None
    }
    assert all(n_rows == remark for n_rows, remark in seen)
    assert open_begun(path).provenance[REMARKS] == stop
    assert build_store(path, Remarking(), look, behind=behind).provenance[REMARKS] == "all"


@pytest.mark.parametrize("is_full_first", [True, False])
def test_both_errors_are_told(tmp_path, is_full_first):
    """A source that is stopped after the disk was full, or while the row that fills it waits."""
    made = threading.Event()
    stopping = threading.Event()

    class Failing(Numbers):
        def rows(self, start=0):
            yield from islice(super().rows(start), 1)
            if is_full_first:
                made.wait(10)
            stopping.set()
            raise KeyboardInterrupt

    def full(_):
        if not is_full_first:
            stopping.wait(10)
            time.sleep(0.1)  # until the writer alone is waited for
        made.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(KeyboardInterrupt) as stopped:
        build_store(tmp_path / "s.zarr", Failing(), full, behind=WriteBehind(2))
    said, kept = stopped.value.__notes__
    assert said == "writing had stopped before, found: [Errno 28] No space left on device"
    assert kept.startswith("1 trace is kept")


def test_no_thread_is_left(tmp_path):
    """Whether a build ends, or is stopped."""
    before = threading.active_count()
    behind = WriteBehind(2)
    with pytest.raises(KeyboardInterrupt):
        build_store(tmp_path / "s.zarr", Numbers(5), behind=behind)
    build_store(tmp_path / "s.zarr", Numbers(), behind=behind)
    assert threading.active_count() == before
    assert behind.seconds > 0


def test_the_command_line_is_kept_but_decides_nothing(tmp_path, whole):
    """It may be typed otherwise when the build goes on; the finished store tells the last."""
    path = tmp_path / "s.zarr"
    begin(path, 5, command="python -m store one")
    begun = TraceStore.open(partial_path(path))
    assert command_line(begun) == "python -m store one"
    held = f"{partial_path(path)} holds 5 traces of it"
    assert unfinished(path) == (
        f"{path}: expected a store, found that it is not finished: {held}. "
        "Go on with: python -m store one"
    )
    store = build_store(path, Numbers(), command="python -m store two")
    assert store.provenance == Numbers().provenance | {COMMAND: "python -m store two"}
    assert identity(store.provenance | {REMARKS: {"n": 1}}) == Numbers().provenance
    assert unfinished(path) is None
    assert content_of(build_store(path, Numbers(), command="python -m store three")) == whole


@pytest.mark.parametrize(
    "changed, difference",
    [
        ({"decoding": {"beams": 1, "seed": 0}}, "found decoding.beams 4 instead of 1;"),
        (
            {"decoding": {"beams": 4, "seed": 0, "stop": "x"}},
            "found decoding.stop None instead of 'x';",
        ),
        (
            {"decoding": {"beams": 2, "seed": 1}, "a": 1, "b": 2},
            "found decoding.beams 4 instead of 2, decoding.seed 0 instead of 1, "
            "a None instead of 1, and 1 more;",
        ),
    ],
)
def test_only_what_differs_is_shown(tmp_path, changed, difference):
    """Keys inside of settings by their path, three of them at most."""
    begin(tmp_path / "s.zarr", 3)
    with pytest.raises(SchemaError) as refused:
        build_store(tmp_path / "s.zarr", Numbers(**changed))
    assert difference in str(refused.value)


def test_a_build_that_holds_no_trace_gives_way_to_other_settings(tmp_path):
    """It is cleared, also if its columns were others; one that holds a trace is not."""
    path = tmp_path / "s.zarr"
    begin(path, 0)
    other = Numbers(2, dtype="bfloat16")
    other.schema = Schema(SCHEMA.columns | {"label": Column("int16")})
    with pytest.raises(KeyboardInterrupt):
        build_store(path, other)
    assert open_begun(path).provenance["dtype"] == "bfloat16"
    with pytest.raises(SchemaError, match=r"found columns|found dtype 'bfloat16' instead of None"):
        build_store(path, Numbers())


def test_a_strangers_file_in_an_empty_build_is_kept(tmp_path):
    """And nothing else of it is removed."""
    path = tmp_path / "s.zarr"
    begin(path, 0)
    (partial_path(path) / "notes.txt").write_text("x")
    before = sorted(partial_path(path).rglob("*"))
    with pytest.raises(
        SchemaError, match="expected a build that was stopped, found something else; move it away"
    ):
        build_store(path, Numbers(dtype="bfloat16"))
    assert sorted(partial_path(path).rglob("*")) == before


def test_an_empty_build_of_another_process_is_not_cleared(tmp_path):
    """Its writer has the lock."""
    path = tmp_path / "s.zarr"
    with (
        StoreWriter.create(partial_path(path), SCHEMA, {"source": "other"}),
        pytest.raises(Exception, match="expected no other writer"),
    ):
        build_store(path, Numbers())


@pytest.mark.parametrize("command", ["info", "get", "verify", "repair"])
def test_commands_name_an_unfinished_store(tmp_path, capsys, command):
    """One line with its traces and the command that goes on, and status 2."""
    path = tmp_path / "s.zarr"
    begin(path, 1, command="python -m store extract s.zarr --seed 3")
    assert main([command, str(path), *(["t0"] if command == "get" else [])]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert f"{path}.partial holds 1 trace of it" in printed.err
    assert "Go on with: python -m store extract s.zarr --seed 3" in printed.err


def test_info_of_an_unfinished_store_says_so(tmp_path, capsys):
    path = tmp_path / "s.zarr"
    begin(path, 1, command="python -m store extract s.zarr")
    assert main(["info", f"{path}.partial"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ": 1 trace, " in lines[0]
    assert lines[1] == "unfinished; go on with: python -m store extract s.zarr"


class Overtaken(Numbers):
    """While its build is opened or under way, another process finishes the same one."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    @property
    def schema(self):
        if self.path is not None:
            path, self.path = self.path, None
            build_store(path, Numbers())
        return SCHEMA

    @schema.setter
    def schema(self, _):
        pass


def test_a_build_that_another_process_finishes_meanwhile_leaves_nothing(tmp_path, whole):
    """It gives the store that is there, and no second one begins beside it."""
    path = tmp_path / "s.zarr"
    assert content_of(build_store(path, Overtaken(path))) == whole
    assert [file.name for file in tmp_path.iterdir()] == ["s.zarr"]


class Looking(Files):
    """Asks who may write whenever a directory gets another name."""

    def rename_durably(self, source, target):
        if target.suffix == ".zarr":
            with pytest.raises(LockedError):
                StoreWriter.open(source)
            self.has_looked = True
        super().rename_durably(source, target)


def test_a_store_gets_its_name_under_the_lock(tmp_path, whole):
    """No other process takes a build that is whole for one that was stopped."""
    files = Looking()
    assert content_of(build_store(tmp_path / "s.zarr", Numbers(), files=files)) == whole
    assert files.has_looked
    assert [file.name for file in tmp_path.iterdir()] == ["s.zarr"]


class Followed(Files):
    """Another process begins a build where one has just been moved from."""

    def rename_durably(self, source, target):
        super().rename_durably(source, target)
        if target.suffix == ".zarr":
            self.other = StoreWriter.create(source, SCHEMA)


def test_a_build_that_was_moved_leaves_its_successor_alone(tmp_path, whole):
    files = Followed()
    assert content_of(build_store(tmp_path / "s.zarr", Numbers(), files=files)) == whole
    with files.other as writer:
        for trace_id, row in islice(Numbers().rows(), 3):
            writer.append(trace_id, row)
    assert len(TraceStore.open(tmp_path / "s.zarr.partial")) == 3
