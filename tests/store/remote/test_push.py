"""Pushes: whole, stopped, appended; what readers of an earlier state hold is never replaced."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from damage import ROWS, SMALL, content, shrink
from merged import write_merged
from oracle import write_store
from pushing import as_files, assert_rows, grow, pull, push, relabelled, removed, scored, write

from store import (
    Column,
    CorruptError,
    LockedError,
    Schema,
    SchemaError,
    StoreError,
    StoreWriter,
    TraceStore,
    UnreachableError,
)
from store.check.verify import verify_store
from store.format.contents import WORKING_DIR, could_be_ours
from store.format.manifest import read_manifest
from store.remote.transfer.card import CARD
from store.remote.transfer.commit import commit, read_remote


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture
def objects(bucket):
    return bucket.open()


@pytest.fixture
def path(tmp_path):
    """A store of three rows."""
    return write(tmp_path / "s.zarr", 3)


def test_a_store_is_pushed_and_pulled_as_it_is(objects, path, tmp_path):
    """File by file the same bytes; once more is nothing to do."""
    seen = []
    pushed = push(path, objects, progress=lambda done, total: seen.append((done, total)))
    assert (pushed.n_rows, pushed.n_new_rows, pushed.n_present) == (3, 3, 0)
    assert seen[-1] == (pushed.n_bytes, pushed.n_bytes)
    assert not push(path, objects).is_done
    assert pull(objects, tmp_path / "copy.zarr").is_done
    assert content(tmp_path / "copy.zarr") == content(path)
    assert not pull(objects, tmp_path / "copy.zarr").is_done


def test_a_card_says_what_is_there(objects, path):
    """Anew with each push; one that a person wrote stays, and there may be none."""
    push(path, objects, with_card=False)
    assert CARD not in objects.list()
    for n_rows in (4, 5):
        grow(path, n_rows)
        push(path, objects)
        card = objects.get(CARD).decode()
        assert f"\n{n_rows} traces of" in card
        assert all(f"| `{name}` | {one.dtype} |" in card for name, one in SMALL.stored.items())
        assert f'TraceStore.open("{objects.location}")' in card
    objects.delete(CARD)
    objects.put(CARD, b"by hand")
    grow(path, 6)
    push(path, objects)
    assert objects.get(CARD) == b"by hand"


def test_a_store_that_grew_is_appended_to(objects, tmp_path):
    """After each step the bucket has its rows; what a reader may hold of a column stays."""
    path = write(tmp_path / "s.zarr", 0)
    push(path, objects)
    for n_rows in (3, 4, 7):
        before, manifest = as_files(objects, removed(tmp_path / "before")), objects.get("zarr.json")
        grow(path, n_rows)
        pushed = push(path, objects)
        assert pushed.n_new_rows == n_rows - read_manifest(before).n_rows
        pull(objects, removed(tmp_path / "copy.zarr"))
        assert_rows(tmp_path / "copy.zarr", n_rows)
        now = as_files(objects, removed(tmp_path / "now"))
        assert_rows(now, n_rows, allowed=["leftover"])
        now = as_files(objects, removed(tmp_path / "now"), zarr_json=manifest)
        (now / WORKING_DIR).mkdir()  # as while the push is at work
        for name, data in content(before).items():
            is_small = name.startswith(("_offsets", "_checksums")) or name.endswith("zarr.json")
            is_small |= name == CARD
            assert is_small or content(now)[name] == data, name
        # as its readers see it: metadata of arrays, of another state, is no fault of the values
        assert_rows(now, read_manifest(before).n_rows, allowed=["document", "leftover"])
        assert not push(path, objects).is_done
    assert all(map(could_be_ours, objects.list().keys() - {"zarr.json", CARD}))
    assert not path.with_name("s.zarr.push").exists()


def test_a_store_that_was_merged_by_reference_is_appended_to(objects, tmp_path):
    """Its own segments come first."""
    path = write_merged(tmp_path / "s.zarr", SMALL, ROWS[:4], 2)
    push(path, objects)
    for n_rows in (5, 7):
        grow(path, n_rows)
        assert push(path, objects).is_done
        pull(objects, removed(tmp_path / "copy.zarr"))
        assert_rows(tmp_path / "copy.zarr", n_rows)


def test_what_was_pulled_and_has_grown_is_pushed_back(objects, path, tmp_path):
    """By whoever has it: two machines append in turn."""
    other = tmp_path / "other.zarr"
    push(path, objects)
    grow(path, 4)
    push(path, objects)
    pull(objects, other)
    grow(other, 6)
    assert push(other, objects).n_new_rows == 2
    grow(path, 5)
    with pytest.raises(SchemaError, match="expected at most the 5 traces"):
        push(path, objects)
    grow(other, 7)
    assert push(other, objects).n_new_rows == 1
    pull(objects, removed(path))
    assert_rows(path, 7)


def test_a_column_that_was_replaced_is_pushed_as_a_new_array(objects, path, tmp_path):
    """Beside the old one, which readers may hold."""
    push(path, objects)
    labels = {key: head for key, head in objects.list().items() if key.startswith("label/c")}
    rows = relabelled(path)
    for options in ({"dry_run": True}, {}):
        pushed = push(path, objects, **options)
        assert (pushed.n_new_rows, pushed.replaced) == (0, ["label"])
    assert labels.items() <= objects.list().items()
    pull(objects, tmp_path / "copy.zarr")
    assert_rows(tmp_path / "copy.zarr", 3, rows)


@pytest.mark.parametrize("has_grown", [False, True])
def test_a_copy_that_is_behind_undoes_nothing(objects, path, tmp_path, has_grown):
    """Columns that another copy has replaced or added since stay as they are in the bucket."""
    push(path, objects)
    for number, change in enumerate((relabelled, scored)):
        other = tmp_path / f"other{number}.zarr"
        pull(objects, other)
        change(other)
        push(other, objects)
        if has_grown:
            grow(path, 5 + number)
        before = objects.list()
        for options in ({}, {"restart": True}, {"dry_run": True}):
            with pytest.raises(
                SchemaError, match=r"found '(label@\d+|score)', which that never had"
            ):
                push(path, objects, **options)
        assert objects.list() == before
    pull(objects, tmp_path / "copy.zarr")
    assert TraceStore.open(tmp_path / "copy.zarr").column("score").tolist() == [0.0, 1.0, 2.0]


def test_copies_that_grew_on_their_own_are_refused(objects, path, tmp_path):
    """Although they have one UUID: their rows differ, or one value does."""
    other = shutil.copytree(path, tmp_path / "other.zarr")
    changed = shutil.copytree(path, tmp_path / "changed.zarr")
    grow(path, 5)
    push(path, objects)
    for copy, rows in ((other, ROWS[4:7]), (changed, [*ROWS[3:5], ROWS[6]])):
        with StoreWriter.open(copy) as writer:
            for number, (trace_id, row) in enumerate(rows):
                label = row["label"] ^ (copy == changed and number == 1)
                writer.append(trace_id, dict(row, label=label))
        with pytest.raises(SchemaError, match="grew on their own"):
            push(copy, objects)


def test_copies_of_one_manifest_and_other_values_are_told_apart(objects, tmp_path):
    """Where every chunk is whole, a manifest names no checksum: a column that each added anew."""
    column = Column("float32", chunk_items=1, shard_items=2)
    copies = [tmp_path / "one.zarr", tmp_path / "other.zarr"]
    write_store(copies[0], Schema({"label": Column("int8")}), [("a", {"label": np.int8(1)})])
    shutil.copytree(*copies)
    for path, score in zip(copies, (1.0, 2.0), strict=True):
        with StoreWriter.open(path) as writer:
            writer.add_column("score", column, iter([score]))
    assert read_manifest(copies[0]) == read_manifest(copies[1])
    push(copies[0], objects)
    assert not push(copies[0], objects).is_done
    with pytest.raises(SchemaError, match="found other values in 'score'"):
        push(copies[1], objects)
    with pytest.raises(SchemaError, match="another copy of this store"):
        pull(objects, copies[1])


def test_a_copy_that_another_program_made_is_not_appended_to(objects, path):
    """Nothing there says what it is a state of; the same state is recognised."""
    for file in path.rglob("*"):
        if file.is_file():
            objects.put(file.relative_to(path).as_posix(), file.read_bytes())
    assert not push(path, objects).is_done
    grow(path, 4)
    with pytest.raises(SchemaError, match="a copy that another program made"):
        push(path, objects)


def test_another_store_and_strangers_objects_are_refused(bucket, objects, path, tmp_path):
    """Nothing there is touched."""
    push(path, objects)
    before = objects.list()
    with pytest.raises(SchemaError, match="found another store"):
        push(write(tmp_path / "other.zarr", 3), objects)
    assert objects.list() == before
    strange = bucket.open("")
    for restart in (False, True):  # which does not help
        with pytest.raises(SchemaError, match=r"a store or nothing.*choose another address$"):
            push(path, strange, restart=restart)


def stopped_after(bucket, n_writes):
    """The server is gone after so many writes."""
    writes = iter(range(n_writes))

    def faults(method, path):
        return "503" if method == "PUT" and next(writes, None) is None else None

    return bucket.faulty(faults)


def test_a_push_that_was_stopped_goes_on(bucket, objects, path, tmp_path):
    """Where it stopped: readers see the state before until the end."""
    push(path, objects)
    grow(path, 5)
    for n_writes in (1, 8, 14):
        with stopped_after(bucket, n_writes), pytest.raises(UnreachableError):
            push(path, bucket.open(limit_s=1.5, attempt_s=0.7))
        assert read_remote(objects).manifest.n_rows == 3
    assert push(path, objects).n_present > 0
    pull(objects, tmp_path / "copy.zarr")
    assert_rows(tmp_path / "copy.zarr", 5)
    assert not any(key.startswith("_tmp/") for key in objects.list())


def test_what_another_push_left_is_replaced_on_request(bucket, objects, path, tmp_path):
    """As of an earlier state of the store: nothing tells that it is not at work any more."""
    with stopped_after(bucket, 30), pytest.raises(UnreachableError):
        push(path, bucket.open(limit_s=1.5, attempt_s=0.7))
    assert read_remote(objects) is None
    objects.put("gone/c/0", b"of a column that is not there any more")
    before = objects.list()
    grow(path, 5)
    for options in ({}, {"dry_run": True}):
        with pytest.raises(SchemaError, match=r"another push is at work.*push with --restart"):
            push(path, objects, **options)
    assert objects.list() == before
    push(path, objects, restart=True)
    assert "gone/c/0" not in objects.list()
    pull(objects, tmp_path / "copy.zarr")
    assert_rows(tmp_path / "copy.zarr", 5)


def test_other_programs_see_what_is_committed_although_another_push_was_stopped(
    bucket, objects, path, tmp_path
):
    """It had written the metadata of arrays, with its rows, which were not committed."""
    push(path, objects)
    other = shutil.copytree(path, tmp_path / "other.zarr")
    grow(path, 5)
    scored(other)

    def faults(method, key):
        is_commit = method == "PUT" and key.endswith("traces.zarr/zarr.json")
        return "denied" if is_commit else None

    with bucket.faulty(faults), pytest.raises(StoreError, match="refusal"):
        push(path, objects)
    with pytest.raises(LockedError, match="with --restart"):
        push(other, objects)
    push(other, objects, restart=True)
    now = as_files(objects, tmp_path / "now")
    assert {problem.kind for problem in verify_store(now).problems} == {"leftover"}


def test_rows_that_differ_in_where_they_end_are_of_one_push(bucket, objects, tmp_path):
    """All new objects of two such pushes are the same, and only what grows differs."""
    schema = Schema({"tokens": Column("int32", axis="tokens")})
    one = write_store(tmp_path / "one.zarr", schema, [("a", {"tokens": np.ones(3, np.int32)})])
    push(one, objects)
    other = shutil.copytree(one, tmp_path / "other.zarr")
    for path, lengths in ((one, (1, 0)), (other, (0, 1))):
        with StoreWriter.open(path) as writer:
            for name, length in zip("bc", lengths, strict=True):
                writer.append(name, {"tokens": np.ones(length, np.int32)})

    def meet(*_):
        patch.undo()
        with pytest.raises(LockedError, match="another push is at work"):
            push(other, bucket.open())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("store.remote.transfer.push.commit", lambda *args: (meet(), commit(*args)))
        push(one, objects)
    pull(objects, tmp_path / "copy.zarr")
    found = TraceStore.open(tmp_path / "copy.zarr").read([1, 2])["tokens"]
    assert found.offsets.tolist() == [0, 1, 1]


def test_what_a_first_push_left_that_came_too_late_is_in_nobodys_way(bucket, objects, tmp_path):
    """Also where the store that is there has no commit before it."""
    path = write(tmp_path / "s.zarr", 0)
    other = shutil.copytree(path, tmp_path / "other.zarr")

    def overtake(*_):
        patch.undo()
        push(other, bucket.open())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("store.remote.transfer.push.check_conditions", overtake)
        with pytest.raises(LockedError, match="another push committed meanwhile"):
            push(path, objects)
    grow(path, 3)
    assert push(path, objects).n_new_rows == 3


def test_other_bytes_in_the_place_of_a_file_are_replaced_on_request(objects, path, tmp_path):
    """They may be of a push that is at work."""
    objects.put("label/c/0", b"other")
    with pytest.raises(LockedError, match=r"label/c/0: .*with --restart"):
        push(path, objects)
    assert objects.get("label/c/0") == b"other"
    push(path, objects, restart=True)
    pull(objects, tmp_path / "copy.zarr")
    assert_rows(tmp_path / "copy.zarr", 3)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    "step, words",
    [
        ("check_conditions", "another push committed meanwhile"),
        ("check_present", "another push is at work"),  # it saw the objects, and its state was there
    ],
)
def test_a_push_that_another_overtook_replaces_nothing(
    bucket, objects, path, tmp_path, step, words, restart
):
    """Neither with what it saw before the other one committed, nor what had to be new."""
    push(path, objects)
    late = shutil.copytree(path, tmp_path / "late.zarr")
    grow(late, 4)

    def overtake(*_):
        patch.undo()
        for n_rows in (4, 5):
            grow(path, n_rows)
            push(path, bucket.open())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"store.remote.transfer.push.{step}", overtake)
        with pytest.raises(LockedError, match=words):
            push(late, objects, restart=restart)
    pull(objects, tmp_path / "copy.zarr")
    assert_rows(tmp_path / "copy.zarr", 5)


def first(n, fault, method, part):
    """Faults of a server: this one happens to the first `n` requests for paths with a part."""
    left = iter(range(n))
    return lambda asked, path: (
        fault if asked == method and part in path and next(left, None) is not None else None
    )


def test_a_byte_that_is_flipped_on_its_way_is_written_again(bucket, objects, path, tmp_path):
    """The server's etags show it; what others wrote is not replaced."""
    bucket.server.faults = first(3, "flip-unseen", "PUT", "/c/")
    push(path, objects)
    pull(objects, tmp_path / "copy.zarr")
    assert content(tmp_path / "copy.zarr") == content(path)


def test_checksums_that_come_wrong_are_fetched_again(bucket, objects, path, tmp_path):
    """An append takes the last of them from the bucket, to write them with its own."""
    push(path, objects)
    grow(path, 5)
    bucket.server.seen.clear()
    bucket.server.faults = first(1, "flip", "GET", "/_checksums/")
    push(path, objects)
    assert [fault for _, _, fault in bucket.server.seen if fault] == ["flip"]
    paths = [path for _, path, _ in bucket.server.seen]
    planned = paths[: next(n for n, path in enumerate(paths) if "/_tmp/push-" in path)]
    asked = [path for path in planned if "/_checksums/" in path]
    assert len(asked) == len({*asked}) + 1
    pull(objects, tmp_path / "copy.zarr")
    assert_rows(tmp_path / "copy.zarr", 5)


@pytest.mark.parametrize("is_append", [False, True])
@pytest.mark.parametrize(
    "damage, words",
    [
        (Path.unlink, "/c/.*(found none|No such file)"),
        (lambda file: file.write_bytes(b""), "expected more than .* bytes, found 0"),
    ],
)
def test_a_store_that_lost_its_end_is_not_pushed(objects, path, is_append, damage, words):
    """As a disk or a copy leaves it that went wrong: files that are missing or too short."""
    if is_append:
        push(path, objects)
        relabelled(path)
    before = objects.list()
    last = max(path.glob("label@*/c/*" if is_append else "x/c/*/*"), key=str)
    damage(last)
    with pytest.raises(CorruptError, match=f"{words}.*; restore it from a copy"):
        push(path, objects)
    assert objects.list() == before


def test_a_local_writer_and_a_push_exclude_each_other(objects, path):
    """The files of a store that is pushed stay what they are."""
    with StoreWriter.open(path), pytest.raises(LockedError, match="at work"):
        push(path, objects)
