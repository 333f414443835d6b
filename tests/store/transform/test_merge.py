"""Merging stores, and the commands merge and subset, against the rows themselves."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from oracle import SCHEMA, assert_same_row, make_rows, write_store
from small import make_store, refused

from store import Column, CorruptError, Schema, SchemaError, StoreWriter, TraceStore
from store.check.verify import verify_store
from store.cli.main import main
from store.traces.identity import COMMAND, REMARKS
from store.traces.origin import records_of
from store.traces.question_split import SPLITS
from store.transform.merge import merge_stores
from store.write.build import build_store, partial_path
from store.write.source import CopySource

ROWS = make_rows(SCHEMA, 30, seed=5)
PARTS = (ROWS[:13], ROWS[13:14], ROWS[14:])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    return [write_store(folder / f"{i}.zarr", SCHEMA, rows) for i, rows in enumerate(PARTS)]


@pytest.fixture
def parts(written, tmp_path):
    return [TraceStore.open(shutil.copytree(path, tmp_path / path.name)) for path in written]


def merge(path, stores, progress=lambda done: None, **options):
    return merge_stores(path, stores, progress, **options)


def assert_holds(store, rows):
    assert list(store.ids) == [trace_id for trace_id, _ in rows]
    for trace_id, row in rows:
        assert_same_row(store[trace_id], row)


def test_a_merged_store_holds_all_rows_in_order(tmp_path, parts):
    """Every kind of column bit for bit; it is a store of its own that can be appended to."""
    merged = merge(tmp_path / "m.zarr", parts)
    assert_holds(merged, ROWS)
    assert merged.uuid not in [store.uuid for store in parts]
    assert [part["rows"] for part in merged.provenance["stores"]] == [13, 1, 16]
    with StoreWriter.open(tmp_path / "m.zarr") as writer:
        writer.append("one more", ROWS[0][1])
    assert_holds(TraceStore.open(tmp_path / "m.zarr"), [*ROWS, ("one more", ROWS[0][1])])
    assert_holds(TraceStore.open(parts[0].path), PARTS[0])


def test_a_stopped_copy_goes_on(tmp_path, parts, monkeypatch):
    """Wherever it stopped, to the same rows."""
    monkeypatch.setattr("store.write.writer.COMMIT_ROWS", 4)

    def stopping(stop):
        def progress(done):
            if done == 13 + stop:
                raise KeyboardInterrupt

        return progress

    for stop in (0, 3, 8, 17):
        out = tmp_path / f"{stop}.copy"
        if stop:
            with pytest.raises(KeyboardInterrupt):
                merge(out, parts, stopping(stop), copy=True)
            assert not out.exists()
        assert_holds(merge(out, parts, copy=True), ROWS)
        assert not partial_path(out).exists()


def test_what_is_not_ours_is_not_replaced(tmp_path, parts):
    partial = partial_path(tmp_path / "m.zarr")
    partial.mkdir()
    (partial / "precious.txt").write_text("x")
    message = "expected a build that was stopped, found something else"
    with pytest.raises(SchemaError, match=message):
        merge(tmp_path / "m.zarr", parts)
    assert (partial / "precious.txt").exists()


def test_what_becomes_of_stores(tmp_path, capsys, monkeypatch, golden_lines):
    """Of other columns, ids in both, other models, prompts or layers: refused unless it is asked
    for, and nothing is made; what one records of these the others have to record. Fields that a
    store lacks are empty texts and NaN. A copy has the same columns and values."""
    monkeypatch.chdir(tmp_path)

    def say(case):
        *flags, stores = case
        shutil.rmtree("m.zarr", ignore_errors=True)
        paths = []
        for i, (columns, row, *provenance) in enumerate(stores):
            shutil.rmtree(f"{i}.zarr", ignore_errors=True)
            kinds = {name: KINDS.get(kind, kind) for name, kind in columns.items()}
            trace_id = row.pop("id", f"t{i}")
            paths.append(make_store(f"{i}.zarr", kinds, {trace_id: row}, *provenance).path)
        if not flags:
            line = refused(capsys, "merge", "m.zarr", *paths).strip()
            assert not list(tmp_path.glob("m.zarr*"))
            return line.replace(f"{tmp_path}/", "")
        shown = [made([*flags, *more], paths) for more in ([], ["--copy"])]
        assert shown[0] == shown[1]
        return shown[0]

    def made(flags, paths):
        shutil.rmtree("m.zarr", ignore_errors=True)
        status, out, _ = run_merge(capsys, *flags, "m.zarr", *paths)
        assert status == 0
        store = TraceStore.open("m.zarr")
        assert not verify_store(store.path).problems
        said = [line.strip() for line in out.splitlines()[1:] if "fields" in line or "left" in line]
        dtypes = {name: column.dtype for name, column in store.schema.columns.items()}
        return "; ".join(map(str, [*said, dtypes, *(plain(trace) for trace in store)]))

    golden_lines("merges.txt", say)


KINDS = {"states": Column("float16", (2,), axis="tokens")}


def plain(trace):
    return [one if isinstance(one, str) else one.tolist() for _, one in sorted(trace.items())]


@pytest.fixture
def left_out(tmp_path):
    """A store whose provenance records what an import left out, and the command."""
    remarks = {"records": 2, "first": ["a"]}
    provenance = {"source": "import", REMARKS: remarks, COMMAND: "python -m store import x"}
    return make_store(tmp_path / "i.zarr", SCHEMA.columns, dict(ROWS), provenance).path


def stopped_at(stop, run):
    """Run a copy that is interrupted after so many rows."""

    def rows(self, start=0):
        for i, row in enumerate(ROWS_OF(self, start)):
            if i == stop:
                raise KeyboardInterrupt
            yield row

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CopySource, "rows", rows)
        return run()


ROWS_OF = CopySource.rows


@pytest.mark.parametrize(
    ("of", "command"), [("import", "subset"), ("subset", "merge"), ("merge", "subset")]
)
def test_copies_of_stores_with_remarks_go_on_and_repeat(
    tmp_path, parts, left_out, capsys, of, command
):
    """A subset or a merge of an import that left something out, of a subset and of a merge:
    stopped, or finished."""
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(trace_id for trace_id, _ in ROWS[:8]))
    source = left_out
    if of == "subset":
        source = tmp_path / "sub.zarr"
        assert main(["subset", str(source), str(left_out), "--ids", str(ids)]) == 0
    if of == "merge":
        source = tmp_path / "merged.zarr"
        assert main(["merge", str(source), str(left_out)]) == 0
    out = tmp_path / "o.zarr"
    rows = [(f"other {i}", row) for i, (_, row) in enumerate(ROWS[:5])]
    other = write_store(tmp_path / "other.zarr", SCHEMA, rows)
    ends = {"subset": ["--ids", str(ids)], "merge": [str(other), "--copy"]}
    arguments = [command, str(out), str(source), *ends[command]]
    for stop in (2, 0, 1):
        assert stopped_at(stop, lambda: main(arguments)) == 130
    assert not out.exists()
    assert main(arguments) == 0
    n_rows = {"subset": 8, "merge": len(TraceStore.open(source)) + 5}[command]
    made = TraceStore.open(out)
    assert len(made) == n_rows
    assert made.provenance[COMMAND].startswith(f"python -m store {command} ")
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert main(arguments) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_a_subset_tells_the_command_of_its_store(tmp_path, left_out):
    """And its own."""
    (tmp_path / "ids.txt").write_text(ROWS[0][0])
    arguments = [f"{tmp_path}/o.zarr", str(left_out), "--ids", f"{tmp_path}/ids.txt"]
    assert main(["subset", *arguments]) == 0
    provenance = TraceStore.open(tmp_path / "o.zarr").provenance
    assert provenance["subset"]["of_command"] == "python -m store import x"
    assert provenance[COMMAND].startswith("python -m store subset ")
    assert provenance[REMARKS] == {"records": 2, "first": ["a"]}


def test_the_commands(tmp_path, asked, capsys):
    """Subsets by ids, questions and split; merging them gives the whole; a mistake is one line."""
    (tmp_path / "ids.txt").write_text("t7\nt3\n")
    (tmp_path / "questions.txt").write_text("q0\nq19\n")

    def run(command, out, *arguments):
        status = main([command, f"{tmp_path}/{out}.zarr", *map(str, arguments)])
        error = capsys.readouterr().err
        assert status == 0 or (status, error.count("\n")) == (2, 1)
        return None if status else TraceStore.open(f"{tmp_path}/{out}.zarr")

    found = run("subset", "i", asked.path, "--ids", tmp_path / "ids.txt")
    assert list(found.ids) == ["t7", "t3"]
    found = run("subset", "a", asked.path, "--questions", tmp_path / "questions.txt")
    assert list(found.ids) == ["t0", "t1", "t38", "t39"]
    found = run("subset", "w", asked.path, "--where", "x in (3, 39, 5) or question_id = 'q0'")
    assert list(found.ids) == ["t0", "t1", "t3", "t5", "t39"]
    assert found.provenance["subset"]["where"] == "x in (3, 39, 5) or question_id = 'q0'"
    found = run("subset", "b", asked.path, "--where", "x > 5", "--ids", tmp_path / "ids.txt")
    assert list(found.ids) == ["t7"]
    assert run("subset", "n", asked.path) is None
    assert run("subset", "n", asked.path, "--where", "x >> 5") is None
    parts = [run("subset", split, asked.path, "--split", split).path for split in SPLITS]
    merged = run("merge", "m", *parts)
    assert sorted(merged.ids) == sorted(asked.ids)
    assert all(merged[trace_id]["x"] == int(trace_id[1:]) for trace_id in merged.ids)
    (tmp_path / "ids.txt").write_text("t77\n")
    assert run("subset", "j", asked.path, "--ids", tmp_path / "ids.txt") is None


def test_traces_of_different_models_are_not_mixed_unasked(tmp_path):
    """Nor are they added to a merged store, which records its models, however deep."""
    models = [{"weights_sha256": "a"}, {"weights_sha256": "a", "note": 1}, {"weights_sha256": "b"}]
    one, same, other = (
        make_store(tmp_path / f"{i}.zarr", {"x": "int32"}, {f"t{i}": {"x": i}}, model)
        for i, model in enumerate(models)
    )
    first = merge(tmp_path / "m.zarr", [one, same])
    assert first.provenance["common"] == {"weights_sha256": "a"}
    records = zip(records_of(first.provenance), (one, same), strict=True)
    assert all(record.items() >= store.provenance.items() for record, store in records)
    for store in (first, merge(tmp_path / "deep.zarr", [first])):
        with pytest.raises(SchemaError, match="expected weights_sha256 as in"):
            merge(tmp_path / "n.zarr", [store, other])
    assert len(merge(tmp_path / "n.zarr", [first, other], mixed=True)) == 3


def test_empty_stores_merge(tmp_path, parts):
    empty = build_store(tmp_path / "e.zarr", CopySource([(parts[0], [])], {}))
    assert len(merge(tmp_path / "m.zarr", [empty, empty])) == 0


@pytest.mark.parametrize("command", ["subset", "merge"])
def test_damage_is_not_copied_into_a_store_that_looks_whole(tmp_path, command, capsys):
    """The row is named, and nothing is made."""
    for name in ("good", "bad"):
        rows = {f"{name}{i}": {"x": i} for i in range(100)}
        make_store(tmp_path / f"{name}.zarr", {"x": "int32"}, rows)
    shard = bytearray((tmp_path / "bad.zarr/x/c/0").read_bytes())
    shard[10] ^= 1
    (tmp_path / "bad.zarr/x/c/0").write_bytes(shard)
    out, good, bad = (str(tmp_path / f"{name}.zarr") for name in ("out", "good", "bad"))
    (tmp_path / "ids.txt").write_text("bad0\n")
    arguments = {
        "subset": ["subset", out, bad, "--ids", str(tmp_path / "ids.txt")],
        "merge": ["merge", out, good, bad],
    }
    assert main(arguments[command]) == 2
    assert "checksum" in capsys.readouterr().err
    assert not (tmp_path / "out.zarr").exists()


def run_merge(capsys, *arguments):
    return main(["merge", *map(str, arguments)]), *capsys.readouterr()


def test_the_command_says_what_it_shares(tmp_path, parts, capsys):
    """Once; the same command again finds it done, and --copy does not take it for a copy."""
    out = tmp_path / "m.zarr"
    paths = [part.path for part in parts]
    status, text, warnings = run_merge(capsys, out, *paths)
    assert status == 0
    assert "30 traces of 3 stores\n  63 files shared with the stores, " in text
    assert warnings.count("\n") == 1
    assert "many small ones are slow to read; python -m store merge --copy makes" in warnings
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    status, text, warnings = run_merge(capsys, out, *paths)
    assert (status, warnings) == (0, "")
    assert "nothing to do" in text
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert main(["info", str(out)]) == 0
    assert "merged by reference: columns have up to 3 segments" in capsys.readouterr().out
    error = refused(capsys, "merge", "--copy", out, *paths)
    assert "found a store that is merged by reference" in error


@pytest.mark.parametrize("is_whole", [True, False])
def test_copies_that_grew_apart_are_not_taken_for_each_other(
    tmp_path, parts, is_whole, monkeypatch
):
    """They have one uuid and generation: no merge of the other, whole or begun, goes on."""
    for name, number in (("a", 1), ("b", 2)):
        shutil.copytree(parts[0].path, tmp_path / name)
        rows = make_rows(SCHEMA, 3, seed=number)
        with StoreWriter.open(tmp_path / name) as writer:
            for i, (_, row) in enumerate(rows):
                writer.append(f"new{i}", row)
    a, b = (TraceStore.open(tmp_path / name) for name in "ab")
    assert (a.uuid, a.generation) == (b.uuid, b.generation)
    if is_whole:
        merge(tmp_path / "m", [a, parts[1]])
        with pytest.raises(SchemaError, match="expected"):
            merge(tmp_path / "m", [b, parts[1]])
        return
    with monkeypatch.context() as patch:
        patch.setattr("store.write.link.Rewriting", None)
        with pytest.raises(TypeError):
            merge(tmp_path / "m", [a, parts[1]])
    merged = merge(tmp_path / "m", [b, parts[1]])
    assert verify_store(merged.path).problems == []
    for trace_id in b.ids:
        assert_same_row(merged[trace_id], b[trace_id])


@pytest.mark.parametrize(
    ("out", "names", "message"),
    [
        ("m.zarr", ["0.zarr", "1.zarr", "0.zarr"], "expected each store once"),
        ("0.zarr", ["0.zarr", "1.zarr"], "found a store that is to be merged"),
        ("1.zarr/m.zarr", ["0.zarr", "1.zarr"], "expected a path outside of every store"),
        ("0.zarr/../1.zarr/x/m.zarr", ["0.zarr", "1.zarr"], "expected a path outside of every"),
        ("2.zarr/m.zarr", ["0.zarr", "1.zarr"], "expected a path outside of every store"),
    ],
)
def test_paths_that_cannot_be_meant_are_refused(tmp_path, parts, capsys, out, names, message):
    """In one line; nothing is made."""
    before = sorted(tmp_path.rglob("*"))
    arguments = [tmp_path / name for name in (out, *names)]
    assert message in refused(capsys, "merge", *arguments)
    assert sorted(tmp_path.rglob("*")) == before


def test_columns_that_are_stored_in_other_ways_are_copied(tmp_path, parts, capsys):
    """The others are shared; the command names them."""
    tokens = Column("int32", axis="tokens", chunk_items=8, shard_items=32)
    zipped = Column("float16", (2,), "tokens", codec="gzip", chunk_items=4, shard_items=16)
    schema = Schema(SCHEMA.columns | {"tokens": tokens, "zipped": zipped})
    rows = [(f"other {i}", row) for i, (_, row) in enumerate(ROWS[:5])]
    other = write_store(tmp_path / "other.zarr", schema, rows)
    out = tmp_path / "m.zarr"
    status, _, warnings = run_merge(capsys, out, parts[0].path, other)
    assert status == 0
    assert "warning: tokens, zipped copied: the stores differ in its chunks" in warnings
    merged = TraceStore.open(out, check=True)
    assert_holds(merged, [*PARTS[0], *rows])
    assert not {"tokens", "zipped"} & merged.manifest.segments.keys()
    assert "hidden_states" in merged.manifest.segments


def test_a_part_with_a_missing_file_is_refused(tmp_path, parts):
    """Before anything is made."""
    (parts[2].path / "tokens/c/1").unlink()
    with pytest.raises(CorruptError, match=r"tokens/c/1: expected a file of the store"):
        merge(tmp_path / "m.zarr", parts)
    assert not (tmp_path / "m.zarr").exists()


def test_a_column_of_a_part_that_is_replaced_meanwhile(tmp_path, parts):
    """What was opened is merged if it is still there; else the part is named."""
    with StoreWriter.open(parts[2].path) as writer:
        writer.set_columns({"label": Column("int8")}, ({"label": 1} for _ in PARTS[2]))
        writer.append("one more", ROWS[0][1])
    with pytest.raises(CorruptError, match=r"2\.zarr|label.*open the store again"):
        merge(tmp_path / "m.zarr", parts)
    parts[2] = TraceStore.open(parts[2].path)
    merged = merge(tmp_path / "m.zarr", parts)
    assert len(merged) == 31


def test_small_columns_are_rewritten(tmp_path):
    """Numbers of a row, and the smallest columns while they are hardly any of the bytes."""
    columns = {
        "hidden": Column("float16", (64,), axis="tokens", chunk_items=64, shard_items=512),
        "tokens": Column("int8", axis="tokens"),
        "label": "int8",
        "word": "utf8",
    }
    stores = []
    for part in range(2):
        rows = {}
        for i in range(20):
            numbers = {"hidden": np.full((70, 64), i, "f2"), "tokens": np.full(70, i, np.int8)}
            rows[f"{part}.{i}"] = {**numbers, "label": i, "word": "ab"}
        stores.append(make_store(tmp_path / f"{part}.zarr", columns, rows))
    merged = merge(tmp_path / "m.zarr", stores)
    assert merged.manifest.segments == {"hidden": [0, 1400], "tokens": [0, 1400]}
    assert merged["1.7"]["word"] == "ab"
    assert merged["1.7"]["hidden"].tolist() == [[7] * 64] * 70


def test_parts_keep_the_ids_that_were_in_the_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i in range(4):
        records = [{"trace_id": f"t{i}{k}", "question_id": "q", "x": [i, k]} for k in range(2)]
        Path(f"{i}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    sources = [f"{i}.jsonl" for i in range(4)]
    for part in ("1/2", "2/2"):
        out = f"{part[0]}.zarr"
        assert not main(["import", out, *sources, "--map", "x=x", "--part", part])
    assert not main(["merge", "all.zarr", "1.zarr", "2.zarr"])
    merged = TraceStore.open(Path("all.zarr"))
    assert {i: trace["x"].tolist() for i, trace in zip(merged.ids, merged, strict=True)} == {
        f"t{i}{k}": [i, k] for i in range(4) for k in range(2)
    }
