"""`python -m store verify`: nothing to say of a whole store, and every fault of a damaged one."""

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from damage import assert_store, edit_json, files_in, flip
from faults import Faulty, failing
from oracle import ROWS, SCHEMA, WRITTEN, make_rows, write_store
from small import one_column, refused

from store import Column, Schema, StoreWriter
from store.check.report import KINDS
from store.check.verify import verify_store
from store.cli.main import main
from store.format.schema import DTYPES

PLANES = {"item_shape": (2, 3), "axis_names": ("layers", "heads"), "split": ("heads",)}
KINDS_OF_COLUMNS = {
    "raw": {"axis": "t"},
    "fixed": {"item_shape": (3,), "codec": "zstd"},
    "split": PLANES | {"codec": "blosc"},
}
SMALL = {"chunk_items": 4, "shard_items": 8}
EVERY = Schema(
    {
        f"{dtype}_{kind}": Column(dtype, **options, **SMALL)
        for dtype in DTYPES
        for kind, options in KINDS_OF_COLUMNS.items()
        if dtype != "utf8"
    }
    | {"text": Column("utf8", **SMALL), "packed_text": Column("utf8", codec="gzip:1", **SMALL)}
)


def run(capsys, *arguments):
    status = main(["verify", *map(str, arguments)])
    return status, capsys.readouterr().out


def problems(path, **options):
    report = verify_store(path, **options)
    assert report.leftovers == []
    return report.problems


def test_a_whole_store_has_no_problem(tmp_path):
    """All dtypes, kinds and codecs; several commits by two writers; a column replaced."""
    rows = make_rows(EVERY, 11, seed=6)
    path = write_store(tmp_path / "s.zarr", EVERY, rows, commits=3)
    with StoreWriter.open(path) as writer:
        writer.set_columns({"int8_fixed": Column("int16")}, ({"int8_fixed": i} for i in range(11)))
    assert (path / "int8_fixed@4").is_dir() or list(path.glob("int8_fixed@*"))
    for quick in (True, False):
        report = verify_store(path, quick=quick)
        assert (report.problems, report.rows, report.writer) == ([], 11, False)
        assert (report.bytes == 0) == quick


def test_empty_stores_and_empty_rows_are_whole(tmp_path):
    empty = [(f"trace {i}", {"x": [], "s": ""}) for i in range(5)]
    schema = Schema({"x": Column("int32", axis="t", codec="zstd"), "s": Column("utf8")})
    for n in (0, 1, 5):
        path = write_store(tmp_path / f"{n}.zarr", schema, empty[:n])
        assert problems(path) == problems(path, quick=True) == []


def flips(file, position=0):
    return lambda path: flip(next(path.glob(file)), position)


def links(target, file):
    return lambda path: (path / file).symlink_to(target)


def writes(text, file):
    return lambda path: (path / file).write_text(text)


def removes(file):
    return lambda path: (path / file).unlink()


LEFTOVER, DOCUMENT = ("leftover", None, None, None), ("document", None, None, None)
DAMAGE = {
    "a raw chunk": (flips("tokens/c/0", 20), ("damaged", "tokens", 0, 1)),
    "a plane": (flips("hidden_states/c/0/0/0"), ("damaged", "hidden_states", 0, 0)),
    "a compressed chunk": (flips("zipped/c/1/0", 9), ("damaged", "zipped", 1, 0)),
    "a fixed column": (flips("label/c/1", 5), ("damaged", "label", 1, 1)),
    "a text": (flips("question/c/0"), ("damaged", "question", 0, 0)),
    "an id": (flips("trace_id/c/0", 6), ("damaged", "trace_id", 0, 0)),
    "offsets": (flips("_offsets/pairs/c/0", 8), ("damaged", None, 0, 0)),
    "a table": (flips("attn_mean/c/0/0", -9), ("damaged", "attn_mean", 0, None)),
    "a missing shard": (removes("tokens/c/1"), ("damaged", "tokens", 1, None)),
    "a truncated shard": (writes("", "label/c/0"), ("damaged", "label", 0, None)),
    "checksums": (flips("_checksums/states/c/0/0", -1), ("unverifiable", "states", 0, None)),
    "an id table": (flips("_index/*/hash/c/0"), ("index", None, None, None)),
    "metadata": (writes("{}", "flag/zarr.json"), DOCUMENT),
    "no metadata": (removes("_index/zarr.json"), DOCUMENT),
    "a strange file": (writes("", "notes.txt"), LEFTOVER),
    "a link": (links("/tmp", "elsewhere"), LEFTOVER),  # noqa: S108
    "a link that hangs": (links("/nowhere", "label/c/7"), LEFTOVER),
}
ONLY_CHUNKS = list(DAMAGE)[:7]
HIDING = ("a truncated shard", "an id table")  # they leave others not to be seen


def where(problem):
    return problem.kind, problem.column, problem.shard, problem.chunk


@pytest.mark.parametrize("fault", DAMAGE)
def test_every_kind_of_damage_is_listed_where_it_is(path, fault):
    """With the rows it concerns; `quick` tells all but what is inside chunks."""
    damage, expected = DAMAGE[fault]
    damage(path)
    found = problems(path)
    assert expected in map(where, found)
    # not what they are of
    assert fault != "checksums" or {p.kind for p in found} == {"unverifiable"}
    for problem in found:
        assert problem.file in str(problem) or problem.shard is not None or problem.rows
        if problem.kind in ("damaged", "index"):
            first, last = problem.rows
            assert 0 <= first <= last < len(ROWS)
    assert (expected in map(where, problems(path, quick=True))) == (fault not in ONLY_CHUNKS)


@pytest.mark.parametrize("whole", WRITTEN, indirect=True)
def test_the_rows_named_are_those_with_the_bytes(path):
    """Item 5 of the tokens, of a ragged column; label 7, of a fixed one in chunks of five."""
    flip(path / "tokens/c/0", 4 * 5)
    flip(path / "label/c/0", 7)
    lengths = [len(row["tokens"]) for _, row in ROWS]
    ends = np.cumsum(lengths)
    holds = [i for i, n in enumerate(lengths) if n and ends[i] - n < 8 and ends[i] > 4]
    rows = {problem.column: problem.rows for problem in problems(path)}
    assert rows == {"tokens": (holds[0], holds[-1]), "label": (5, 9)}


def test_all_damage_is_listed_in_one_run(path, capsys):
    """Every fault above that leaves the others to be seen; text and JSON say the same."""
    faults = [fault for name, fault in DAMAGE.items() if name not in HIDING]
    for damage, _ in faults:
        damage(path)
    report = verify_store(path)
    assert set(map(where, report.problems)) >= {expected for _, expected in faults}
    kinds = [problem.kind for problem in report.problems]
    assert kinds == sorted(kinds, key=KINDS.index)
    status, out = run(capsys, path)
    assert status == 1
    assert out.splitlines()[0].startswith(f"{path}: {len(report.problems)} problems (17 traces, ")
    assert out.splitlines()[1:] == report.lines()
    status, out = run(capsys, path, "--verbose")
    assert (status, out.splitlines()[1:]) == (1, report.all_lines())
    status, out = run(capsys, path, "--json")
    assert status == 1
    assert json.loads(out) == {"store": str(path)} | json.loads(json.dumps(report.to_json()))
    assert not json.loads(out)["whole"]


def test_a_whole_store_is_status_0(path, capsys):
    status, out = run(capsys, path)
    assert (status, out.count("\n")) == (0, 1)
    assert out.startswith(f"{path}: whole (17 traces, ")
    status, out = run(capsys, path, "--quick")
    assert (status, out) == (0, f"{path}: whole (17 traces, quick: chunks were not read)\n")
    status, out = run(capsys, path, "--json", "--quick")
    assert (status, json.loads(out)["problems"], json.loads(out)["whole"]) == (0, [], True)


def test_no_store_is_status_2(path, tmp_path, capsys):
    manifest = path / "zarr.json"
    manifest.write_text(manifest.read_text().replace('"n_rows": 17', '"n_rows": 16'))
    assert "expected a trace store" in refused(capsys, "verify", tmp_path / "nothing")
    assert "expected checksum" in refused(capsys, "verify", path)


def append_new(writer, n_rows):
    for trace_id, row in make_rows(SCHEMA, n_rows, seed=7):
        writer.append(f"new {trace_id}", row)


def test_what_a_writer_has_not_committed_is_not_judged(path, capsys):
    """Full shards in their place, working files; damage of what is committed is still reported."""
    with StoreWriter.open(path) as writer:
        append_new(writer, 60)
        assert len(files_in(path)) > 80
        report = verify_store(path)
        assert (report.problems, report.writer, report.rows) == ([], True, 17)
        assert "a writer is at work" in run(capsys, path)[1]
        flip(path / "tokens/c/0", 20)
        (path / "notes.txt").write_text("")
        assert {problem.kind for problem in problems(path)} == {"damaged", "leftover"}
        flip(path / "tokens/c/0", 20)
        (path / "notes.txt").unlink()
    report = verify_store(path)
    assert (report.problems, report.writer, report.rows) == ([], False, 77)


def test_a_writer_may_commit_while_chunks_are_read(path):
    """Though each commit removes files of the id table that the commit before it had."""
    with StoreWriter.open(path) as writer:

        def commit(done, total):
            if len(writer) < 25:  # a few of the many steps
                ((_, row),) = make_rows(SCHEMA, 1, seed=7)
                writer.append(f"new {len(writer)}", row)
                writer.merge_runs()

        assert verify_store(path, progress=commit).problems == []
        assert len(writer) > 17


def test_a_column_may_be_replaced_while_files_are_listed(tmp_path, monkeypatch):
    """A folder that is gone when it is entered is no error."""
    path = tmp_path / "a.zarr"
    columns = dict.fromkeys("xy", Column("int8"))
    is_symlink = Path.is_symlink

    def replace_other(found):
        if not writer.generation and found.parent != path:  # in the first folder
            other = "y" if "x" in found.relative_to(path).parts else "x"
            writer.set_columns({other: columns[other]}, [])
        return is_symlink(found)

    with StoreWriter.create(path, Schema(columns)) as writer:
        monkeypatch.setattr(Path, "is_symlink", replace_other)
        assert verify_store(path).problems == []
        assert writer.generation == 1


def test_what_a_killed_writer_left_is_no_problem(path, capsys):
    """Of a commit: files too many, and metadata ahead of it. It is counted, and gone when the next
    writer has opened the store."""
    writer = StoreWriter.open(path)
    append_new(writer, 30)
    # at the first directory that it makes durable
    writer.files = Faulty(1, failing(errno.EIO), only="sync_dir")
    with pytest.raises(OSError, match="EIO"):
        writer.commit()
    # no process holds the copy's lock
    killed = shutil.copytree(path, path.with_name("killed.zarr"))
    writer.discard()
    report = verify_store(killed)
    assert report.problems == []
    assert {leftover.kind for leftover in report.leftovers} == {"interrupted"}
    ahead = [leftover for leftover in report.leftovers if "expected shape" in leftover.text]
    n_files = len(report.leftovers) - len(ahead)
    assert n_files > 3
    status, out = run(capsys, killed)
    assert (status, out.count("\n")) == (0, 1)
    removed = f"{n_files} files of an interrupted write that the next writer removes"
    rewritten = f"metadata of {len(ahead)} arrays that the next writer sets back"
    assert out.startswith(f"{killed}: whole; {removed}; {rewritten} (17 traces, ")
    status, out = run(capsys, killed, "--verbose")
    assert (status, out.splitlines()[1:]) == (0, list(map(str, report.leftovers)))
    status, out = run(capsys, killed, "--json")
    shown = json.loads(out)
    assert (status, shown["whole"], shown["problems"]) == (0, True, [])
    assert len(shown["leftovers"]) == len(report.leftovers)
    StoreWriter.open(killed).close()
    assert problems(killed) == []


@pytest.mark.parametrize("whole", WRITTEN, indirect=True)
def test_metadata_ahead_without_a_killed_writer_is_a_problem(path):
    """Nothing but a writer, or damage, makes an array longer than the commit says."""
    edit_json(path / "label/zarr.json", shape=[47])
    (problem,) = problems(path)
    assert str(problem) == "document: label/zarr.json: expected shape [17], found [47]"


@pytest.mark.parametrize("column", ["zipped", "planes"])
def test_compressed_chunks_are_held_to_their_own_checksums(path, column):
    """Where the recorded one is that but for a bit, or is lost; of a raw chunk this cannot be
    said. Repair drops the rows of a damaged one, and no others."""
    sums = path / f"_checksums/{column}/c/0/0"
    chunk = path / f"{column}/c/0/0{'/0' * (column == 'planes')}"
    flip(sums)
    (problem,) = problems(path)
    assert where(problem) == ("unverifiable", column, 0, 0)
    said = "by its own checksum it is whole, and the recorded one differs in a single bit"
    assert said in str(problem)
    assert problem.rows[0] == 0
    flip(chunk, 9)
    assert {where(problem) for problem in problems(path)} == {("damaged", column, 0, 0)}
    flip(path / "_checksums/tokens/c/0/0")
    assert ("damaged", "tokens", 0, 0) in map(where, problems(path))
    flip(path / "_checksums/tokens/c/0/0")
    flip(sums)
    flip(chunk, 9)
    flip(sums, -1)
    assert {problem.kind for problem in problems(path)} == {"unverifiable"}
    flip(chunk, 9)
    damaged = [problem for problem in problems(path) if problem.kind == "damaged"]
    assert list(map(where, damaged)) == [("damaged", column, 0, 0)]
    assert main(["repair", str(path), "--yes"]) == 0
    first, last = damaged[0].rows
    assert_store(path, [row for i, row in enumerate(ROWS) if not first <= i <= last])


def test_arrays_that_another_client_added_are_not_ours_to_remove(tmp_path):
    """They are named, and the next writer leaves them; what our own killed writer left goes."""
    path = one_column(tmp_path / "s.zarr", "x", "int32", [1]).path
    group = zarr.open_group(path, mode="a")
    group.create_array("my_embeddings", shape=(1, 4), dtype="float32")[:] = 7
    shutil.copytree(path / "x", path / "y")
    edit_json(path / "y/zarr.json", attributes={"column": "y"})
    report = verify_store(path)
    assert {problem.file.partition("/")[0] for problem in report.problems} == {"my_embeddings"}
    assert {problem.file.partition("/")[0] for problem in report.leftovers} == {"y"}
    with StoreWriter.open(path) as writer:
        writer.append("b", {"x": 2})
    assert not (path / "y").exists()
    assert (zarr.open_group(path, mode="r")["my_embeddings"][:] == 7).all()
