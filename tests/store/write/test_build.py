"""Builds that are stopped, repeated or begun with other settings."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import pytest
from faults import Faulty, full_disk
from small import complaint, refused

from store import Column, LockedError, Schema, SchemaError, StoreWriter, TraceStore
from store.cli.main import main
from store.traces.identity import COMMAND, REMARKS, identity
from store.write import writer as writer_module
from store.write.background import BackgroundWriter
from store.write.build import (
    HeldSignals,
    build_store,
    command_line,
    open_begun,
    partial_path,
    unfinished,
)
from store.write.files import Files

SCHEMA = Schema({"x": Column("float32", item_shape=(4,), axis="tokens"), "label": Column("int8")})
N_ROWS = 12
OTHERS_FILE = "expected a build that was stopped, found something else; move it away"


class Numbers:
    """Rows of random numbers; it may stop before any of them. Its remark is how many it made."""

    def __init__(self, stop=None, error=KeyboardInterrupt, **provenance):
        self.stop, self.error = stop, error
        self.schema, self.remarks = SCHEMA, {}
        self.provenance = {"source": "numbers", "decoding": {"beams": 4, "seed": 0}} | provenance

    def rows(self, start=0):
        for i in range(start, N_ROWS):
            if i == self.stop:
                raise self.error("stopped")
            self.remarks = {REMARKS: i + 1}
            x = np.random.default_rng(i).random((i + 1, 4)).astype("f4")
            yield f"t{i}", {"x": x, "label": i % 2}
        self.remarks = {REMARKS: "all"}


def content_of(store):
    return {trace.id: (trace["x"].tobytes(), int(trace["label"])) for trace in store}


def begin(path, n_rows, **options):
    """Begin a build that is stopped after so many rows."""
    with pytest.raises(KeyboardInterrupt) as stopped:
        build_store(path, Numbers(n_rows), **options)
    return stopped.value


@pytest.fixture(autouse=True)
def python_handles_ctrl_c():
    """As in a terminal; a job in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.zarr"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return content_of(build_store(tmp_path_factory.mktemp("whole") / "s.zarr", Numbers()))


@pytest.fixture(params=[None, 1, 100], ids=["directly", "1", "100"])
def background(request):
    """How rows are written: by the thread that makes them, or by another one."""
    return request.param and BackgroundWriter(request.param)


@pytest.mark.parametrize("has_read", [False, True])
def test_a_reader_of_a_build_follows_it_to_its_name(path, whole, has_read):
    """Its maps stay good, and what it opens later is found; another store there is refused."""
    begin(path, 5)
    partial = TraceStore.open(partial_path(path))
    if has_read:
        content_of(partial)
    build_store(path, Numbers())
    assert content_of(partial) == dict(islice(whole.items(), 5))
    assert partial.location == str(path)
    assert partial.row_of("t3") == 3
    now = partial.refresh()
    assert content_of(now) == whole
    assert now.uuid == partial.uuid


ERRORS = (KeyboardInterrupt, ValueError, SchemaError, OSError)


@pytest.mark.parametrize("stop", [0, 1, 2, N_ROWS - 1])
def test_what_is_whole_is_kept_whatever_stops_a_build(path, whole, background, stop):
    """Every row before the error is committed, the error says so, and the same build goes on to the
    same store; no thread is left."""
    error = ERRORS[stop % len(ERRORS)]
    n_threads = threading.active_count()
    with pytest.raises(error) as stopped:
        build_store(path, Numbers(stop, error), background=background)
    assert len(open_begun(path)) == stop
    traces = "1 trace is" if stop == 1 else f"{stop} traces are"
    kept = f"{traces} kept in {partial_path(path)}; the same command goes on"
    assert stopped.value.__notes__ == [kept if stop else "no trace is kept"]
    assert content_of(build_store(path, Numbers(), background=background)) == whole
    assert threading.active_count() == n_threads


def test_nothing_is_written_after_a_row_that_does_not_fit(path, whole, background):
    """Or a build that goes on would lack it."""

    class Wrong(Numbers):
        def rows(self, start=0):
            for trace_id, row in super().rows(start):
                yield trace_id, row | ({"label": "three"} if trace_id == "t3" else {})

    with pytest.raises(SchemaError, match="trace 't3', column 'label'"):
        build_store(path, Wrong(), background=background)
    assert open_begun(path).ids[:] == ["t0", "t1", "t2"]
    assert content_of(build_store(path, Numbers())) == whole


@pytest.mark.parametrize(
    "n_writes", [50, 100, *(pytest.param(n, marks=pytest.mark.slow) for n in (150, 200, 250))]
)
def test_a_full_disk_leaves_what_was_committed(path, whole, monkeypatch, background, n_writes):
    """The error says how many traces are kept, and with more space the build goes on to the same
    store."""
    monkeypatch.setattr("store.write.writer.COMMIT_ROWS", 2)
    files = Faulty(n_writes, full_disk, lasting=True, only="write")
    with pytest.raises(OSError, match="No space left") as stopped:
        build_store(path, Numbers(), files=files, background=background)
    n_kept = len(open_begun(path))
    assert (n_kept > 0) == (n_writes > 50)
    [note] = stopped.value.__notes__
    assert (f"{n_kept} traces are kept in" if n_kept else "no trace is kept") in note
    assert content_of(build_store(path, Numbers())) == whole


@pytest.mark.parametrize("row", [1, 3])
def test_ctrl_c_in_the_middle_of_an_append_loses_no_row(path, whole, monkeypatch, background, row):
    """The row is finished, all of them are committed, and the same build goes on; also while
    another thread appends, and the source has made more. Handlers are as before."""
    encode = writer_module.encode_row

    def interrupted(values, columns, where):
        if where == f"trace 't{row}'":
            os.kill(os.getpid(), signal.SIGINT)
        return encode(values, columns, where)

    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "encode_row", interrupted)
        with pytest.raises(KeyboardInterrupt) as stopped:
            build_store(path, Numbers(), background=background)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    n_kept = len(open_begun(path))
    assert n_kept == row + 1 if background is None else row < n_kept <= N_ROWS
    assert f"{n_kept} traces are kept in" in stopped.value.__notes__[0]
    assert content_of(build_store(path, Numbers())) == whole


def test_a_signal_between_blocks_comes_at_once():
    """One that ends the process is left alone."""
    ends = signal.getsignal(signal.SIGTERM)
    with HeldSignals() as signals:
        assert signal.getsignal(signal.SIGTERM) == ends
        with signals.held():
            pass
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_another_thread_builds_as_well(path, whole):
    """Only the main thread may set handlers."""
    with ThreadPoolExecutor(1) as pool:
        assert content_of(pool.submit(build_store, path, Numbers()).result()) == whole


@pytest.mark.parametrize("commit_rows, stop", [(1, 4), (5, 4), (5, N_ROWS - 1)])
def test_remarks_are_those_of_the_rows_that_are_committed(
    path, monkeypatch, background, commit_rows, stop
):
    """Never of rows that the source has made since, whenever a reader looks."""
    monkeypatch.setattr("store.write.writer.COMMIT_ROWS", commit_rows)
    seen = []

    def look(_):
        begun = open_begun(path)
        seen.append((len(begun), begun.provenance.get(REMARKS, 0)))

    begin(path, stop, progress=look, background=background)
    commits = {*range(0, stop + 1, commit_rows)}
    assert {n_rows for n_rows, _ in seen} == (commits - {0} if commit_rows == 1 else commits)
    assert all(n_rows == remark for n_rows, remark in seen)
    assert open_begun(path).provenance[REMARKS] == stop
    assert build_store(path, Numbers(), look, background=background).provenance[REMARKS] == "all"


@pytest.mark.parametrize("is_full_first", [True, False])
def test_both_errors_are_told(path, is_full_first):
    """A source that is stopped after the disk was full, or while the row that fills it waits."""
    made, stopping = threading.Event(), threading.Event()

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
        full_disk()

    with pytest.raises(KeyboardInterrupt) as stopped:
        build_store(path, Failing(), full, background=BackgroundWriter(2))
    said, kept = stopped.value.__notes__
    assert said.startswith("writing had stopped before, found: [Errno 28] No space left on device")
    assert kept.startswith("1 trace is kept")


def test_the_command_line_is_kept_but_decides_nothing(path, whole):
    """It may be typed otherwise when the build goes on; the finished store tells the last."""
    begin(path, 5, command="python -m store one")
    begun = TraceStore.open(partial_path(path))
    assert command_line(begun) == "python -m store one"
    assert unfinished(path) == (
        f"{path}: expected a store, found that it is not finished: {partial_path(path)} holds "
        "5 traces of it. Go on with: python -m store one"
    )
    store = build_store(path, Numbers(), command="python -m store two")
    assert store.provenance[COMMAND] == "python -m store two"
    assert identity(store.provenance) == Numbers().provenance
    assert unfinished(path) is None
    assert content_of(build_store(path, Numbers(), command="python -m store three")) == whole


@pytest.mark.parametrize(
    "changed, difference",
    [
        ({"decoding": {"beams": 1, "seed": 0}}, "decoding.beams 4 instead of 1;"),
        ({"decoding": {"beams": 4, "seed": 0, "stop": "x"}}, "decoding.stop None instead of 'x';"),
        (
            {"decoding": {"beams": 2, "seed": 1}, "a": 1, "b": 2},
            "decoding.beams 4 instead of 2, decoding.seed 0 instead of 1, a None instead of 1, and "
            "1 more;",
        ),
    ],
)
def test_only_what_differs_is_shown(path, changed, difference):
    """Keys inside of settings by their path, three of them at most."""
    begin(path, 3)
    assert f"found {difference}" in complaint(SchemaError, build_store, path, Numbers(**changed))


def test_a_build_that_holds_no_trace_gives_way_to_other_settings(path):
    """It is cleared, also if its columns were others; one that holds a trace is not."""
    begin(path, 0)
    other = Numbers(2, dtype="bfloat16")
    other.schema = Schema(SCHEMA.columns | {"label": Column("int16")})
    with pytest.raises(KeyboardInterrupt):
        build_store(path, other)
    assert open_begun(path).provenance["dtype"] == "bfloat16"
    with pytest.raises(SchemaError, match=r"found columns|found dtype 'bfloat16' instead of None"):
        build_store(path, Numbers())


def test_what_others_have_in_an_empty_build_is_kept(path):
    """A file of a stranger, and all that another process writes there."""
    begin(path, 0)
    (partial_path(path) / "notes.txt").write_text("x")
    before = sorted(partial_path(path).rglob("*"))
    with pytest.raises(SchemaError, match=OTHERS_FILE):
        build_store(path, Numbers(dtype="bfloat16"))
    assert sorted(partial_path(path).rglob("*")) == before
    (partial_path(path) / "notes.txt").unlink()
    with (
        StoreWriter.open(partial_path(path)),
        pytest.raises(LockedError, match="expected no other writer"),
    ):
        build_store(path, Numbers(dtype="bfloat16"))


@pytest.mark.parametrize("command", ["info", "get", "verify", "repair"])
def test_commands_name_an_unfinished_store(path, capsys, command):
    """One line with its traces and the command that goes on, and status 2; but what is there can be
    described."""
    begin(path, 1, command="python -m store extract s.zarr --seed 3")
    said = refused(capsys, command, path, *(["t0"] if command == "get" else []))
    assert f"{path}.partial holds 1 trace of it" in said
    assert "Go on with: python -m store extract s.zarr --seed 3" in said
    assert main(["info", f"{path}.partial"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ": 1 trace, " in lines[0]
    assert lines[1] == "unfinished; go on with: python -m store extract s.zarr --seed 3"


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


def test_a_store_that_another_process_finishes_meanwhile_is_taken(path, whole):
    """No second one begins beside it."""
    assert content_of(build_store(path, Overtaken(path))) == whole
    assert [file.name for file in path.parent.iterdir()] == [path.name]


class Followed(Files):
    """It has its name under the lock; another process begins a build where it was moved from."""

    def rename_durably(self, source, target):
        is_whole = target.suffix == ".zarr"
        if is_whole:
            with pytest.raises(LockedError):
                StoreWriter.open(source)
        super().rename_durably(source, target)
        if is_whole:
            self.other = StoreWriter.create(source, SCHEMA)


def test_a_build_that_was_moved_leaves_its_successor_alone(path, whole):
    """Nobody takes one that is whole for one that was stopped."""
    files = Followed()
    assert content_of(build_store(path, Numbers(), files=files)) == whole
    with files.other as writer:
        for trace_id, row in islice(Numbers().rows(), 3):
            writer.append(trace_id, row)
    assert len(TraceStore.open(partial_path(path))) == 3
