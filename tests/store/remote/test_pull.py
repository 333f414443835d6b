"""Pulls: checked before they have their name; stopped, they go on; and mixes of faults."""

import contextlib
import errno
import random
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import numpy as np
import pytest
from damage import content, shrink
from faults import Faulty, Stop, error_of, failing
from oracle import write_store
from pushing import assert_rows, grow, pull, push, removed, write

from store import (
    Column,
    CorruptError,
    NotFoundError,
    Schema,
    SchemaError,
    StoreError,
    StoreWriter,
    TraceStore,
    UnreachableError,
)
from store.check.verify import verify_store
from store.remote.transfer.commit import read_remote
from store.write.space import bytes_under

FAULTS = ("slow", "503", "reset", "stall", "short", "flip", "lost")
N_MIXES = 200
N_AT_ONCE = 6  # mixes, most of which wait
STATED_S = 60.0  # a push or a pull of so few requests, each within its own time


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture
def in_turn(monkeypatch):
    """Files are fetched one after the other."""
    monkeypatch.setattr("store.remote.transfer.pull.BLOCKS_AT_ONCE", 1)


@pytest.fixture
def pushed(bucket, tmp_path):
    """The objects of a store of five rows, and its path."""
    objects = bucket.open()
    path = write(tmp_path / "s.zarr", 5)
    push(path, objects)
    return objects, path


def test_a_pull_that_was_stopped_goes_on(bucket, pushed, tmp_path):
    """There is no store before it is whole."""
    objects, path = pushed
    hasty = bucket.open(limit_s=1.5, attempt_s=0.7)
    copy = tmp_path / "copy.zarr"
    reads = iter(range(9))
    gone = bucket.faulty(lambda *_: "503" if next(reads, None) is None else None)
    with gone, pytest.raises(UnreachableError):
        pull(hasty, copy)
    assert not copy.exists()
    assert pull(objects, copy, dry_run=True).n_present > 0
    assert not copy.exists()
    assert pull(objects, copy).n_present > 0
    assert content(copy) == content(path)
    assert not copy.with_name("copy.zarr.pull").exists()


def test_what_was_begun_of_an_earlier_state_goes_on_with_the_present_one(bucket, pushed, tmp_path):
    """Files that grew since are fetched again."""
    objects, path = pushed
    copy = tmp_path / "copy.zarr"
    with bucket.faulty("expired", "label/c/1"), pytest.raises(StoreError, match="expired"):
        pull(objects, copy)
    grow(path, 7)
    push(path, objects)
    pull(objects, copy)
    assert_rows(copy, 7)


def test_a_pull_outlasts_an_append(bucket, pushed, tmp_path, in_turn):
    """Checksums, which it fetches last, are replaced meanwhile."""
    _, path = pushed
    grow(path, 6)

    def faults(method, key):
        if method == "GET" and "/_checksums/" in key:
            bucket.server.faults = lambda *_: None
            push(path, bucket.open())
        return None

    bucket.server.faults = faults
    pull(bucket.open(limit_s=60.0, attempt_s=20.0, stall_s=20.0), tmp_path / "copy.zarr")
    assert_rows(tmp_path / "copy.zarr", 6)


def test_what_goes_on_says_what_it_keeps_and_has_room_where_it_removes(
    bucket, pushed, tmp_path, monkeypatch, in_turn
):
    """As in the place of a file that was half written; checksums are fetched anew."""
    objects, path = pushed
    copy = tmp_path / "copy.zarr"
    with bucket.faulty("expired", "/x/c/1"), pytest.raises(StoreError, match="expired"):
        pull(objects, copy)
    (tmp_path / "copy.zarr.pull" / "_tmp" / "7.part").write_bytes(bytes(bytes_under(path)))
    monkeypatch.setattr("store.write.space.free_bytes", lambda _: 0)
    fetched = []
    pulled = pull(objects, copy, progress=lambda done, total: fetched.append(done))
    assert 0 < pulled.n_present == pulled.n_files - len(fetched)


def test_what_was_begun_of_another_copy_is_fetched_again(bucket, tmp_path, in_turn):
    """Also where every chunk is whole, so that the copies' manifests are the same."""
    copies = [tmp_path / "one.zarr", tmp_path / "other.zarr"]
    score = Column("float32", chunk_items=1, shard_items=2)
    row = {"score": np.float32(0), "zone": np.int8(0)}
    write_store(copies[0], Schema({"score": score, "zone": Column("int8")}), [("a", row)])
    shutil.copytree(*copies)
    for number, path in enumerate(copies):
        with StoreWriter.open(path) as writer:
            writer.append("b", {**row, "score": np.float32(1 + number)})
        push(path, bucket.open(path.name))
    with bucket.faulty("expired", "/zone/c"), pytest.raises(StoreError, match="expired"):
        pull(bucket.open(copies[0].name), tmp_path / "copy.zarr")
    assert (tmp_path / "copy.zarr.pull" / "score" / "c").exists()
    pull(bucket.open(copies[1].name), tmp_path / "copy.zarr")
    assert content(tmp_path / "copy.zarr") == content(copies[1])


def test_wrong_bytes_are_fetched_again_or_are_an_error(bucket, pushed, tmp_path):
    """Never a store."""
    objects, _ = pushed
    flips = iter(range(6))

    def faults(method, path):
        return "flip" if "/c/" in path and next(flips, None) is not None else None

    with bucket.faulty(faults):
        pull(objects, tmp_path / "copy.zarr")
    assert_rows(tmp_path / "copy.zarr", 5)
    wrong = "expected what was pushed, found"
    with bucket.faulty("flip", "/x/c/1"), pytest.raises(CorruptError, match=wrong):
        pull(objects, tmp_path / "other.zarr")
    assert not (tmp_path / "other.zarr").exists()


def test_a_bucket_that_lost_an_object_is_an_error(pushed, tmp_path):
    """Which names the object."""
    objects, _ = pushed
    objects.delete("x/c/1/0")
    with pytest.raises(CorruptError, match="x/c/1/0: expected an object of the store, found none"):
        pull(objects, tmp_path / "copy.zarr")


def test_a_full_disk_stops_a_pull_that_goes_on_later(pushed, tmp_path):
    """Whatever file operation meets it first."""
    objects, path = pushed
    copy = tmp_path / "copy.zarr"
    for at in (1, 40, 90):
        files = Faulty(at, failing(errno.ENOSPC), lasting=True)
        assert error_of(lambda files=files: pull(objects, copy, files=files)) == errno.ENOSPC
        assert not copy.exists()
    pull(objects, copy)
    assert content(copy) == content(path)


def stop():
    raise Stop


@pytest.mark.parametrize("n_last", [6, pytest.param(400, marks=pytest.mark.slow)])
def test_a_pull_that_is_killed_anywhere_goes_on(pushed, tmp_path, n_last):
    """Also between the last file operations; and nothing is left beside the store."""
    objects, path = pushed
    counting = Faulty(0, stop)
    pull(objects, tmp_path / "whole.zarr", files=counting)
    for at in range(max(1, counting.n - n_last), counting.n + 1):
        copy = tmp_path / f"{at}.zarr"
        with pytest.raises(Stop):
            pull(objects, copy, files=Faulty(at, stop))
        pull(objects, copy)
        assert content(copy).items() >= content(path).items()
        assert verify_store(copy).problems == []
        assert not copy.with_name(f"{at}.zarr.pull").exists()


def test_nothing_to_pull_and_no_place_for_it_are_refused(bucket, pushed, tmp_path):
    """A path that is taken, an address without a store."""
    objects, path = pushed
    with pytest.raises(SchemaError, match="found another store"):
        pull(objects, write(tmp_path / "taken.zarr", 1))
    write(tmp_path / "copy.zarr.pull", 1)
    with pytest.raises(SchemaError, match="expected nothing, found files; remove it"):
        pull(objects, tmp_path / "copy.zarr")
    with pytest.raises(SchemaError, match="outside of every store"):
        pull(objects, path / "inside.zarr")
    with pytest.raises(NotFoundError, match="expected a store"):
        pull(bucket.open("nothing"), tmp_path / "copy.zarr")


def attempt_of(work):
    """Do it; whether it succeeded. Anything but an error of the store's is a defect."""
    start = time.monotonic()
    is_done = False
    with contextlib.suppress(StoreError):
        work()
        is_done = True
    assert time.monotonic() - start < STATED_S
    return is_done


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_mixes_of_faults_give_right_bytes_or_a_named_error(buckets, tmp_path):
    """In the stated time, and the same command later has it right: push, append and pull."""
    first, grown = write(tmp_path / "first.zarr", 4), tmp_path / "grown.zarr"
    shutil.copytree(first, grown)
    grow(grown, 7)
    n_done = Counter()
    idle = Queue()
    for _ in range(N_AT_ONCE):
        idle.put(buckets())

    def run(seed):
        bucket = idle.get()
        try:
            n_done.update(run_mix(seed, bucket, (first, 4), (grown, 7), tmp_path / f"mix{seed}"))
        finally:
            idle.put(bucket)

    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        list(pool.map(run, range(N_MIXES)))
    print(dict(n_done))
    assert n_done["pushed True"] > N_MIXES / 2


def run_mix(seed, bucket, first, grown, folder):
    """Push, append and pull with some of the faults; then the same without, until it is right."""
    dice = random.Random(seed)  # noqa: S311
    share = dice.choice([0.02, 0.1, 0.3])
    kinds = dice.sample(FAULTS, dice.randrange(1, len(FAULTS) + 1))
    lock = threading.Lock()

    def faults(*_):
        with lock:
            return dice.choice(kinds) if dice.random() < share else None

    objects = bucket.open(f"store{seed}", limit_s=6.0, attempt_s=2.0, stall_s=0.8)
    calm = bucket.open(f"store{seed}", limit_s=60.0, attempt_s=20.0, stall_s=20.0)
    for number, (store, n_rows) in enumerate((first, grown)):
        path, copy = folder / f"{number}.zarr", folder / f"{number}.copy.zarr"
        shutil.copytree(store, path)
        with bucket.faulty(faults):
            is_pushed = attempt_of(lambda path=path: push(path, objects))
            is_pulled = attempt_of(lambda copy=copy: pull(objects, copy))
        yield from (f"pushed {is_pushed}", f"pulled {is_pulled}")
        if is_pulled:  # of a push that failed at its very end, or of the state before
            found = len(TraceStore.open(copy))
            assert found == n_rows or (not is_pushed and found == first[1])
            assert_rows(copy, found)
            removed(copy)
        push(path, calm, restart=not is_pushed)
        pull(calm, copy)
        assert_rows(copy, n_rows)
        assert read_remote(calm).manifest.n_rows == n_rows
    shutil.rmtree(folder)
