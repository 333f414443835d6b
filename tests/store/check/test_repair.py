"""`python -m store repair`: says what it would do, loses nothing silently, keeps the old store."""

import errno
import json
import shutil

import pytest
from damage import assert_store, content, edit_json, flip, shrink
from oracle import ROWS, SCHEMA, WRITTEN, assert_same_row, write_store

from store import CorruptError, StoreWriter, TraceStore
from store.check.repair import plan_repair, repair_store
from store.check.verify import verify_store
from store.cli.main import main


def repair(capsys, path, *options):
    status = main(["repair", str(path), *options])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def repaired(capsys, path, *options):
    """Repair a store, and return how many rows it has, as the command says."""
    status, out, _ = repair(capsys, path, *options, "--yes")
    last = out.splitlines()[-1]
    assert status == 0
    return int(last.removeprefix(f"{path}: repaired, ").removesuffix(" traces"))


def names_beside(path):
    """What is in the folder of a store, in order."""
    return sorted(entry.name for entry in path.parent.iterdir())


def assert_rows(path, kept):
    """The store holds these of the rows."""
    assert_store(path, [ROWS[row] for row in kept])


def leave_crash(path):
    """What a killed writer leaves: a shard and a run too many, a working file, metadata ahead."""
    (path / "_tmp").mkdir()
    (path / "_tmp/tokens.shard").write_bytes(b"half")
    (path / "label/c/7").write_bytes(b"too many")
    shutil.copytree(next(path.glob("_index/0-*")), path / "_index/17-30")
    edit_json(path / "label/zarr.json", shape=[40])


def lose_metadata(path):
    (path / "flag/zarr.json").write_text("{}")
    (path / "_offsets/zarr.json").unlink()
    edit_json(path / "zarr.json", strange=1)


def damage_ids(path):
    flip(next(path.glob("_index/*/row/c/0")), 8)


def damage_checksums(path):
    flip(path / "_checksums/label/c/0/0", -1)


def lose_compressed_checksums(path):
    """A chunk's own checksum vouches for what it holds."""
    flip(path / "_checksums/zipped/c/0/0")
    flip(path / "_checksums/planes/c/0/0", 4)


def damage_rows(path):
    """Labels of rows 5 to 9, and what is in the first chunk of the states, rows 0 to 2."""
    flip(path / "label/c/0", 7)
    flip(path / "states/c/0/0/0", 1)


def lose_shard_of_ids(path):
    (path / "trace_id/c/0").unlink()


def lose_offsets(path):
    (path / "_offsets/tokens/c/0").unlink()


LOST = "checksums lost for {} files; what they hold is taken as it is, into a new store"
KEPT = ["s.zarr", "s.zarr.damaged"]
MENDED = [
    (leave_crash, "8 files of an interrupted write to remove or to set back", ["s.zarr"]),
    (lose_metadata, "3 files of metadata to write again", ["s.zarr"]),
    (damage_ids, "1 run of the id table damaged: it is built again", ["s.zarr"]),
    (damage_checksums, LOST.format(3), KEPT),
    (lose_compressed_checksums, LOST.format(2), KEPT),
]


def test_a_whole_store_stays_as_it_is(path, capsys):
    before = content(path.parent)
    for options in ((), ("--yes",)):
        status, out, err = repair(capsys, path, *options)
        assert (status, err) == (0, "")
        assert out.startswith(f"{path}: 0 problems")
        assert content(path.parent) == before


@pytest.mark.parametrize("damage, line, beside", MENDED)
def test_what_no_row_is_lost_for(path, capsys, damage, line, beside):
    """Orphans are cleared, metadata and the id table written again, with nothing put beside the
    store; values without checksums are taken as they are. Nothing changes without --yes."""
    damage(path)
    before = content(path.parent)
    status, out, err = repair(capsys, path)
    assert (status, err) == (1, "")
    assert line in out
    assert content(path.parent) == before
    assert repaired(capsys, path) == 17
    assert_rows(path, range(17))
    assert names_beside(path) == beside


def test_files_of_others_are_left_alone(path, capsys):
    (path / "notes.txt").write_text("mine")
    (path / "label/mine").mkdir()
    (path / "label/mine/data.bin").write_text("mine")
    leave_crash(path)
    assert "2 files that no writer of a store makes, to be left alone" in repair(capsys, path)[1]
    repair(capsys, path, "--yes")
    report = verify_store(path)
    assert report.leftovers == []
    assert {one.file for one in report.problems} == {"notes.txt", "label/mine/data.bin"}
    assert (path / "label/mine/data.bin").read_text() == (path / "notes.txt").read_text() == "mine"
    assert list(TraceStore.open(path, check=True).ids) == [trace_id for trace_id, _ in ROWS]


@pytest.mark.parametrize("whole", WRITTEN, indirect=True)
def test_damaged_rows_are_dropped_and_listed(path, capsys):
    """All others stay bit for bit, in order; the old store is kept, and the new one names it. A
    link that leads there stays one. While the old store is kept, another repair is refused before
    anything is written."""
    damage_rows(path)
    leave_crash(path)
    link = path.with_name("link.zarr")
    link.symlink_to(path)
    old, before = TraceStore.open(path), content(path)
    status, out, _ = repair(capsys, link)
    dropped = [0, 1, 2, 5, 6, 7, 8, 9]
    assert status == 1
    assert content(path) == before
    assert "8 of 17 traces to drop (trace" in out
    assert repaired(capsys, link) == 9
    assert link.readlink() == path
    assert_rows(path, [row for row in range(17) if row not in dropped])
    listed = path.with_name("s.zarr.dropped.txt").read_text()
    head = f"# 8 of 17 traces of {old.uuid}, generation {old.generation}: row, id\n"
    lines = [f"{row}\t{json.dumps(ROWS[row][0], ensure_ascii=False)}\n" for row in dropped]
    assert listed == "".join([head, *lines])
    kept = TraceStore.open(path.with_name("s.zarr.damaged"))
    assert (kept.uuid, kept.generation) == (old.uuid, old.generation)
    now = content(kept.path)
    assert all(now[file] == before[file] for file in now if not file.endswith("zarr.json"))
    new = TraceStore.open(path)
    record = {"of": old.uuid, "generation": old.generation, "rows": 17, "dropped": 8}
    assert new.provenance.items() >= old.provenance.items()
    assert new.provenance["repaired"].items() >= record.items()
    assert new.uuid != old.uuid
    assert names_beside(path) == ["link.zarr", *KEPT, "s.zarr.dropped.txt"]

    flip(path / "label/c/0", 0)
    leave_crash(path)
    before = content(path.parent)
    status, _, err = repair(capsys, path, "--yes")
    assert (status, err.count("\n")) == (2, 1)
    said = "expected a new path for the damaged store, found something; move it away"
    assert f"s.zarr.damaged: {said}" in err
    assert content(path.parent) == before
    kept.path.rename(path.with_name("elsewhere"))
    assert repaired(capsys, path) == 4
    assert_rows(path, range(13, 17))


@pytest.mark.parametrize("whole", WRITTEN, indirect=True)
def test_a_column_is_dropped_in_place_of_its_rows(path, capsys):
    """What else is damaged costs what it costs; without anything else, nothing is copied."""
    damage_rows(path)
    said = "5 of them because of column 'label' (--drop-columns label drops that one instead)"
    assert said in repair(capsys, path)[1]
    damaged = shutil.copytree(path, path.with_name("t.zarr"))
    assert repaired(capsys, path, "--drop-columns", "label,states") == 17
    assert names_beside(path) == ["s.zarr", "t.zarr"]
    assert repaired(capsys, damaged, "--drop-columns", "label") == 14
    for store, dropped, n_lost in ((path, {"label", "states"}, 0), (damaged, {"label"}, 3)):
        found = TraceStore.open(store, check=True)
        assert set(found.schema.columns) == set(SCHEMA.columns) - dropped
        assert verify_store(store).problems == []
        for trace, (trace_id, row) in zip(found, ROWS[n_lost:], strict=True):
            assert trace.id == trace_id
            kept = {name: value for name, value in row.items() if name not in dropped}
            assert_same_row(trace, kept)
    assert repair(capsys, path, "--drop-columns", "nothing", "--yes")[0] == 2


@pytest.mark.parametrize("damage", [lose_shard_of_ids, lose_offsets])
def test_where_nothing_can_be_done_nothing_is(path, capsys, damage):
    """Every row is damaged: one clear line. Damaged offsets cost nothing without their columns."""
    damage(path)
    before = content(path.parent)
    assert repair(capsys, path)[0] == 1
    status, out, err = repair(capsys, path, "--yes")
    assert status == 2
    assert "nothing can be done" in out
    assert err.count("\n") == 1
    assert "restore it from a copy" in err
    assert content(path.parent) == before
    if damage is lose_offsets:
        assert repaired(capsys, path, "--drop-columns", "tokens,hidden_states,zipped") == 17
        assert verify_store(path).problems == []
        assert len(TraceStore.open(path, check=True).read(slice(None))) == 17


def test_ids_that_cannot_be_read_are_listed_as_such(tmp_path, capsys, monkeypatch):
    """One id; others in its chunk are known to the id table."""
    shrink(monkeypatch)  # ids in chunks of 256 bytes
    rows = [(f"{i:03} " + "x" * 60, values) for i, (_, values) in enumerate(ROWS)]
    path = write_store(tmp_path / "s.zarr", SCHEMA, rows)
    flip(path / "trace_id/c/0", 256 + 70)  # id 5 begins at byte 320
    assert repair(capsys, path, "--yes")[0] == 0
    lines = path.with_name("s.zarr.dropped.txt").read_text().splitlines()[1:]
    listed = {row: json.loads(trace_id) for row, trace_id in (line.split("\t") for line in lines)}
    assert listed["5"] == "?"
    assert all(trace_id == rows[int(row)][0] for row, trace_id in listed.items() if row != "5")
    assert_store(path, [row for i, row in enumerate(rows) if str(i) not in listed])


@pytest.mark.parametrize("whole", WRITTEN, indirect=True)
@pytest.mark.parametrize("missing", ["both calls", "the exchange"])
def test_rows_are_dropped_without_the_calls_of_linux(path, capsys, monkeypatch, missing):
    """Other systems, and file systems that cannot exchange, take plainer ways to the same store."""
    if missing == "both calls":
        monkeypatch.setattr("store.write.files._sync_file_range", None)
        monkeypatch.setattr("store.write.files._renameat2", None)
    else:
        monkeypatch.setattr("ctypes.get_errno", lambda: errno.EINVAL)
        monkeypatch.setattr("store.write.files._renameat2", lambda *_: -1)
    flip(path / "label/c/0", 7)
    assert repaired(capsys, path) == 12
    assert_rows(path, [0, 1, 2, 3, 4, *range(10, 17)])
    assert names_beside(path) == [*KEPT, "s.zarr.dropped.txt"]


def test_what_can_be_checked_is_checked_as_it_is_copied(path):
    """Although the checksums of another column are lost."""
    damage_checksums(path)
    plan = plan_repair(path)
    flip(path / "tokens/c/0", 20)
    with pytest.raises(CorruptError, match="array 'tokens', shard 0, chunk 1"):
        repair_store(path, plan)


def test_an_older_state_is_no_interrupted_write(path, capsys):
    """Nothing removes what was committed after it; the newest copy makes the store whole."""
    older = (path / "zarr.json").read_bytes()
    rows = [(f"new {trace_id}", row) for trace_id, row in ROWS]
    with StoreWriter.open(path) as writer:
        for trace_id, row in rows:
            writer.append(trace_id, row)
    newest = (path / "zarr.json").read_bytes()
    (path / "zarr.json").write_bytes(older)
    before = content(path)
    said = "expected the state of the last commit, found 17 rows, and files of 34"
    (problem,) = (p for p in verify_store(path).problems if p.file == "zarr.json")
    assert (problem.kind, said in problem.text) == ("document", True)
    assert verify_store(path).leftovers == []
    status, _, err = repair(capsys, path, "--yes")
    assert (status, err.count("\n")) == (2, 1)
    assert said in err
    with pytest.raises(CorruptError, match=said):
        StoreWriter.open(path)
    assert content(path) == before
    (path / "zarr.json").write_bytes(newest)
    assert_store(path, [*ROWS, *rows])
    (path / "zarr.json").write_bytes(older)
    (path / "_tmp").mkdir()  # there is no newer copy
    repair(capsys, path, "--yes")
    assert_rows(path, range(17))
