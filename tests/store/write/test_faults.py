"""Nothing lost, nothing half: writers that are killed, disks that fail, power cuts, and readers
beside a writer."""

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from damage import assert_store, flip
from faults import (
    Faulty,
    Quick,
    Recorder,
    Stop,
    allowed_states,
    error_of,
    failing,
    is_killed,
    lay_out,
    start,
    wait,
)
from oracle import assert_same_row, bits, make_value

from store import (
    Column,
    CorruptError,
    IncompleteError,
    LockedError,
    NotFoundError,
    Schema,
    SchemaError,
    StoreWriter,
    TraceLoader,
    TraceStore,
)
from store.check.repair import damaged_path, dropped_path, plan_repair, repair_store
from store.transform.merge import merge_stores
from store.write.build import partial_path
from store.write.files import Files

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
SCHEMA = Schema(
    {
        "tokens": Column("int32", axis="tokens", chunk_items=2, shard_items=8),
        "hidden": Column(
            "float16",
            (2, 3),
            axis="tokens",
            axis_names=("layers", "hidden"),
            split=("layers",),
            chunk_items=2,
            shard_items=6,
        ),
        "zipped": Column(
            "float32", (2,), axis="tokens", codec="zstd", chunk_items=2, shard_items=4
        ),
        "label": Column("int8", chunk_items=2, shard_items=4),
        "question": Column("utf8"),
    }
)
NEW = {
    "score": Column("float32", chunk_items=2, shard_items=4),
    "label": Column("int64", codec="zstd"),
}
LENGTHS = (3, 0, 4, 1)  # items of the first rows: tails end within chunks


@cache
def row(i: int) -> tuple[str, dict]:
    """Row `i`, always the same."""
    rng = np.random.default_rng([i])
    return f"trace {i} é", {
        name: make_value(c, LENGTHS[i % 4], rng) for name, c in SCHEMA.columns.items()
    }


def rows(*bounds: int) -> list[tuple[str, dict]]:
    return [row(i) for i in range(*bounds)]


def new_values(n: int, version: int = 1) -> list[dict]:
    return [
        {"score": np.float32(i + version / 8), "label": np.int64(-i - version)} for i in range(n)
    ]


def with_new(found: list[tuple[str, dict]], version: int = 1) -> list[tuple[str, dict]]:
    return [
        (i, old | new) for (i, old), new in zip(found, new_values(len(found), version), strict=True)
    ]


def append(path: Path, new: list[tuple[str, dict]], files: Files | None = None) -> None:
    with StoreWriter.open(path, files or Quick()) as writer:
        for one in new:
            writer.append(*one)


def create(path: Path, n: int = 0) -> Path:
    StoreWriter.create(path, SCHEMA, files=Quick()).close()
    for first in range(0, n, 2):
        append(path, rows(first, min(n, first + 2)))
    return path


def as_bits(found: list[tuple[str, dict]]) -> list:
    """Rows, comparable: the bits of every column, in its place."""
    return [
        (trace_id, [(name, bits(value)) for name, value in values.items()])
        for trace_id, values in found
    ]


def content(path: Path, check: bool = False) -> list:
    """The rows of a store as `as_bits` has them; they are found by their ids."""
    store = TraceStore.open(path, check=check)
    assert [store.row_of(trace_id) for trace_id in store.ids] == list(range(len(store)))
    return as_bits([(trace.id, dict(trace)) for trace in store])


def state_of(path: Path, states: list) -> list | None:
    """Which of these states the store is in, read with and without checksums; None: there is no
    store."""
    try:
        found = content(path)
    except NotFoundError:
        assert None in states
        return None
    (state,) = [state for state in states if state is not None and as_bits(state) == found]
    assert content(path, check=True) == found
    return state


def n_lost_on_closing(writer: StoreWriter) -> int:
    """How many rows a writer says are lost when it is closed."""
    try:
        writer.close()
    except IncompleteError as error:
        lost = r"and (\d+) rows? appended since the last commit (is|are) discarded"
        return int(re.search(lost, str(error))[1])
    return 0


def more_rows(state: list[tuple[str, dict]]) -> list[tuple[str, dict]]:
    """Three rows with the columns of a state."""
    new = {name: state[0][1][name] for name in NEW if state and name in state[0][1]}
    return [(f"more {len(state)}.{i}", old | new) for i, (_, old) in enumerate(rows(7, 10))]


def assert_goes_on(path: Path, state: list[tuple[str, dict]]) -> None:
    """The next writer leaves a whole store, and the next commit works."""
    StoreWriter.open(path, Quick()).close()
    assert_store(path, state)
    more = more_rows(state)
    append(path, more)
    assert_store(path, [*state, *more])


SLOW = [pytest.mark.slow, pytest.mark.timeout(1200)]
STEPS = [151, pytest.param(3, marks=SLOW)]
MANY_STEPS = 607  # of a merge, which has many


class Job(NamedTuple):
    """What a writer does to a copy of a store of some rows, None: to nothing."""

    n_rows: int | None
    work: Callable[[Path, Files], object]
    check: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda path: None


def create_empty(path: Path, files: Files) -> None:
    StoreWriter.create(path, SCHEMA, files=files).close()


def assert_creates_again(path: Path) -> None:
    """No store, or an empty one; what is no store can be removed and created again."""
    if state_of(path, [None, []]) is None:
        shutil.rmtree(path, ignore_errors=True)
        create(path)
    assert_goes_on(path, [])


def append_and_commit(path: Path, files: Files) -> None:
    """Two commits by a writer that takes up a tail: full shards, tails, merged runs."""
    with StoreWriter.open(path, files) as writer:
        append_twice(writer)


def append_twice(writer: StoreWriter) -> None:
    """What is not there yet of two commits."""
    for bounds in ((3, 6), (6, 9)):
        for trace_id, values in rows(*bounds):
            if trace_id not in writer:
                writer.append(trace_id, values)
        writer.commit()
        done_path(writer.root).write_text(str(len(writer)))


def done_path(path: Path) -> Path:
    """Where it is said how many rows are committed."""
    return path.with_suffix(".done")


def assert_appends_again(path: Path) -> None:
    """Every row whose commit had returned is there, and a whole number of commits."""
    state = state_of(path, [rows(3), rows(6), rows(9)])
    done = done_path(path)
    assert not done.exists() or len(state) >= int(done.read_text())
    assert_goes_on(path, state)


def set_once(writer: StoreWriter) -> None:
    writer.set_columns(NEW, new_values(5))


def set_twice(path: Path, files: Files) -> None:
    with StoreWriter.open(path, files) as writer:
        writer.set_columns(NEW, new_values(5, 1))
        writer.set_columns(NEW, new_values(5, 2))


def assert_sets_again(path: Path) -> None:
    old = rows(5)
    assert_goes_on(path, state_of(path, [old, with_new(old, 1), with_new(old, 2)]))


def merge(path: Path, files: Files, *, copy: bool) -> None:
    """Row by row, or by reference."""
    parts = [TraceStore.open(path.parents[1] / name) for name in ("a.zarr", "b.zarr")]
    merge_stores(path, parts, lambda done: None, files=files, copy=copy)


def assert_merges_again(path: Path, *, copy: bool) -> None:
    """Nothing is at the path or all of it; the same call again ends with the right store; the parts
    are untouched."""
    state_of(path, [None, rows(6)])
    merge(path, Quick(), copy=copy)
    assert not partial_path(path).exists()
    assert_goes_on(path, state_of(path, [rows(6)]))
    for name, expected in (("a.zarr", rows(3)), ("b.zarr", rows(3, 6))):
        assert_store(path.parents[1] / name, expected)


def repair(path: Path, files: Files) -> None:
    repair_store(path, plan_repair(path), files=files)


def damage_label(path: Path) -> None:
    flip(path / "label/c/0", 1)


def assert_drops_rows(path: Path) -> None:
    """The path always holds the old store or the repaired one; repairing again ends with the
    dropped ids listed."""
    store = TraceStore.open(path)
    is_old = len(store) == 8
    if is_old:
        assert [bits(t["hidden"]) for t in store] == [bits(old["hidden"]) for _, old in rows(8)]
    else:
        state_of(path, [rows(2, 8)])
    repair(path, Quick())
    listed = [line.split("\t")[1] for line in dropped_path(path).read_text().splitlines()[1:]]
    assert list(map(json.loads, listed)) == [trace_id for trace_id, _ in rows(2)]
    assert TraceStore.open(damaged_path(path)).uuid in dropped_path(path).read_text()
    assert_goes_on(path, state_of(path, [rows(2, 8)]))
    found = sorted(entry.name for entry in path.parent.iterdir())
    assert found == [path.name, damaged_path(path).name, dropped_path(path).name]


def damage_metadata(path: Path) -> None:
    (path / "tokens/zarr.json").write_text("{}")
    (path / "_offsets/zarr.json").unlink()
    first, stop = TraceStore.open(path).manifest.runs[-1]
    flip(path / f"_index/{first}-{stop}/hash/c/0", 3)


def assert_writes_metadata_again(path: Path) -> None:
    """And the id table; no row is touched."""
    assert [bits(t["zipped"]) for t in TraceStore.open(path)] == [
        bits(old["zipped"]) for _, old in rows(8)
    ]
    repair(path, Quick())
    assert_goes_on(path, state_of(path, [rows(8)]))


JOBS = {
    "create": Job(None, create_empty, assert_creates_again),
    "append": Job(3, append_and_commit, assert_appends_again),
    "set columns": Job(5, set_twice, assert_sets_again),
    "merge a copy": Job(None, partial(merge, copy=True), partial(assert_merges_again, copy=True)),
    "merge": Job(None, partial(merge, copy=False), partial(assert_merges_again, copy=False)),
    "drop rows": Job(8, repair, assert_drops_rows, damage_label),
    "write metadata": Job(8, repair, assert_writes_metadata_again, damage_metadata),
}


@pytest.mark.parametrize(
    "name, step",
    [
        *((name, MANY_STEPS if name.startswith("merge") else STEPS[0]) for name in JOBS),
        *(pytest.param(name, 3, marks=SLOW) for name in JOBS),
    ],
)
def test_kill(tmp_path, monkeypatch, name, step):
    """A process is killed at each `step`-th operation; what is left is whole, and goes on."""
    job = JOBS[name]
    base = tmp_path / "base.zarr"
    if name.startswith("merge"):
        monkeypatch.setattr("store.write.writer.COMMIT_ROWS", 2)
        create(tmp_path / "a.zarr", 3)
        append(create(tmp_path / "b.zarr"), rows(3, 6))
    elif job.n_rows:
        job.prepare(create(base, job.n_rows))
    for n in count():
        path = tmp_path / str(n) / "s.zarr"
        path.parent.mkdir()
        if job.n_rows:
            shutil.copytree(base, path)
        killed = is_killed(partial(job.work, path), 1 + n * step + n % 7 * (step > 1))
        job.check(path)
        shutil.rmtree(path.parent)
        if not killed:
            break
    assert n
    print(f"\n{name}: {n} kills survived")


FULL, BROKEN = (errno.ENOSPC, False), (errno.EIO, True)
APPENDS = (append_twice, [rows(3), rows(6), rows(9)])
SETS = (set_once, [rows(5), with_new(rows(5))])


@pytest.mark.parametrize(
    "work, states, fault, step",
    [
        (*APPENDS, FULL, 151),
        (*APPENDS, BROKEN, 151),
        (*SETS, FULL, 31),
        *(
            pytest.param(*job, fault, 3, marks=SLOW)
            for job in (APPENDS, SETS)
            for fault in (FULL, BROKEN)
        ),
    ],
)
def test_a_disk_that_fails(tmp_path, work, states, fault, step):
    """At any operation: the error is raised, the writer refuses more, the store is at a commit.

    A new writer goes on. Closing it says how many rows are not in the store.
    """
    number, lasting = fault
    base = create(tmp_path / "base.zarr", len(states[0]))
    for n in count():
        path = shutil.copytree(base, tmp_path / f"{n}.zarr")
        writer = StoreWriter.open(path, Faulty(0, failing(number), lasting))
        writer.files.begin(1 + n * step)
        failed = error_of(partial(work, writer))
        assert failed in (None, number)
        refused = (writer.commit, partial(writer.append, *row(9))) if work is append_twice else ()
        for go_on in refused if failed else ():
            with pytest.raises(IncompleteError, match="committed rows are safe: reopen the store"):
                go_on()
        n_appended = len(writer)
        n_lost = n_lost_on_closing(writer)
        assert len(state_of(path, states)) + n_lost == n_appended
        with StoreWriter.open(path, Quick()) as again:
            work(again)
        assert_goes_on(path, state_of(path, states[-1:]))
        shutil.rmtree(path)
        if not failed:
            break
    print(f"\n{errno.errorcode[number]}{' and all later ones' * lasting}: {n} failures survived")


def test_a_store_that_cannot_be_written_is_read(tmp_path, monkeypatch):
    """As on a file system that is mounted so; root may write into any directory."""
    path = create(tmp_path / "s.zarr", 3)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SchemaError, match=f"{path}: expected a directory that can be written"):
        StoreWriter.open(path)
    assert_store(path, rows(3))


def test_a_quota(tmp_path):
    """Files may not grow beyond a limit: a clear error, the last commit; without the limit, the
    same rows go in."""
    path = create(tmp_path / "s.zarr", 3)

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        with pytest.raises(OSError, match="File too large"):
            append(path, rows(3, 9))

    assert wait(start(work)) == 0
    state_of(path, [rows(3)])
    append(path, rows(3, 9))
    assert_goes_on(path, rows(9))


def live(path: Path, files: Recorder) -> None:
    """A store's life: created, three commits, columns set, one more commit."""
    log = files.log
    log.append(("may", []))
    StoreWriter.create(path, SCHEMA, files=files).close()
    log.append(("done", []))
    for bounds in ((0, 2), (2, 5), (5, 7)):
        commit(path, files, rows(bounds[0]), rows(*bounds))
    log.append(("may", with_new(rows(7))))
    with StoreWriter.open(path, files) as writer:
        writer.set_columns(NEW, new_values(7))
    log.append(("done", with_new(rows(7))))
    commit(path, files, with_new(rows(7)), with_new(rows(9))[7:])


def commit(path: Path, files: Recorder, old: list, new: list) -> None:
    files.log.append(("may", [*old, *new]))
    append(path, new, files)
    files.log.append(("done", [*old, *new]))


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    """Where a store was, and the log of its life."""
    base = tmp_path_factory.mktemp("life")
    recorder = Recorder()
    live(base / "s.zarr", recorder)
    return base, recorder.log


def assert_survives(base: Path, log: list[tuple], target: Path, keeps, *, goes_on: bool) -> None:
    """After a power cut the store is at the last commit, or at one that was being made."""
    lay_out(log, base, target, keeps)
    state = state_of(target / "s.zarr", allowed_states(log))
    if goes_on and state is not None:
        assert_goes_on(target / "s.zarr", state)
    shutil.rmtree(target)


@pytest.mark.parametrize("n_cuts", [30, pytest.param(1000, marks=SLOW)])
def test_power_cut(tmp_path, life, n_cuts):
    """After any operation; with all that was done, with only what was durable, and with any part of
    the bytes and names that were not synced."""
    base, log = life
    for seed in range(n_cuts):
        rng = random.Random(seed)  # noqa: S311 - to be repeated
        share = (0, 1, rng.random())[seed % 3]
        cut = log[: rng.randrange(len(log) + 1)]

        def keeps(rng: random.Random = rng, share: float = share) -> bool:
            return rng.random() < share

        assert_survives(base, cut, tmp_path / "cut", keeps, goes_on=seed % 10 == 0)
    print(f"\npower cut: {n_cuts} losses of {len(log)} operations survived")


@pytest.mark.parametrize("step, n_cuts", [(97, 3), pytest.param(3, 8, marks=SLOW)])
def test_power_cut_after_a_kill(tmp_path, life, step, n_cuts):
    """What a writer that was killed before a sync had done is not taken for durable by the next
    one."""
    rng = random.Random(0)  # noqa: S311
    stops = [
        i
        for i, entry in enumerate(life[1])
        if entry[0] == "sync_dir" and life[1][i - 1][0] in ("rename", "make")
    ]
    commits = [i for i in stops if life[1][i - 1][-1] == life[0] / "s.zarr/zarr.json"]
    for stop in [*commits, *stops[::step]]:
        base = tmp_path / str(stop)
        base.mkdir(exist_ok=True)
        recorder = Recorder(stop)
        with suppress(Stop):
            live(base / "s.zarr", recorder)
        recorder.stop = None
        state = state_of(base / "s.zarr", allowed_states(recorder.log))
        if state is not None:
            commit(base / "s.zarr", recorder, state, more_rows(state))
            n_next = len(recorder.log) - stop
            for _ in range(n_cuts):
                steps = (
                    rng.randrange(40)
                    if stop in commits
                    else int(rng.random() ** 0.1 * (n_next + 1))
                )
                # early: a new writer clears orphans; late: its commit is done
                cut = stop + min(n_next, steps)
                assert_survives(
                    base,
                    recorder.log[:cut],
                    tmp_path / "cut",
                    lambda: rng.random() < 0.5,
                    goes_on=False,
                )
        shutil.rmtree(base)


def read_until(path: Path, version: int, check: bool, num_workers: int) -> None:
    """Read epoch after epoch of whatever snapshot is there, until columns of this version are seen.

    A snapshot whose column was replaced meanwhile may be refused, with a message that says what to
    do.
    """
    store = TraceStore.open(path, check=check)
    while True:
        seen_version = store.provenance.get("version")
        try:
            seen = []
            for batch in TraceLoader(store, batch_size=16, shuffle=True, num_workers=num_workers):
                for i, found in zip(batch.rows.tolist(), batch, strict=True):
                    new = {} if seen_version is None else score(i, seen_version)
                    assert_same_row(found, row(i)[1] | new)
                    seen.append(i)
            assert sorted(seen) == list(range(len(store)))
        except CorruptError as error:
            assert "it was changed meanwhile: open the store again" in str(error)  # noqa: PT017
            assert store.refresh().generation > store.generation
        if seen_version == version:
            return
        store = store.refresh()


def score(i: int, version: int) -> dict:
    return {"score": np.float32(i * 1000 + version)}


@pytest.fixture
def children():
    """Processes, which do not outlive the test."""
    found: list[int] = []
    yield found
    for child in found:
        os.kill(child, signal.SIGKILL)
        wait(child)


@pytest.mark.parametrize("n_commits", [16, pytest.param(100, marks=SLOW)])
def test_readers_beside_a_writer(tmp_path, children, n_commits):
    """Four readers, two of which check every chunk, see their snapshots while tails and columns are
    replaced."""
    path = create(tmp_path / "s.zarr", 10)
    first = TraceStore.open(path)
    children += [
        start(partial(read_until, path, n_commits, check=i % 2 == 0, num_workers=i // 2))
        for i in range(4)
    ]
    with StoreWriter.open(path, Quick()) as writer:
        for n in range(1, n_commits + 1):
            trace_id, values = row(len(writer))
            writer.append(
                trace_id, values | (score(len(writer), (n - 1) // 8 * 8) if n > 8 else {})
            )
            writer.commit()
            if n % 8 == 0 or n == n_commits:
                column = {"score": Column("float32", chunk_items=4, shard_items=16)}
                values = [score(i, n) for i in range(len(writer))]
                writer.set_columns(column, values, {"version": n})
            time.sleep(0.01)
    assert [wait(children.pop()) for _ in range(4)] == [0] * 4
    assert first.refresh().generation > first.generation
    assert len(first) == 10
    assert len(first.refresh()) == 10 + n_commits
    print(f"\n{n_commits} commits beside 4 readers: nothing wrong, nothing stale")


def test_the_lock_ends_with_its_writer_not_with_its_children(tmp_path, children):
    """Worker processes that were forked from it may live on for a while. A second writer gets an
    error of one line."""
    path = create(tmp_path / "s.zarr", 3)
    ours, theirs = os.pipe()

    def hold():
        writer = StoreWriter.open(path, Quick())
        writer.append(*row(3))
        worker = start(lambda: time.sleep(60))
        os.write(theirs, worker.to_bytes(4, "little"))
        time.sleep(60)
        writer.close()

    children.append(start(hold))
    worker = int.from_bytes(os.read(ours, 4), "little")
    holder = children.pop()
    with pytest.raises(LockedError, match=rf"found process {holder} \(.*\) at work") as caught:
        StoreWriter.open(path)
    assert "\n" not in str(caught.value)
    os.kill(holder, signal.SIGKILL)
    assert wait(holder) == -signal.SIGKILL
    assert_goes_on(path, rows(3))
    os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize(
    "limit, value, n_kept",
    [
        ("COMMIT_ROWS", 5, 5),
        ("COMMIT_ROWS", 1, 9),
        ("COMMIT_BYTES", 1, 9),
        ("COMMIT_S", 0.0, 9),
        ("COMMIT_S", 99, 0),
    ],
)
def test_a_killed_writer_loses_at_most_a_limit(tmp_path, monkeypatch, limit, value, n_kept):
    """It commits by itself, by rows, bytes and seconds."""
    monkeypatch.setattr(f"store.write.writer.{limit}", value)
    path = create(tmp_path / "s.zarr")
    writer = StoreWriter.open(path, Quick())
    for one in rows(9):
        writer.append(*one)
    assert content(path, check=True) == as_bits(rows(n_kept))
    writer.discard()
