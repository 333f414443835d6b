"""Columns that are added to rows that are there, or replaced in them."""

import shutil

import numpy as np
import pytest
import zarr
from oracle import SCHEMA, assert_same_row, make_rows, write_store

from store import Column, CorruptError, Schema, SchemaError, StoreWriter, TraceLoader, TraceStore
from store.check.verify import verify_store

ROWS = make_rows(SCHEMA, 23, seed=1)
NEW = {"score": Column("float32"), "label": Column("int64", chunk_items=4, shard_items=8)}
VALUES = [{"score": np.float32(i / 7), "label": np.int64(-i)} for i in range(23)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("written") / "s.zarr", SCHEMA, ROWS)


@pytest.fixture
def path(written, tmp_path):
    return shutil.copytree(written, tmp_path / "s.zarr")


def assert_rows(path, expected):
    """The columns of the rows, and no others."""
    store = TraceStore.open(path, check=True)
    for found, row in zip(store, expected, strict=True):
        assert list(found) == list(expected[0])
        assert_same_row(found, row)
    return store


def with_values(values=VALUES):
    return [row | new for (_, row), new in zip(ROWS, values, strict=True)]


def test_columns_are_added_and_replaced_in_one_commit(path):
    """Everything else stays as it was, also the files; the new columns can be replaced again and
    appended to."""
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*/c/*") if file.is_file()}
    generation = TraceStore.open(path).generation
    with StoreWriter.open(path) as writer:
        writer.set_columns(NEW, VALUES)
    store = assert_rows(path, with_values())
    group = zarr.open_group(path, mode="r")
    assert group[store.schema.arrays["label"]][:].tolist() == [-i for i in range(23)]
    assert store.generation == generation + 1
    assert not (path / "label").exists()
    for file, time in before.items():
        assert path / "label" in file.parents or file.stat().st_mtime_ns == time
    again = [{"score": np.float32(-i), "label": np.int64(i)} for i in range(23)]
    more = [row | again[9] for _, row in make_rows(SCHEMA, 30, seed=2)[25:]]
    with StoreWriter.open(path) as writer:
        writer.set_columns(NEW, again)
        for i, row in enumerate(more):
            writer.append(f"new {i}", row)
    assert_rows(path, [*with_values(again), *more])


def test_ragged_columns_and_strings_are_added(path):
    """On the axis of others and on axes of their own; what comes after them is appended to all."""
    columns = {
        "surprisal": Column("float32", axis="tokens", chunk_items=4, shard_items=8),
        "spans": Column("int32", (2,), axis="spans", codec="zstd", chunk_items=4, shard_items=8),
    }

    def value(i, n):
        return {
            "surprisal": np.arange(n, dtype="f4") + i,
            "spans": np.full((i % 4, 2), i, "i4"),
        }

    values = [value(i, len(row["tokens"])) for i, (_, row) in enumerate(ROWS)]
    more = ROWS[0][1] | value(99, len(ROWS[0][1]["tokens"]))
    surprisal = {"surprisal": columns["surprisal"]}
    with StoreWriter.open(path) as writer:
        writer.set_columns(columns, values)
        writer.add_column("note", Column("utf8"), notes := [f"né {i}" for i in range(23)])
        with pytest.raises(SchemaError, match="column 'note': expected a new column"):
            writer.add_column("note", Column("int8"), [0] * 23)
        writer.set_columns(surprisal, [{"surprisal": one["surprisal"]} for one in values])
        writer.append("more", more | {"note": "more"})
    report = verify_store(path)
    assert report.problems == report.leftovers == []
    expected = [*with_values(values), more]
    texts = [*notes, "more"]
    assert_rows(path, [row | {"note": text} for row, text in zip(expected, texts, strict=True)])


def test_readers_of_the_old_generation_see_the_old_column_or_are_told(path):
    """Never the new values, never a mixture."""
    held, late = TraceStore.open(path), TraceStore.open(path)
    held.read(range(23), ["label"])
    with StoreWriter.open(path) as writer:
        writer.set_columns(NEW, VALUES)
    assert [int(trace["label"]) for trace in held] == [int(row["label"]) for _, row in ROWS]
    first = f"^{path}: it was changed meanwhile: open the store again; if that does not help: array"
    for use in (
        lambda: late.read(range(23), ["label"]),
        lambda: late.column("label"),
        lambda: late[3]["label"],
        lambda: next(iter(TraceLoader(late, ["label"], num_workers=1))),
    ):
        with pytest.raises(CorruptError, match=first):
            use()
    assert_rows(path, with_values())


def test_readers_of_a_store_that_was_made_anew_are_told_first(path):
    """Also where a file is missing that the other one has no more."""
    old = TraceStore.open(path)
    shutil.rmtree(path)
    write_store(path, Schema({"other": Column("int8")}), [("a", {"other": 1})])
    for use in (lambda: old[3]["label"], lambda: old.lengths("tokens"), lambda: old.row_of("a")):
        with pytest.raises(CorruptError, match=f"{path}: (another store|it was changed).* again"):
            use()


@pytest.mark.parametrize(
    "columns, values, message",
    [
        (NEW, VALUES[:-1], "expected values for its 23 rows, found 22"),
        (NEW, [*VALUES, VALUES[0]], "expected values for its 23 rows, found 24"),
        (NEW, [*VALUES[:7], {"score": 1.0, "label": 1.5}], "row 7, column 'label'"),
        (
            {"x": Column("int8", axis="tokens")},
            [{"x": []}] * 23,
            "row 0: expected 40 items on axis 'tokens', found 0",
        ),
        (
            {"question": Column("utf8")},
            [{"question": ""}] * 23,
            "column 'question': expected .* and no string, to replace it",
        ),
        (
            {"label": Column("int8", axis="t")},
            [{"label": []}] * 23,
            "column 'label': expected a fixed column",
        ),
    ],
)
def test_what_does_not_fit_leaves_the_store_as_it_was(path, columns, values, message):
    names = sorted(path.rglob("*"))
    with StoreWriter.open(path) as writer, pytest.raises(SchemaError, match=message):
        writer.set_columns(columns, values)
    assert sorted(path.rglob("*")) == [name for name in names if name.name != "_tmp"]
    assert_rows(path, [row for _, row in ROWS])


def test_a_copy_of_a_store_takes_new_columns_too(path, tmp_path):
    """Its arrays have numbers ahead of its generation; the new array is never given the name of the
    old one."""
    for _ in range(2):
        with StoreWriter.open(path) as writer:
            writer.set_columns(NEW, VALUES)
    store = TraceStore.open(path)
    assert store.schema.arrays["label"] == f"label@{store.generation}"
    copy = tmp_path / "copy.zarr"
    with StoreWriter.create(copy, store.schema) as writer:
        for trace in store:
            writer.append(trace.id, dict(trace))
    names = set()
    for i in range(5):
        again = [{"score": np.float32(i), "label": np.int64(i)}] * 23
        with StoreWriter.open(copy) as writer:
            writer.set_columns(NEW, again)
        names.add(assert_rows(copy, with_values(again)).schema.arrays["label"])
    assert len(names) == 5
    assert store.schema.arrays["label"] not in names


def test_uncommitted_rows_come_first(path):
    with StoreWriter.open(path) as writer:
        writer.append("new", ROWS[0][1])
        with pytest.raises(SchemaError, match="found 1 new; commit first"):
            writer.set_columns(NEW, VALUES)
