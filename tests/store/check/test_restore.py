"""Files of a damaged store are taken from stores that have them, as their checksums tell."""

import shutil
from itertools import count

import numpy as np
import pytest
from damage import assert_store, content, flip, swap
from faults import Quick, is_killed
from oracle import ROWS, SCHEMA, write_store
from small import refused

from store import Column, CorruptError, Schema, TraceStore
from store.check.repair import plan_repair, repair_store
from store.check.restore import restore_files
from store.check.verify import verify_store
from store.cli.main import main
from store.format.contents import column_array
from store.transform.merge import merge_stores

PARTS = (ROWS[:4], ROWS[4:9], ROWS[9:])


def planned(capsys, path, *options):
    """What the command says that it would do."""
    return said(capsys, 1, path, *options)


def repair(capsys, path, *options):
    """What the command says as it repairs a store."""
    return said(capsys, 0, path, *options, "--yes")


def said(capsys, status, *words):
    capsys.readouterr()
    assert main(["repair", *map(str, words)]) == status
    return capsys.readouterr().out


@pytest.fixture
def merged(tmp_path):
    """A store of three that are where a launch puts its parts."""
    folder = tmp_path / "m.zarr.parts"
    folder.mkdir()
    for i, rows in enumerate(PARTS):
        write_store(folder / f"{i}.zarr", SCHEMA, rows)
    parts = [TraceStore.open(path) for path in sorted(folder.iterdir())]
    return merge_stores(tmp_path / "m.zarr", parts, lambda done: None)


def shards(store):
    """Of a column of three segments, the first shard of each: the store shares it with a part."""
    arrays = [column_array(store.manifest, name) for name in store.schema.columns]
    array = next(array for array in arrays if array.segments and len(array.segments) == 3)
    numbers = array.segments.first_shards.tolist()
    shared = [store.path / array.layout.shard_path(number) for number in numbers]
    assert all(file.stat().st_nlink == 2 for file in shared)
    return shared


def test_a_lost_shard_of_a_merged_store_is_taken_again(merged, tmp_path, capsys):
    """From the part that has it, which is found where a launch makes parts, or is named; as a copy,
    so that the next damage is not in both."""
    lost = shards(merged)[1]
    for options in ([], ["--from", tmp_path / "moved/1.zarr", tmp_path / "moved/0.zarr"]):
        lost.unlink()
        said = planned(capsys, merged.path, *options)
        assert "1 damaged file to take from other stores" in said
        assert not lost.exists()
        repair(capsys, merged.path, *options)
        assert_store(merged.path, ROWS)
        assert lost.stat().st_nlink == 1
        if not options:
            (tmp_path / "m.zarr.parts").rename(tmp_path / "moved")
    assert not (tmp_path / "m.zarr.damaged").exists()


def test_a_copy_that_is_damaged_is_not_taken(merged, tmp_path, capsys):
    """Both names are of one file, so that the part has its damage: only a backup helps."""
    shutil.copytree(merged.path, tmp_path / "backup.zarr")
    flip(shards(merged)[2], 3)
    assert "to take from other stores" not in planned(capsys, merged.path)
    flip(next(merged.path.glob("_offsets/*/c/0")), 3)
    before = content(tmp_path)
    assert "nothing can be done" in planned(capsys, merged.path)
    said = planned(capsys, merged.path, "--from", tmp_path / "backup.zarr")
    assert "2 damaged files to take from other stores" in said
    assert "to drop" not in said
    assert "nothing" not in said
    assert content(tmp_path) == before
    repair(capsys, merged.path, "--from", tmp_path / "backup.zarr")
    assert_store(merged.path, ROWS)


def test_a_disk_that_damages_a_file_again_ends_the_repair(path, monkeypatch):
    backup = TraceStore.open(shutil.copytree(path, path.with_name("b.zarr")))
    flip(path / "label/c/0", 3)
    monkeypatch.setattr("store.check.repair.restore_files", lambda *_: None)
    with pytest.raises(CorruptError, match=r"label/c/0: .* damaged again; copy the store"):
        repair_store(path, plan_repair(path, others=[backup]))


def test_a_named_store_that_is_none_is_a_mistake(whole, tmp_path, capsys):
    """Also where nothing is damaged."""
    line = refused(capsys, "repair", whole, "--from", tmp_path / "nowhere")
    assert "expected a trace store" in line


def test_a_kill_leaves_the_old_file_or_the_new_one(merged, tmp_path):
    """Nothing else changes, and the same call goes on."""
    lost = shards(merged)[0]
    file = str(lost.relative_to(merged.path))
    source = tmp_path / "m.zarr.parts/0.zarr" / file
    data = source.read_bytes()
    for n in count(1):
        lost.unlink()  # the part has it, too
        lost.write_bytes(b"damaged")
        killed = is_killed(lambda files: restore_files(merged.path, {file: source}, files), n)
        assert lost.read_bytes() in (b"damaged", data)
        assert source.read_bytes() == data
        if not killed:
            break
        restore_files(merged.path, {file: source}, Quick())
        assert lost.read_bytes() == data
    assert n > 3
    assert lost.read_bytes() == data


def test_compressed_shards_in_each_others_place_are_damage(tmp_path, capsys):
    """Most of their chunks are equal, and all are right by their own checksums: their rows are
    dropped, or taken from a backup, and never called whole."""
    column = Column("int32", codec="zstd", chunk_items=4, shard_items=32)
    rows = [(f"t{i}", {"flag": np.int32(i if i in (3, 40) else 0)}) for i in range(64)]
    backup = write_store(tmp_path / "b.zarr", Schema({"flag": column}), rows)
    path = shutil.copytree(backup, tmp_path / "s.zarr")
    swap(path / "flag/c/0", path / "flag/c/1")
    assert {problem.kind for problem in verify_store(path).problems} == {"damaged"}
    copy = shutil.copytree(path, tmp_path / "copy.zarr")
    repair(capsys, path, "--from", backup)
    assert_store(path, rows)
    assert "16 of 64 traces to drop" in repair(capsys, copy)
    dropped = {*range(4), *range(8, 12), *range(32, 36), *range(40, 44)}
    assert_store(copy, [row for i, row in enumerate(rows) if i not in dropped])


@pytest.mark.parametrize("column", ["tokens", "zipped"])
def test_lost_checksums_are_taken_from_a_backup(path, capsys, column):
    """Else bytes that are wrong as well would be taken as they are."""
    backup = shutil.copytree(path, path.with_name("b.zarr"))
    flip(path / f"_checksums/{column}/c/0/0", -1)  # of their table
    flip(path / f"{column}/c/0{'/0' * (column == 'zipped')}", 0)
    assert "taken as" not in planned(capsys, path, "--from", backup)
    repair(capsys, path, "--from", backup)
    assert_store(path, ROWS)


def test_files_of_another_store_are_not_taken(path, capsys):
    """Whose values fit its own checksums, and were put in the place of some here."""
    rows = [
        (trace_id, row | {"label": row["label"] + (i == 7)})
        for i, (trace_id, row) in enumerate(ROWS)
    ]
    other = write_store(path.with_name("other.zarr"), SCHEMA, rows, 2)
    shutil.copy(other / "label/c/0", path / "label/c/0")
    (problem,) = verify_store(path).problems
    first, last = problem.rows
    assert first <= 7 <= last < first + 5
    said = repair(capsys, path, "--from", other)
    assert f"{last - first + 1} of 17 traces to drop" in said
    assert_store(path, ROWS[:first] + ROWS[last + 1 :])


def test_rows_are_dropped_by_restored_offsets(path, capsys):
    """Damaged ones tell other rows of a chunk that no store has whole."""
    flip(path / "tokens/c/0", 4 * 5)
    backup = shutil.copytree(path, path.with_name("b.zarr"))
    first, last = verify_store(backup).problems[0].rows
    flip(path / "_offsets/tokens/c/0", 8 * first + 8)
    left = "1 file none of them has whole: traces may be dropped"
    assert left in planned(capsys, path, "--from", backup)
    assert left not in planned(capsys, path, "--from", backup, "--drop-columns", "tokens")
    said = repair(capsys, path, "--from", backup).split("planned again")[1]
    assert f"{last - first + 1} of 17 traces to drop" in said
    assert_store(path, ROWS[:first] + ROWS[last + 1 :])
