"""Rows by number, from the end, by slice and by id; whole columns; what a store and a batch look
like."""

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from damage import flip
from oracle import ROWS, WRITTEN, assert_same_row, bits
from small import make_store, one_column, store_columns

from store import (
    Batch,
    Column,
    CorruptError,
    NotFoundError,
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


@pytest.mark.parametrize("row", [*range(-N, N), np.int64(-1), np.uint8(3), torch.tensor(3)])
def test_one_row_by_its_number(store, row):
    """Negative ones count from the end."""
    trace_id, values = ROWS[row]
    assert store[row].id == store.ids[row] == trace_id
    assert TraceDataset(store)[row].number == row % N
    for found in (store[row], TraceDataset(store)[row]):
        assert_same_row(found, values)


def test_a_slice_reads_the_rows_that_it_takes_of_a_list(store):
    for ends in product((None, 0, 3, -4, 99), (None, 0, 9, -2, 99), (None, 1, 3, -1, -5)):
        assert numbers(store.read(slice(*ends), ["label"])) == list(range(N))[slice(*ends)]


KINDS = (list, tuple, np.array)
MASK = [row % 3 == 1 for row in range(N)]
THREE = [IDS[5], IDS[0], IDS[5]]


@pytest.mark.parametrize(
    "key, expected",
    [
        (slice(3, 5), [3, 4]),
        (slice(None, -3, -1), [N - 1, N - 2]),
        ([-1, 0, -17, 16], [16, 0, 0, 16]),
        (np.array([-2, 2], np.int8), [15, 2]),
        (range(-3, 0), [14, 15, 16]),
        (torch.tensor([5, -5]), [5, 12]),
        ((), []),
        ([], []),
        *((kind(MASK), [*range(1, N, 3)]) for kind in (*KINDS, torch.tensor)),
        (np.zeros(N, bool), []),
        *((kind(THREE), [5, 0, 5]) for kind in KINDS),
        (np.array(THREE, object), [5, 0, 5]),
    ],
)
def test_several_rows(store, key, expected):
    """By number, slice, mask or id, which stay as they are: of a store its traces or a batch, of a
    dataset and of a loader a batch, of the ids a list."""
    given = repr(key)
    loader = TraceLoader(store, rows=range(N)[key] if type(key) is slice else key)
    found = [store.read(key), *loader]
    if not isinstance(key, tuple):  # which is none between brackets
        found += [store[key], TraceDataset(store)[key]]
        assert [trace.row for trace in store[key]] == expected
        assert store.ids[key] == [IDS[row] for row in expected]
    for rows in found:
        for one, row in zip(rows, expected, strict=True):
            assert_same_row(one, ROWS[row][1])
    assert numbers(store.read(key)) == expected
    assert repr(key) == given


WHAT = "expected a sequence of integers, one of trace ids, a mask, or a slice, found "


@pytest.mark.parametrize(
    "key, error, message",
    [
        *(
            ([row], IndexError, f"expected a row from (0|-17) to 16, found {row}")
            for row in (N, -N - 1, 2**40)
        ),
        *(
            (np.ones(n, bool), IndexError, f"expected a mask of its {N} rows, found one of {n}")
            for n in (0, 1, N - 1, N + 1)
        ),
        ([0, IDS[0]], TypeError, rf"{WHAT}\[0, 'trace 0 é'\]"),
        ([IDS[0], 0], TypeError, WHAT),
        (np.ones((N, 1), bool), TypeError, WHAT),
        ([0.0], TypeError, WHAT),
    ],
)
def test_what_is_no_rows_is_refused(store, key, error, message):
    for use in (store.read, store.__getitem__, TraceDataset(store).__getitem__):
        with pytest.raises(error, match=message):
            use(key)
    with pytest.raises(error, match=message):
        TraceLoader(store, rows=key)


def test_one_row_is_not_several(store):
    """Between brackets one is, elsewhere it is refused."""
    with pytest.raises(TypeError, match=r"of trace ids, found one; pass \['trace 5 é'\]"):
        store.read("trace 5 é")
    for none in (3, None):
        with pytest.raises(TypeError, match=WHAT):
            store.read(none)
    for use in (store.__getitem__, TraceDataset(store).__getitem__):
        with pytest.raises(IndexError, match=f"expected a row from (0|-17) to 16, found {N}"):
            use(N)
        with pytest.raises(TypeError, match=WHAT):
            use(None)


BATCH = r"batch: expected a column of \['label'\], found "


def test_positions_in_a_batch_count_from_the_end(store):
    batch = store.read([3, 4, 5], ["label"])
    assert [batch[i].number for i in (-3, -2, -1, 0, 1, 2)] == [3, 4, 5, 3, 4, 5]
    for wrong in (3, -4):
        expected = f"expected a position from (0|-3) to 2, found {wrong}"
        with pytest.raises(IndexError, match=expected):
            batch[wrong]


@pytest.mark.parametrize(
    "use, error, message",
    [
        (lambda store: store.column("lable"), NotFoundError, "closest: 'label'"),
        (
            lambda store: store.column("tokens"),
            SchemaError,
            r"'tokens': it is ragged.* read\(rows, \['tokens'\]\), or .* TraceLoader",
        ),
        (
            lambda store: store.read([0], ["label"], {"label": 1}),
            TypeError,
            r"expected \{'label': \{axis: part\}\}, found \{'label': 1\}",
        ),
        *(
            (
                lambda store, axis=axis: TraceLoader(store, ["hidden_states"], select={axis: 1}),
                NotFoundError,
                rf"found '{axis}'; its form is \{{column: \{{axis: part\}}\}}",
            )
            for axis in ("tokens", "layers")
        ),
        *(
            (lambda store, key=key: store.read([1], ["label"])[key], NotFoundError, BATCH)
            for key in (slice(0, 2), [0, 1], np.ones(3, bool))
        ),
    ],
)
def test_a_wrong_use_is_told_the_right_one(store, use, error, message):
    with pytest.raises(error, match=message):
        use(store)


@pytest.mark.parametrize(
    "given",
    [
        "~/a b.zarr",
        Path("~/a b.zarr"),
        "file://{}/a%20b.zarr",
        Path("file:{}/a b.zarr"),
        "FILE://localhost{}/a b.zarr",
    ],
    ids=repr,
)
def test_a_path_may_have_a_tilde_or_be_a_file_address(tmp_path, monkeypatch, given):
    """In the library as in the commands, to write as to read."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    given = type(given)(str(given).format(tmp_path))
    make_store(given, {"label": "int8"}, {"a": {"label": 1}})
    assert [path.name for path in tmp_path.iterdir()] == ["a b.zarr"]
    with StoreWriter.open(given) as writer:
        writer.append("b", {"label": 2})
    for store in (TraceStore.open(given), TraceLoader(given).store, TraceDataset(given).store):
        assert store.path == tmp_path / "a b.zarr"
        assert store.column("label").tolist() == [1, 2]
    assert main(["info", str(given)]) == 0


def test_no_store_is_made_at_an_address(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    address = "s3://bucket/new.zarr"
    with pytest.raises(SchemaError, match=f"^{address}: expected a path, found an address; "):
        StoreWriter.create(address, Schema({"label": Column("int8")}))
    StoreWriter.create("one.zarr", Schema({"label": Column("int8")})).close()
    before = sorted(tmp_path.iterdir())
    assert main(["merge", address, "one.zarr"]) == 2
    assert main(["subset", address, "one.zarr", "--where", "label = 1"]) == 2
    assert capsys.readouterr().err.count(f"{address}: expected a path, found an address; ") == 2
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("check", [False, True])
def test_a_whole_column_is_what_a_batch_of_all_rows_gives(whole, check):
    store = TraceStore.open(whole, check=check)
    for name in ("label", "flag", "states", "question", "trace_id"):
        expected, found = store.read(range(N), [name])[name], store.column(name)
        assert type(found) is type(expected)
        if isinstance(found, list):
            assert found == expected
        else:
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert torch.equal(found, expected)


def test_a_whole_column_is_a_copy(store):
    store.column("label").zero_()
    assert bits(store.column("label")) == b"".join(bits(row["label"]) for _, row in ROWS)


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_whole_column_of_several_shards_and_of_none(tmp_path, codec):
    x = Column("float64", (2,), chunk_items=2, shard_items=4, codec=codec)
    empty = make_store(tmp_path / "empty", {"x": x, "s": "utf8"}, {})
    assert (empty.column("x").shape, empty.column("s")) == ((0, 2), [])
    assert len(empty.read(slice(None))) == 0
    numbers, texts = [[row, row + 0.5] for row in range(11)], ["é" * row for row in range(11)]
    full = store_columns(tmp_path / "full", {"x": (x, numbers), "s": ("utf8", texts)})
    assert full.column("x").tolist() == numbers
    assert full.column("s") == texts


@pytest.mark.parametrize("whole", WRITTEN, indirect=True)
def test_damage_in_a_whole_column_names_the_rows(path):
    flip(path / "label/c/0", 7)
    with pytest.raises(CorruptError, match=r"array 'label', shard 0, chunk 1: .*; rows 5 to 9"):
        TraceStore.open(path, check=True).column("label")


@pytest.mark.parametrize("i, wrong, found", [(0, 1, "1 to 4"), (2, 3, "0 to 3")])
def test_texts_whose_offsets_leave_some_out_are_refused(tmp_path, i, wrong, found):
    """Cut there, a text would lack a letter, and nobody would see it."""
    store = one_column(tmp_path / "s.zarr", "text", "utf8", ["no", "on"])
    file = tmp_path / "s.zarr/_offsets/text/c/0"
    offsets = bytearray(file.read_bytes())
    offsets[8 * i : 8 * i + 8] = wrong.to_bytes(8, "little")
    file.write_bytes(offsets)
    with pytest.raises(CorruptError, match=f"axis 'text': expected offsets from 0 to 4.* {found}"):
        store.column("text")


SHOWN = """\
TraceStore({!r}): 17 rows
  tokens         int32     (tokens,)
  hidden_states  float16   (tokens, layers=3, hidden=5)
  attn_mean      float32   (pairs, 2)
  states         bfloat16  (17, 2, 3)
  zipped         float16   (tokens, 2)
  planes         int16     (pairs, layers=2, heads=3)
  label          int8      (17,)
  flag           bool      (17,)
  question       utf8
Batch: 2 rows
  tokens    int32     ({},) ragged
  states    bfloat16  (2, 2, 3)
  label     int8      (2,)
  question  utf8"""


def test_a_store_and_a_batch_show_their_columns(store):
    batch = store.read([3, 4], ["tokens", "states", "label", "question"])
    n_items = len(batch["tokens"].values)
    assert f"{store!r}\n{batch!r}" == SHOWN.format(str(store.path), n_items)


def test_batches_stores_and_ragged_columns_are_no_arrays(store):
    """NumPy and pandas would make something of them that looks right: no two labels equal, no
    mean."""
    batch = store.read([3, 4])
    with pytest.raises(TypeError, match=r"\.values and \.offsets"):
        np.asarray(batch["tokens"])
    for thing in (batch, store):
        with pytest.raises(TypeError, match=r"to_pandas\(\) or to_arrow\(\)"):
            np.asarray(thing)
    pandas = pytest.importorskip("pandas")
    for thing in (batch, store):
        with pytest.raises(TypeError, match=r"to_pandas\(\) or to_arrow\(\)"):
            pandas.DataFrame(thing)


def converted(thing, kind, columns=None):
    """The index and the columns, with their dtypes by name, of either table; both have the same."""
    pytest.importorskip(kind, reason=f"{kind} is not installed")
    if kind == "pandas":
        frame = thing.to_pandas(columns)
        assert frame.index.name not in frame.columns
        frame = frame.reset_index()
        return {name: (str(frame[name].dtype), frame[name].tolist()) for name in frame}
    table = thing.to_arrow(columns)
    assert not any(column.null_count for column in table.columns)  # NaN is a number
    kinds = {"string": "object", "large_string": "object", "halffloat": "float16"}
    kinds |= {"float": "float32", "double": "float64"}
    return {
        name: (kinds.get(str(column.type), str(column.type)), column.to_pylist())
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
def test_scalars_and_texts_as_a_table(store, kind):
    """Each with its dtype, by trace id; of a batch without them by row number."""
    table = converted(store, kind)
    assert list(table) == ["trace_id", "label", "flag", "question"]
    assert table["trace_id"][1] == IDS
    assert table["label"] == ("int8", [row["label"] for _, row in ROWS])
    assert table["flag"][0] == "bool"
    assert table["question"][1] == [row["question"] for _, row in ROWS]
    assert list(converted(store, kind, ["question", "trace_id"])) == ["trace_id", "question"]
    assert list(converted(store, kind, [])) == ["trace_id"]
    table = converted(store.read([3, -1]), kind)
    assert list(table) == ["row", "label", "flag", "question"]
    assert table["row"] == ("int64", [3, 16])
    table = converted(store.read([3, -1], ["trace_id", "label", "tokens"]), kind)
    assert list(table) == ["trace_id", "label"]
    assert [values for _, values in table.values()] == [
        [IDS[3], IDS[16]],
        [ROWS[3][1]["label"], ROWS[16][1]["label"]],
    ]


def test_texts_of_an_arrow_table_may_be_large(store):
    """Also of a batch of no rows, which keeps its types."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = store.read([], ["trace_id", "question"]).to_arrow()
    assert table.schema.types == [pyarrow.large_string()] * 2


@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
def test_numbers_of_every_float_in_a_table(kind):
    """bfloat16 as float32; the table is a copy."""
    wide = {name: name for name in ("float16", "float32", "float64")} | {"bfloat16": "float32"}
    columns = {name: torch.tensor([1.5, float("nan")]).to(getattr(torch, name)) for name in wide}
    batch = Batch(torch.arange(2), columns)
    table = converted(batch, kind)
    for name, dtype in wide.items():
        assert table[name][0] == dtype
        assert table[name][1][0] == 1.5
        assert np.isnan(table[name][1][1])
    made = batch.to_pandas() if kind == "pandas" else batch.to_arrow()
    columns["float32"].zero_()
    assert made["float32"].to_numpy()[0] == 1.5


def test_columns_with_arrays_are_refused_for_a_table(store):
    batch = store.read([0])
    for thing in (store, batch):
        for convert in (thing.to_pandas, thing.to_arrow):
            for name in ("tokens", "states", "hidden_states"):
                with pytest.raises(SchemaError, match=f"column '{name}': a table has one number"):
                    convert([name])
            with pytest.raises(NotFoundError, match="closest: 'label'"):
                convert(["lable"])


@pytest.mark.parametrize("package, convert", [("pandas", "to_pandas"), ("pyarrow", "to_arrow")])
def test_without_a_package_one_line_says_what_to_install(store, monkeypatch, package, convert):
    monkeypatch.setitem(sys.modules, package, None)
    expected = rf"^{convert}: the package {package} is not installed; run .*\[frames\]"
    with pytest.raises(NotFoundError, match=expected):
        getattr(store, convert)()
