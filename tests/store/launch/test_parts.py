"""Parts that `import --part` made, their records, which are published once and never believed
blindly, and `merge --parts` of them."""

import json
import shutil
import threading

import pytest
from launching import MAP
from small import complaint, refused

from store import StoreWriter, TraceStore
from store.cli.main import main
from store.errors import CorruptError, SchemaError
from store.launch.completed_parts import Record, numbers_text, publish, read_record, record_path

N_PARTS = 3


@pytest.fixture(scope="module")
def made(arrays, tmp_path_factory):
    """Three whole parts, made once."""
    folder = tmp_path_factory.mktemp("parts") / "parts"
    folder.mkdir()
    arguments = [str(arrays), "--map", MAP]
    for k in range(1, N_PARTS + 1):
        assert main(["import", str(folder / f"{k}.zarr"), *arguments, "--part", f"{k}/3"]) == 0
    return folder


@pytest.fixture
def parts(made, tmp_path):
    """A copy of them."""
    return shutil.copytree(made, tmp_path / "parts")


def merge(parts, *options, out="m.zarr"):
    return main(["merge", str(parts.parent / out), "--parts", str(parts), *options])


def remove(parts, k):
    shutil.rmtree(parts / f"{k}.zarr")
    (parts / f"{k}.zarr.part.json").unlink()


def test_parts_are_merged_by_their_numbers(parts):
    """As if they were named one by one; a record says what is in its part."""
    record = read_record(parts / "1.zarr.part.json")
    assert (record.command, record.part, record.n_parts, record.n_rows) == ("import", 1, 3, 6)
    assert record.uuid == TraceStore.open(parts / "1.zarr").uuid
    for old, new in (("1", "z"), ("3", "a")):  # a name says nothing
        (parts / f"{old}.zarr").rename(parts / f"{new}.zarr")
        (parts / f"{old}.zarr.part.json").rename(record_path(parts / f"{new}.zarr"))
    assert merge(parts) == 0
    named = [str(parts / f"{name}.zarr") for name in "z2a"]
    assert main(["merge", str(parts.parent / "n.zarr"), *named]) == 0
    merged, expected = (TraceStore.open(parts.parent / name) for name in ("m.zarr", "n.zarr"))
    assert list(merged.ids) == list(expected.ids)
    assert merge(parts) == 0


def test_missing_parts_are_named(parts, capsys):
    """With exit status 1, and nothing made; --partial goes on without them."""
    remove(parts, 2)
    shutil.move(parts / "3.zarr", parts / "3.zarr.partial")  # a part that is being made
    assert merge(parts) == 1
    assert not (parts.parent / "m.zarr").exists()
    complaint = capsys.readouterr().err
    assert "missing of 3 parts: 2-3\n" in complaint
    assert "left out: part 3/3, a record without its store: " in complaint
    assert "3.zarr.partial: expected a whole part" in complaint
    assert merge(parts, "--partial") == 0
    assert len(TraceStore.open(parts.parent / "m.zarr")) == 6
    assert merge(parts) == 2


def test_a_part_that_is_there_twice_is_merged_once(parts, capsys):
    shutil.copytree(parts / "1.zarr", parts / "9.zarr")
    shutil.copy(parts / "1.zarr.part.json", parts / "9.zarr.part.json")
    assert merge(parts) == 0
    assert f"{parts}/9.zarr: part 1/3 again, as {parts}/1.zarr\n" in capsys.readouterr().err
    assert len(TraceStore.open(parts.parent / "m.zarr")) == 12


@pytest.mark.parametrize(
    ("part", "options", "found"),
    [
        ("1/3", ["--columns", "label"], "found part 1/3 of another command"),
        ("1/2", [], "expected one of 3 parts of the command of"),
    ],
)
def test_a_part_of_something_else_is_refused(parts, make_part, capsys, part, options, found):
    """In one line that names it."""
    make_part(parts / "other.zarr", part, *options)
    line = refused(capsys, "merge", parts.parent / "m.zarr", "--parts", parts)
    assert found in line
    assert "other.zarr" in line


def test_a_store_that_replaced_a_part_is_not_believed(parts, capsys):
    record = json.loads((parts / "2.zarr.part.json").read_text())
    (parts / "2.zarr.part.json").write_text(json.dumps(record | {"uuid": "another"}))
    assert merge(parts) == 1
    assert "expected the store another of its record (part 2/3)" in capsys.readouterr().err


def test_a_part_that_grew_is_refused(parts, capsys):
    """Its record is not of what is there now."""
    row = TraceStore.open(parts / "1.zarr")[0]
    with StoreWriter.open(parts / "2.zarr") as writer:
        writer.append("new", {name: row[name] for name in row})
    line = refused(capsys, "merge", parts.parent / "m.zarr", "--parts", parts, "--partial")
    assert (
        f"{parts}/2.zarr: expected the 3 traces of its record (part 2/3), found 4: the part was "
        "changed since; remove it and 2.zarr.part.json, and run its command again"
    ) in line


def test_a_part_that_was_made_anew_has_a_new_record(parts, make_part):
    """Its old store was removed, and the record of it forgotten."""
    shutil.rmtree(parts / "2.zarr")
    assert make_part(parts / "2.zarr", "2/3") == 0
    assert merge(parts) == 0
    assert [path.name for path in parts.glob(".*")] == []


def test_a_store_inside_a_part_is_refused(parts, capsys):
    assert merge(parts, out="parts/1.zarr/m.zarr") == 2
    assert f"{parts}/1.zarr is one; choose another" in capsys.readouterr().err


def test_numbers_are_ranges():
    assert numbers_text([1, 2, 3, 7, 9, 10]) == "1-3,7,9-10"


RECORD = {"command": "import", "part": 2, "n_parts": 3, "n_rows": 10, "n_left_out": 1}
RECORD |= {"arguments_sha256": "a" * 64, "inputs_sha256": "b" * 64, "uuid": "first"}


def test_of_many_attempts_one_publishes(tmp_path):
    """The others learn that they were not first; nothing else is left."""
    store = tmp_path / "p.zarr"
    won = {}

    def attempt(name):
        won[name] = publish(store, Record(**RECORD | {"uuid": name}))

    attempts = [threading.Thread(target=attempt, args=(f"{n}",)) for n in range(8)]
    for thread in attempts:
        thread.start()
    for thread in attempts:
        thread.join()
    (winner,) = (name for name, is_first in won.items() if is_first)
    assert read_record(record_path(store)).uuid == winner
    assert [path.name for path in tmp_path.iterdir()] == ["p.zarr.part.json"]
    assert publish(store, Record(**RECORD | {"uuid": winner}))  # the same attempt again


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"part": 1}, "expected the record of part 2, found that of part 1; remove it"),
        ({"n_parts": 4}, "found part 2/4 of the same"),
        ({"arguments_sha256": "c" * 64}, "found part 2/3 of another command"),
    ],
)
def test_a_record_of_something_else_stands(tmp_path, change, found):
    publish(tmp_path / "p.zarr", Record(**RECORD | change))
    with pytest.raises(SchemaError, match=found):
        publish(tmp_path / "p.zarr", Record(**RECORD))


@pytest.mark.parametrize(
    "content",
    [
        *("", "[" * 20_000, "x" * 70_000, "[]", '{"part": 1}', {"more": 1}, {"uuid": None}),
        *({"part": 0}, {"part": 4}, {"part": True}, {"n_rows": -1}, {"n_rows": 1e3}),
        *({"n_parts": 2**40}, {"inputs_sha256": "../x"}),
    ],
)
def test_what_is_no_record_is_refused(tmp_path, content):
    """In one line."""
    text = content if isinstance(content, str) else json.dumps(RECORD | content)
    path = tmp_path / "p.zarr.part.json"
    path.write_text(text)
    line = complaint(CorruptError, read_record, path)
    assert "p.zarr.part.json: expected" in line
    assert len(line) < 400
