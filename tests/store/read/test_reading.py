"""Rows by number, from the end, by slice and by id; whole columns; what a store and a batch look
like."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from damage import flip
from oracle import ROWS, WRITTEN, assert_same_row, bits

from store import (
    Batch,
    Column,
    CorruptError,
    NotFoundError,
    Ragged,
    Schema,
    SchemaError,
    StoreWriter,
    TraceDataset,
    TraceLoader,
    TraceStore,
)
from store.cli.main import main

N = len(ROWS)
IDS = [trace_id for trace_id, _ in ROWS]


@pytest.fixture(scope="module")
def store(whole):
    return TraceStore.open(whole)


def numbers(batch):
    return batch.rows.tolist()


@pytest.mark.parametrize("row", [*range(-N, N), np.int64(-1), np.uint8(3)])
def test_negative_rows_count_from_the_end(store, row):
    expected = ROWS[row]
    assert store[row].id == expected[0]
    assert_same_row(store[row], expected[1])
    assert_same_row(TraceDataset(store)[row], expected[1])


@pytest.mark.parametrize("row", [N, -N - 1, 2**40])
def test_a_row_out_of_range_is_an_index_error(store, row):
    for read in (store.__getitem__, TraceDataset(store).__getitem__, lambda row: store.read([row])):
        with pytest.raises(IndexError, match=f"expected a row from (0|-17) to 16, found {row}"):
            read(row)


@pytest.mark.parametrize("start", [None, 0, 3, -4, 99])
@pytest.mark.parametrize("stop", [None, 0, 9, -2, 99])
@pytest.mark.parametrize("step", [None, 1, 3, -1, -5])
def test_a_slice_reads_the_rows_that_it_takes_of_a_list(store, start, stop, step):
    part = slice(start, stop, step)
    assert numbers(store.read(part, ["label"])) == list(range(N))[part]


@pytest.mark.parametrize(
    "rows, expected",
    [
        ([-1, 0, -17, 16], [16, 0, 0, 16]),
        (np.array([-2, 2], np.int8), [15, 2]),
        (range(-3, 0), [14, 15, 16]),
        (torch.tensor([5, -5]), [5, 12]),
        ((), []),
        ([], []),
    ],
)
def test_rows_are_taken_as_numpy_takes_them(store, rows, expected):
    batch = store.read(rows)
    assert numbers(batch) == expected
    for found, row in zip(batch, expected, strict=True):
        assert_same_row(found, ROWS[row][1])


@pytest.mark.parametrize("kind", [np.array, list, tuple, torch.tensor])
def test_a_mask_takes_the_rows_where_it_is_true(store, kind):
    mask = kind([row % 3 == 1 for row in range(N)])
    expected = [*range(1, N, 3)]
    assert numbers(store.read(mask)) == expected
    assert numbers(next(iter(TraceLoader(store, ["label"], rows=mask)))) == expected
    assert not len(store.read(kind([False] * N)))


@pytest.mark.parametrize("n", [0, 1, N - 1, N + 1])
def test_a_mask_of_another_length_is_refused(store, n):
    """The error names both lengths; an empty list is no mask."""
    mask = np.ones(n, bool)
    message = f"expected a mask of its {N} rows, found one of {n}"
    for use in (store.read, store.__getitem__, TraceDataset(store).__getitem__):
        with pytest.raises(IndexError, match=message):
            use(mask)
    with pytest.raises(IndexError, match=message):
        TraceLoader(store, rows=mask)


@pytest.mark.parametrize(
    "key, expected",
    [
        (slice(3, 5), [3, 4]),
        (slice(None, -3, -1), [N - 1, N - 2]),
        ([1, -1, 1], [1, N - 1, 1]),
        ([IDS[4], IDS[2]], [4, 2]),
        (np.array([2, 0]), [2, 0]),
        (np.arange(N) > N - 3, [N - 2, N - 1]),
        (torch.tensor([5]), [5]),
        ([], []),
    ],
)
def test_several_rows_between_brackets(store, key, expected):
    """Of a store its traces, of a dataset a batch, of the ids a list."""
    traces = store[key]
    assert [trace.row for trace in traces] == expected
    for trace in traces:
        assert_same_row(trace, ROWS[trace.row][1])
    batch = TraceDataset(store)[key]
    assert numbers(batch) == expected
    for found, row in zip(batch, expected, strict=True):
        assert_same_row(found, ROWS[row][1])
    assert store.ids[key] == [IDS[row] for row in expected]


@pytest.mark.parametrize("one", [int, np.int64, torch.tensor])
def test_one_row_between_brackets_is_no_list(store, one):
    assert store[one(3)].id == IDS[3]
    assert TraceDataset(store)[one(3)].number == 3


@pytest.mark.parametrize("key", [(1, 2), None, 1.5, ([1], [2])])
def test_what_names_no_rows_between_brackets_is_refused(store, key):
    for use in (store.__getitem__, TraceDataset(store).__getitem__):
        with pytest.raises(TypeError, match="expected a sequence of integers, one of trace ids"):
            use(key)


@pytest.mark.parametrize("key", [slice(0, 2), [0, 1], np.ones(3, bool)])
def test_a_batch_takes_one_name_or_position(store, key):
    with pytest.raises(NotFoundError, match=r"batch: expected a column of \['label'\], found "):
        store.read([1, 2, 3], ["label"])[key]


@pytest.mark.parametrize("axis", ["tokens", "layers"])
def test_an_axis_that_is_selected_as_a_column_is_told_the_form(store, axis):
    expected = f"found '{axis}'; its form is {{column: {{axis: part}}}}"
    columns = ["label", "hidden_states"]
    with pytest.raises(NotFoundError, match=re.escape(expected)):
        TraceLoader(store, columns, select={axis: 1})
    with pytest.raises(
        TypeError, match=r"expected \{'label': \{axis: part\}\}, found \{'label': 1\}"
    ):
        store.read([0], columns, {"label": 1})


@pytest.mark.parametrize("kind", [list, tuple])
def test_several_paths_are_no_store(kind):
    message = f"expected the path or the address of one store, found {kind.__name__} "
    for use in (TraceStore.open, StoreWriter.open):
        with pytest.raises(TypeError, match=message):
            use(kind(["a.zarr"]))


@pytest.mark.parametrize(
    "form", ["~/a b.zarr", "file://{}/a%20b.zarr", "FILE://localhost{}/a b.zarr"]
)
@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_may_have_a_tilde_or_be_a_file_address(tmp_path, monkeypatch, form, kind):
    """In the library as in the commands, to write as to read."""
    if kind is Path and "localhost" in form:
        form = "file:{}/a b.zarr"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    given = kind(form.format(tmp_path))
    with StoreWriter.create(given, Schema({"label": Column("int8")})) as writer:
        writer.append("a", {"label": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["a b.zarr"]
    with StoreWriter.open(given) as writer:
        writer.append("b", {"label": 2})
    for store in (TraceStore.open(given), TraceLoader(given).store, TraceDataset(given).store):
        assert store.path == tmp_path / "a b.zarr"
        assert store.column("label").tolist() == [1, 2]
    assert main(["info", str(given)]) == 0


@pytest.mark.parametrize("address", ["ftp://host/a.zarr", "s3a://bucket/a.zarr"])
def test_an_address_of_another_kind_is_refused_as_one(address):
    for use in (TraceStore.open, StoreWriter.open):
        with pytest.raises(
            NotFoundError, match="found an address; only s3://, gs://, az:// and https://"
        ):
            use(address)


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda ids: np.array(ids, object)])
def test_ids_are_read_in_the_order_given(store, kind):
    wanted = [IDS[5], IDS[0], IDS[5]]
    batch = store.read(kind(wanted), ["trace_id", "tokens"])
    assert batch["trace_id"] == wanted
    assert numbers(batch) == [5, 0, 5]
    assert numbers(next(iter(TraceLoader(store, ["label"], rows=kind(wanted))))) == [5, 0, 5]
    assert TraceDataset(store, ["label"])[IDS[5]].number == 5


@pytest.mark.parametrize(
    "rows, message",
    [
        ("trace 5 é", r"expected a sequence of trace ids, found one; pass \['trace 5 é'\]"),
        (
            [0, IDS[0]],
            "expected a sequence of integers, one of trace ids, a mask, or a slice, "
            r"found \[0, 'trace 0 é'\]",
        ),
        ([IDS[0], 0], "expected a sequence of integers, one of trace ids, a mask, or a slice"),
        (np.ones((N, 1), bool), "expected a sequence of integers, one of trace ids, a mask"),
        ([0.0], "expected a sequence of integers"),
        (3, "expected a sequence of integers"),
        (None, "expected a sequence of integers"),
    ],
)
def test_what_is_no_rows_is_refused(store, rows, message):
    with pytest.raises(TypeError, match=message):
        store.read(rows)


def test_the_rows_given_stay_as_they_are(store):
    rows = np.array([-1, 3])
    store.read(rows, ["label"])
    assert rows.tolist() == [-1, 3]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("name", ["label", "flag", "states", "question", "trace_id"])
def test_a_whole_column_is_what_a_batch_of_all_rows_gives(whole, name, check):
    store = TraceStore.open(whole, check=check)
    expected, found = store.read(range(N), [name])[name], store.column(name)
    assert type(found) is type(expected)
    assert found == expected if isinstance(found, list) else torch.equal(found, expected)
    assert isinstance(found, list) or (found.dtype, found.shape) == (expected.dtype, expected.shape)


def test_a_whole_column_is_a_copy(store):
    store.column("label").zero_()
    assert bits(store.column("label")) == b"".join(bits(row["label"]) for _, row in ROWS)


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_whole_column_of_several_shards_and_of_none(tmp_path, codec):
    schema = Schema(
        {
            "x": Column("float64", (2,), chunk_items=2, shard_items=4, codec=codec),
            "s": Column("utf8"),
        }
    )
    with StoreWriter.create(tmp_path / "s.zarr", schema) as writer:
        empty = TraceStore.open(tmp_path / "s.zarr")
        for row in range(11):
            writer.append(str(row), {"x": [row, row + 0.5], "s": "é" * row})
    assert (empty.column("x").shape, empty.column("s"), len(empty.read(slice(None)))) == (
        (0, 2),
        [],
        0,
    )
    full = TraceStore.open(tmp_path / "s.zarr")
    assert full.column("x").tolist() == [[row, row + 0.5] for row in range(11)]
    assert full.column("s") == ["é" * row for row in range(11)]


def test_a_ragged_column_is_refused_with_what_to_use(store):
    with pytest.raises(
        SchemaError, match=r"'tokens': it is ragged.* read\(rows, \['tokens'\]\), or .* TraceLoader"
    ):
        store.column("tokens")
    with pytest.raises(NotFoundError, match="closest: 'label'"):
        store.column("lable")


@pytest.mark.parametrize("whole", WRITTEN, indirect=True)
def test_damage_in_a_whole_column_names_the_rows(path):
    flip(path / "label/c/0", 7)
    with pytest.raises(CorruptError, match=r"array 'label', shard 0, chunk 1: .*; rows 5 to 9"):
        TraceStore.open(path, check=True).column("label")


@pytest.mark.parametrize("i, wrong, found", [(0, 1, "1 to 4"), (2, 3, "0 to 3")])
def test_texts_whose_offsets_leave_some_out_are_refused(tmp_path, i, wrong, found):
    """Cut there, a text would lack a letter, and nobody would see it."""
    with StoreWriter.create(tmp_path / "s.zarr", Schema({"text": Column("utf8")})) as writer:
        writer.append("a", {"text": "no"})
        writer.append("b", {"text": "on"})
    file = tmp_path / "s.zarr/_offsets/text/c/0"
    offsets = bytearray(file.read_bytes())
    offsets[8 * i : 8 * i + 8] = wrong.to_bytes(8, "little")
    file.write_bytes(offsets)
    with pytest.raises(CorruptError, match=f"axis 'text': expected offsets from 0 to 4.* {found}"):
        TraceStore.open(tmp_path / "s.zarr").column("text")


def test_a_store_shows_its_columns(store):
    assert repr(store) == "\n".join(
        [
            f"TraceStore({str(store.path)!r}): 17 rows",
            "  tokens         int32     (tokens,)",
            "  hidden_states  float16   (tokens, layers=3, hidden=5)",
            "  attn_mean      float32   (pairs, 2)",
            "  states         bfloat16  (17, 2, 3)",
            "  zipped         float16   (tokens, 2)",
            "  planes         int16     (pairs, layers=2, heads=3)",
            "  label          int8      (17,)",
            "  flag           bool      (17,)",
            "  question       utf8",
        ]
    )


def test_a_batch_shows_its_columns(store):
    batch = store.read([3, 4], ["tokens", "states", "label", "question"])
    n = len(batch["tokens"].values)
    assert repr(batch) == "\n".join(
        [
            "Batch: 2 rows",
            f"  tokens    int32     ({n},) ragged",
            "  states    bfloat16  (2, 2, 3)",
            "  label     int8      (2,)",
            "  question  utf8",
        ]
    )


@pytest.mark.parametrize(
    "n, last",
    [(0, None), (11, "  c10  int8  (0,)"), (12, "  … and 2 more"), (99, "  … and 89 more")],
)
def test_of_many_columns_the_first_are_shown(tmp_path, n, last):
    StoreWriter.create(
        tmp_path / "s.zarr", Schema({f"c{i}": Column("int8") for i in range(n)})
    ).close()
    lines = repr(TraceStore.open(tmp_path / "s.zarr")).splitlines()
    assert len(lines) == min(n, 11) + 1
    assert last is None or lines[-1] == last


def test_positions_in_a_batch_count_from_the_end(store):
    batch = store.read([3, 4, 5])
    assert [batch[i].number for i in (-3, -2, -1, 0, 1, 2)] == [3, 4, 5, 3, 4, 5]
    for wrong in (3, -4):
        with pytest.raises(
            IndexError, match=f"expected a position from (0|-3) to 2, found {wrong}"
        ):
            batch[wrong]


def test_batches_stores_and_ragged_columns_are_no_arrays(store):
    """NumPy and pandas would make something of them that looks right."""
    batch = store.read([3, 4])
    for thing, message in (
        (batch, r"batch.to_pandas\(\) or to_arrow\(\)"),
        (store, r"to_pandas\(\) or to_arrow\(\)"),
        (batch["tokens"], r"\.values and \.offsets"),
    ):
        with pytest.raises(TypeError, match=message):
            np.asarray(thing)


def test_pandas_refuses_a_batch_with_what_to_use(store):
    """It would make objects of the tensors: no two labels equal, no mean."""
    pandas = pytest.importorskip("pandas")
    batch = store.read([3, 4])
    for thing in (batch, store):
        with pytest.raises(TypeError, match=r"to_pandas\(\)"):
            pandas.DataFrame(thing)
    with pytest.raises((TypeError, ValueError)):
        pandas.DataFrame(dict(batch))


def test_a_store_as_a_data_frame(store):
    """Scalars and texts, each with its dtype, by trace id."""
    pytest.importorskip("pandas")
    frame = store.to_pandas()
    assert list(frame.columns) == ["label", "flag", "question"]
    assert (frame.index.name, frame.index.tolist()) == ("trace_id", IDS)
    assert (str(frame["label"].dtype), str(frame["flag"].dtype)) == ("int8", "bool")
    assert frame["question"].tolist() == [row["question"] for _, row in ROWS]
    assert frame.loc[IDS[3], "label"] == ROWS[3][1]["label"]
    assert list(store.to_pandas(["question", "trace_id"]).columns) == ["question"]
    assert store.to_pandas([]).shape == (N, 0)


def test_a_batch_as_a_data_frame(store):
    """By trace id if that was read, else by row number."""
    pytest.importorskip("pandas")
    frame = store.read([3, -1]).to_pandas()
    assert list(frame.columns) == ["label", "flag", "question"]
    assert (frame.index.name, frame.index.tolist()) == ("row", [3, 16])
    frame = store.read([3, -1], ["trace_id", "label", "tokens"]).to_pandas()
    assert list(frame.columns) == ["label"]
    assert (frame.index.name, frame.index.tolist()) == ("trace_id", [IDS[3], IDS[16]])
    assert frame["label"].tolist() == [ROWS[3][1]["label"], ROWS[16][1]["label"]]


def test_a_store_as_an_arrow_table(store):
    """Scalars and texts, each with its dtype, behind the trace ids."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = store.to_arrow()
    assert table.column_names == ["trace_id", "label", "flag", "question"]
    assert table["trace_id"].to_pylist() == IDS
    assert table.schema.types[1:] == [pyarrow.int8(), pyarrow.bool_(), pyarrow.large_string()]
    assert table["question"].to_pylist() == [row["question"] for _, row in ROWS]
    assert table["label"].to_pylist() == [row["label"] for _, row in ROWS]
    assert store.to_arrow(["question", "trace_id"]).column_names == ["trace_id", "question"]
    assert store.to_arrow([]).shape == (N, 1)


def test_a_batch_as_an_arrow_table(store):
    """By trace id if that was read, else by row number; a batch of no rows keeps its types."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = store.read([3, -1]).to_arrow()
    assert table["row"].to_pylist() == [3, 16]
    assert table["label"].to_pylist() == [ROWS[3][1]["label"], ROWS[16][1]["label"]]
    table = store.read([], ["trace_id", "question"]).to_arrow()
    assert table.schema.types == [pyarrow.large_string()] * 2


def test_numbers_of_every_float_in_an_arrow_table():
    """NaN is a number, not a null."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    floats = {"float16": "halffloat", "bfloat16": "float", "float32": "float", "float64": "double"}
    columns = {name: torch.tensor([1.5, float("nan")]).to(getattr(torch, name)) for name in floats}
    table = Batch(torch.arange(2), columns).to_arrow()
    assert [str(kind) for kind in table.schema.types] == ["int64", *floats.values()]
    for name in floats:
        assert table[name].null_count == 0
        assert table[name][0].as_py() == 1.5
        assert np.isnan(table[name][1].as_py())
    assert isinstance(table, pyarrow.Table)


def test_bfloat16_becomes_float32_in_a_data_frame():
    pytest.importorskip("pandas")
    values = torch.tensor([1.5, float("nan"), -3.0], dtype=torch.bfloat16)
    frame = Batch(torch.arange(3), {"score": values}).to_pandas()
    assert str(frame["score"].dtype) == "float32"
    assert frame["score"].tolist()[::2] == [1.5, -3.0]
    frame["score"] = 0.0
    assert values[0] == 1.5


def test_columns_with_arrays_are_refused_for_a_data_frame(store):
    batch = store.read([0])
    for thing in (store, batch):
        for name in ("tokens", "states", "hidden_states"):
            with pytest.raises(
                SchemaError, match=f"column '{name}': a DataFrame has one number or one text a row"
            ):
                thing.to_pandas([name])
            with pytest.raises(SchemaError, match=f"column '{name}': a table has one number"):
                thing.to_arrow([name])
        for convert in (thing.to_pandas, thing.to_arrow):
            with pytest.raises(NotFoundError, match="closest: 'label'"):
                convert(["lable"])


@pytest.mark.parametrize("package, convert", [("pandas", "to_pandas"), ("pyarrow", "to_arrow")])
def test_without_a_package_one_line_says_what_to_install(store, monkeypatch, package, convert):
    monkeypatch.setitem(sys.modules, package, None)
    expected = f"^{convert}: the package {package} is not installed; run pip install {package}$"
    for thing in (store, store.read([0])):
        with pytest.raises(NotFoundError, match=expected):
            getattr(thing, convert)()


def test_a_ragged_pair_still_unpacks(store):
    values, offsets = store.read([3, 4])["tokens"]
    assert isinstance(Ragged(values, offsets), tuple)
    assert offsets[-1] == len(values)
