"""The store against its in-memory model, and against other clients of the format."""

import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import tensorstore
import torch
import zarr
from damage import flip
from faults import Faulty, full_disk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import (
    SCHEMA,
    assert_batch,
    assert_same_row,
    assert_zarr_shows,
    make_rows,
    write_store,
)
from small import make_store, one_column

from store import (
    Column,
    CorruptError,
    FormatError,
    IncompleteError,
    NotFoundError,
    Schema,
    SchemaError,
    StoreWriter,
    TraceStore,
)
from store.errors import closest
from store.format.schema import DTYPES
from store.read import row_reader


@given(st.lists(st.integers(0, 39), max_size=50))
def test_a_batch_holds_the_rows_asked_for_in_that_order(store_path, rows, wanted):
    batch = TraceStore.open(store_path).read(wanted)
    assert_batch(batch, [rows[row][1] for row in wanted])
    assert batch.rows.tolist() == wanted


@st.composite
def columns(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = () if dtype == "utf8" else tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    names = tuple("abc"[: len(shape)])
    chunk_items = draw(st.integers(1, 9))
    return Column(
        dtype,
        shape,
        axis="axis" if dtype != "utf8" and draw(st.booleans()) else None,
        axis_names=names,
        split=tuple(name for name in names if draw(st.booleans())),
        codec=draw(st.sampled_from([None, None, "zstd", "gzip:1", "blosc:lz4:5:shuffle"])),
        chunk_items=chunk_items,
        shard_items=chunk_items * draw(st.integers(1, 4)),
    )


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    schema=st.lists(columns(), min_size=1, max_size=4).map(
        lambda cs: Schema({f"c{i}": c for i, c in enumerate(cs)})
    ),
    n_rows=st.integers(0, 12),
    commits=st.integers(1, 4),
    seed=st.integers(0, 100),
)
def test_round_trip_over_schemas_and_sizes(tmp_path_factory, schema, n_rows, commits, seed):
    """Any schema, chunk and shard size, number of commits; read by row, by batch and by
    zarr-python."""
    rows = make_rows(schema, n_rows, seed)
    path = write_store(tmp_path_factory.mktemp("any") / "s.zarr", schema, rows, commits)
    store = TraceStore.open(path)
    assert store.schema == schema
    for trace_id, values in rows:
        assert_same_row(store[trace_id], values)
    order = np.random.default_rng(seed).permutation(n_rows)
    assert_batch(store.read(order), [rows[row][1] for row in order])
    assert_zarr_shows(path, schema, rows)


def test_other_zarr_clients_read_every_array(store_path, rows):
    """All arrays, the auxiliary ones included: tensorstore as zarr-python; with registered codecs
    only."""
    group = zarr.open_group(store_path, mode="r")
    names = [name for name, node in group.members(max_depth=None) if isinstance(node, zarr.Array)]
    assert len(names) > 2 * len(SCHEMA.columns)
    for name in names:
        kvstore = {"driver": "file", "path": f"{store_path}/{name}/"}
        array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, read=True).result()
        assert array.read().result().tobytes() == group[name][...].tobytes(), name
        assert "numcodecs." not in (store_path / name / "zarr.json").read_text()
    lengths = [len(row["tokens"]) for _, row in rows]
    assert group["_offsets/tokens"][:].tolist() == [0, *np.cumsum(lengths).tolist()]
    store = TraceStore.open(store_path)
    assert store.lengths("tokens").tolist() == lengths
    assert store.lengths("label").tolist() == [1] * 40


def test_a_row_inside_one_shard_is_a_view_and_keeps_its_map(store_path):
    store = TraceStore.open(store_path)
    found = next(t for t in store if len(t["tokens"]) == 3)
    view, expected = found["tokens"], found["tokens"].tolist()
    assert not view.flags.writeable
    assert not view.flags.owndata
    del store, found
    assert view.tolist() == expected


BFLOAT16 = ml_dtypes.bfloat16
BFLOAT16_VALUES = np.array([1.5, -0.0, np.inf, 1e-40, 3.1416, np.nan], BFLOAT16)


@pytest.mark.parametrize(
    "kind",
    [
        lambda array: array,
        np.asfortranarray,
        lambda array: torch.from_numpy(array.view(np.int16)).view(torch.bfloat16),
        lambda array: SimpleNamespace(__array__=lambda *_, **__: array),  # as JAX's arrays
    ],
)
def test_bfloat16_of_every_library_is_stored_as_its_bits(tmp_path, kind):
    """A scalar comes back as one, and can be written again."""
    many = Column("bfloat16", axis="t", codec="zstd")
    columns = {"one": "bfloat16", "three": Column("bfloat16", (2, 3)), "many": many}
    array = BFLOAT16_VALUES.reshape(2, 3)
    arrays = {"three": kind(array), "many": kind(array[0])}
    rows = {f"a{i}": {"one": one, **arrays} for i, one in enumerate(BFLOAT16_VALUES)}
    store = make_store(tmp_path / "s.zarr", columns, rows)
    listed = {"three": kind(array), "many": [*BFLOAT16_VALUES]}
    rows = {trace.id: {"one": trace["one"], **listed} for trace in store}
    again = make_store(tmp_path / "again.zarr", columns, rows)
    bits = BFLOAT16_VALUES.view(np.uint16)
    for made, n_items in ((store, 3), (again, 6)):
        assert all(type(trace["one"]) is BFLOAT16 for trace in made)
        found = made.read_arrays(slice(None))
        assert found.fixed("one").view(np.uint16).tolist() == bits.tolist()
        assert (found.fixed("three").view(np.uint16) == bits.reshape(2, 3)).all()
        assert found.ragged("many").values.view(np.uint16).tolist() == [*bits[:n_items]] * 6
    assert store[0]["three"].dtype == store.read([0])["one"].dtype == torch.bfloat16


def test_a_reader_keeps_its_generation_while_the_store_grows(tmp_path, rows):
    """Its open tail, whose shards are replaced by longer ones, and its table of ids, which is
    merged: rows that were added since stay unseen, also by a reader that was pickled before."""
    path = write_store(tmp_path / "s.zarr", SCHEMA, rows[:10], commits=2)
    used = TraceStore.open(path)
    used.read(range(10))
    shipped = pickle.dumps(used)
    assert len(shipped) < 20_000
    with StoreWriter.open(path) as writer:
        for n, row in enumerate(rows[10:]):
            writer.append(*row)
            if n % 5 == 0:
                writer.commit()
        writer.merge_runs()
    wanted = [trace_id for trace_id, _ in rows]
    for store in (used, pickle.loads(shipped)):  # noqa: S301 - our own bytes
        assert len(store) == 10
        assert store.ids.find_all(wanted).tolist() == [*range(10), *[-1] * 30]
        assert [store.row_of(trace_id) for trace_id in wanted[:10]] == list(range(10))
        assert wanted[10] not in store
        assert_batch(store.read(range(10)), [row for _, row in rows[:10]])
        assert pickle.loads(pickle.dumps(store.ids))[3] == wanted[3]  # noqa: S301
    assert TraceStore.open(path).ids.find_all(wanted).tolist() == list(range(40))


def test_the_caller_may_reuse_its_memory(tmp_path):
    buffer = np.zeros(4, np.int32)
    schema = Schema({"x": Column("int32", axis="t")})
    with StoreWriter.create(tmp_path / "s.zarr", schema) as writer:
        for i in range(3):
            buffer[:] = i
            writer.append(str(i), {"x": buffer})
    found = [trace["x"].tolist() for trace in TraceStore.open(tmp_path / "s.zarr")]
    assert found == [[i] * 4 for i in range(3)]


MISSING = object()


WRONG = [
    ({"tokens": np.zeros((2, 2), np.int32)}, r"expected shape \(n\), found \(2, 2\)"),
    ({"tokens": np.array([2**40])}, "expected integers from -2147483648 to 2147483647"),
    ({"tokens": [0] * 99}, "expected 99 items on axis 'tokens' like column 'tokens', found"),
    ({"attn_mean": np.zeros((1, 2))}, "expected float32, found float64"),
    (
        {"states": np.zeros((2, 3), np.float32)},
        "expected bfloat16 of torch or ml_dtypes, found",
    ),
    ({"states": torch.zeros(3, 2).bfloat16()}, r"expected shape \(2, 3\), found \(3, 2\)"),
    ({"label": 200}, "expected integers from -128 to 127, found 200$"),
    ({"label": 0.5}, "expected int8, found float64"),
    ({"label": None}, "expected int8, found object"),
    ({"question": 3}, "expected a string, found int"),
    ({"question": "\ud800"}, "UTF-8"),
    ({"labels": 1}, "found 'labels'; closest: 'label'"),
    ({"half": [70000.0]}, "expected numbers that float16 can hold, found up to 70000"),
    ({"half": [np.float32(0.1)]}, "expected float16, found float"),
    ({"half": np.float64(0.1).reshape(1)}, "expected float16, found float"),
    ({"bits": BFLOAT16_VALUES}, "expected uint16, found bfloat16; convert it first"),
    ({"label": MISSING}, r"found none for \['label'\]"),
]


def test_a_wrong_row_is_refused_whole(tmp_path, rows):
    """Python's own numbers may be rounded, arrays may not; ids are unique strings."""
    numbers = {"score": Column("float32"), "half": Column("float16", axis="t")}
    schema = Schema(SCHEMA.columns | numbers | {"bits": Column("uint16", axis="u")})
    trace_id, row = rows[3]
    row = row | {"score": 0.1, "half": [0.1, 2], "bits": []}
    with StoreWriter.create(tmp_path / "s.zarr", schema) as writer:
        for change, message in WRONG:
            wrong = {name: one for name, one in (row | change).items() if one is not MISSING}
            with pytest.raises(SchemaError, match=message):
                writer.append(trace_id, wrong)
        with pytest.raises(SchemaError, match="expected columns of the schema, found 1"):
            writer.append(trace_id, [1])
        for no_id in ("", "x" * 2000, 5):
            with pytest.raises(SchemaError, match="trace_id"):
                writer.append(no_id, row)
        assert len(writer) == 0
        writer.append(trace_id, row)
        with pytest.raises(SchemaError, match="trace_id"):
            writer.append(trace_id, row)
        writer.commit()
        with pytest.raises(SchemaError, match="found it in the store already"):
            writer.append(trace_id, row)
    found = TraceStore.open(tmp_path / "s.zarr")[trace_id]
    assert_same_row(found, rows[3][1])
    assert found["score"] == np.float32(0.1)


def test_an_unknown_id_names_the_closest(store_path):
    expected = "one of its 40 trace ids, found 'trace 7'; closest: 'trace 7 é'"
    with pytest.raises(NotFoundError, match=expected):
        TraceStore.open(store_path)["trace 7"]
    with pytest.raises(NotFoundError):
        TraceStore.open(store_path)["\udcff"]  # which no text can be
    assert closest("zzz", ["abc"]) == ""


def test_a_damaged_chunk_names_the_rows_it_holds(broken_path, rows):
    """In batches and in single values, for ragged columns by their offsets."""
    flip(broken_path / "zipped/c/0/0", 3)
    lengths = [len(row["zipped"]) for _, row in rows]
    first, *_, last = (i for i in range(40) if lengths[i] and sum(lengths[:i]) < 4)
    store = TraceStore.open(broken_path)
    for read in (lambda: store.read(range(40), ["zipped"]), lambda: store[first]["zipped"]):
        expected = f"array 'zipped', shard 0, chunk 0: .*rows? {first} to {last}"
        with pytest.raises(CorruptError, match=expected):
            read()
    store.read(range(40), ["label", "planes"])


def test_maps_are_bounded_over_all_columns(store_path, monkeypatch):
    """However many shards there are: the oldest maps go, and reading goes on."""
    monkeypatch.setattr(row_reader, "MAX_STORE_MAPS", 60)
    store = TraceStore.open(store_path)
    expected = TraceStore.open(store_path).read(range(40))
    for _ in range(2):
        found = store.read(range(40))
    assert torch.equal(found["tokens"].values, expected["tokens"].values)
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line for line in maps if str(store_path) in line]
    assert sum(len(array._shards) for array in store.reader._arrays.values()) <= 60
    assert mapped


def test_damage_is_an_error_never_a_crash_or_zeros(broken_path, rows):
    shard = broken_path / "tokens/c/0"
    whole = shard.read_bytes()
    for damaged in (b"", whole[:10], whole[:-1], whole[:-10] + bytes(10), whole[: len(whole) // 2]):
        shard.write_bytes(damaged)
        with pytest.raises(CorruptError, match=r"array 'tokens', shard 0: expected .* restore"):
            TraceStore.open(broken_path).read(range(40), ["tokens"])
    shard.unlink()
    expected = r"array 'tokens', shard 0: expected .*, found: No such file"
    with pytest.raises(CorruptError, match=expected):
        TraceStore.open(broken_path).read(range(40), ["tokens"])
    TraceStore.open(broken_path).read(range(40), ["label"])


def test_offsets_that_lie_and_texts_that_are_none_are_refused(broken_path, rows):
    for name, place, wrong in (
        ("_offsets/tokens", 8 * 5, (10**12).to_bytes(8, "little")),
        ("question", 0, b"\xff" * sum(len(row["question"].encode()) for _, row in rows)),
    ):
        shard = broken_path / name / "c/0"
        data = bytearray(shard.read_bytes())
        data[place : place + len(wrong)] = wrong
        shard.write_bytes(data)
    store = TraceStore.open(broken_path)
    text = next(i for i, (_, values) in enumerate(rows) if values["question"])
    for row, name, message in (
        (4, "tokens", "axis 'tokens'"),
        (5, "tokens", "axis 'tokens'"),
        (text, "question", r"column 'question'.*expected UTF-8"),
    ):
        with pytest.raises(CorruptError, match=message):
            store.read([row], [name])
        with pytest.raises(CorruptError, match=message):
            store[row][name]


@pytest.mark.parametrize(
    "edit, error, message",
    [
        (lambda text: text.replace('"n_rows": 40', '"n_rows": 41'), CorruptError, "checksum"),
        (lambda text: text[: len(text) // 2], CorruptError, "expected JSON"),
        (lambda text: "[" * 100_000, CorruptError, "expected JSON"),
        (lambda text: "\n<!doctype html>Log in", CorruptError, "page, b.<!doctype html>Log in.; "),
        (lambda text: "[]", FormatError, "expected a Zarr v3 group"),
        (lambda text: text.replace("trace_store", "other"), FormatError, "without 'trace_store'"),
    ],
)
def test_a_damaged_manifest_is_refused(store_path, tmp_path, edit, error, message):
    text = edit((store_path / "zarr.json").read_text())
    (tmp_path / "zarr.json").write_text(text)
    with pytest.raises(error, match=message):
        TraceStore.open(tmp_path)


@pytest.mark.parametrize(
    "path, error, message",
    [
        ("nothing", NotFoundError, "expected a trace store .*found no such path"),
        ("zarr.json/file", NotFoundError, "expected a trace store .*found no such path"),
        ("file", NotFoundError, "expected a trace store .*found a file"),
        (".", NotFoundError, "expected a trace store .*found no zarr.json in it"),
        ("a\0b", NotFoundError, "expected a readable trace store"),
        ("ftp://host/a.zarr", NotFoundError, "found an address; only s3://, gs://, az:// and"),
        ("s3a://bucket/a.zarr", NotFoundError, "found an address; only s3://, gs://, az:// and"),
        (["a.zarr"], TypeError, "expected the path or the address of one store, found list "),
        (("a.zarr",), TypeError, "expected the path or the address of one store, found tuple "),
    ],
    ids=repr,
)
def test_no_store_at_the_path(tmp_path, monkeypatch, path, error, message):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    for use in (TraceStore.open, StoreWriter.open):
        with pytest.raises(error, match=message):
            use(path)


def test_a_column_that_did_not_grow_keeps_its_last_checksum(tmp_path):
    """A second writer that adds only empty rows must not forget the padded chunk's checksum."""
    column = Column("int32", axis="t", chunk_items=4, shard_items=8)
    store = one_column(tmp_path / "s.zarr", "x", column, [[1, 2, 3]])
    with StoreWriter.open(store.path) as writer:
        writer.append("b", {"x": []})
    assert store.refresh().manifest.tails["x"] == store.manifest.tails["x"] != []


def test_a_row_that_stopped_half_way_is_never_committed(tmp_path):
    """The writer refuses to go on; what was committed stays, and a new writer works."""
    files = Faulty(0, full_disk, only="write")
    schema = Schema({"v": Column("float64", axis="t", chunk_items=4, shard_items=8)})
    writer = StoreWriter.create(tmp_path / "s.zarr", schema, files=files)
    writer.append("ok", {"v": np.ones(3)})
    writer.commit()
    files.begin()
    with pytest.raises(OSError, match="No space left"):
        writer.append("bad", {"v": np.zeros(10**6)})
    for go_on in (lambda: writer.append("good", {"v": np.ones(1)}), writer.commit):
        with pytest.raises(IncompleteError, match="appending trace 'bad' stopped half-way"):
            go_on()
    writer.close()
    with StoreWriter.open(tmp_path / "s.zarr") as again:
        again.append("good", {"v": np.ones(1)})
    assert [trace.id for trace in TraceStore.open(tmp_path / "s.zarr")] == ["ok", "good"]
    assert TraceStore.open(tmp_path / "s.zarr")["ok"]["v"].tolist() == [1, 1, 1]


def test_a_relative_path_outlives_a_change_of_directory(tmp_path, rows, monkeypatch):
    write_store(tmp_path / "s.zarr", SCHEMA, rows[:3])
    monkeypatch.chdir(tmp_path)
    store = TraceStore.open("s.zarr")
    monkeypatch.chdir("/")
    assert_same_row(store[rows[1][0]], rows[1][1])


def test_many_ids_are_found_at_once(store_path, rows, monkeypatch):
    """Those that share a hash are compared, and those that are not there have row -1."""
    store = TraceStore.open(store_path)
    ids = [trace_id for trace_id, _ in rows]
    wanted = [*ids[::-3], "absent", "\ud800", ids[5], ids[5]]
    rows_of = {trace_id: row for row, trace_id in enumerate(ids)}
    expected = [rows_of.get(trace_id, -1) for trace_id in wanted]
    assert store.ids.find_all(wanted).tolist() == expected
    assert store.ids.find_all([]).tolist() == []
    others = np.full(len(wanted), 3)  # as if all had the hash of row 3
    monkeypatch.setattr(store.reader.id_table, "rows_of_hashes", lambda hashes: others.copy())
    assert store.ids.find_all(wanted).tolist() == expected


def test_arrays_are_what_tensors_are(store_path, rows):
    """In every column, of rows in any order and of all; bfloat16 is float32."""
    store = TraceStore.open(store_path)
    arrays, batch = store.read_arrays([5, 0, 39, 5]), store.read([5, 0, 39, 5])
    for name, column in store.schema.columns.items():
        if column.is_text:
            assert store.column_array(name) == store.column(name)
            continue
        tensor = batch[name] if column.axis is None else batch.ragged(name).values
        wide = tensor.float() if column.dtype == "bfloat16" else tensor
        for either in (arrays, batch):
            np.testing.assert_array_equal(either.numbers(name), wide.numpy())
            np.testing.assert_array_equal(either.float32(name), tensor.float().numpy())
        if column.axis is None:
            whole = store.column(name)
            whole = whole.float() if column.dtype == "bfloat16" else whole
            np.testing.assert_array_equal(store.column_array(name), whole.numpy())
    with pytest.raises(TypeError, match="'question': expected numbers, found texts"):
        arrays.numbers("question")
    with pytest.raises(
        TypeError, match=r"'label': expected a column of texts, found \(4,\) of int8"
    ):
        arrays.texts("label")
    with pytest.raises(TypeError, match="'question': expected a fixed column, found"):
        arrays.fixed("question")


def test_an_open_store_with_another_cache(store_path):
    store = TraceStore.open(store_path)
    assert TraceStore.open(store) is store
    assert TraceStore.open(store, cache_bytes=0).cache_bytes == 0


def test_a_file_that_is_removed_while_it_is_counted_takes_nothing(store_path, monkeypatch):
    """As commits of a writer do, beside whoever asks for the size."""
    store = TraceStore.open(store_path)
    n_bytes = store.file_bytes()
    file = store_path / "removed"
    file.write_bytes(bytes(8192))
    assert store.file_bytes() > n_bytes
    walk = os.walk

    def removing(root):
        for found in walk(root):
            file.unlink(missing_ok=True)
            yield found

    monkeypatch.setattr(os, "walk", removing)
    assert store.file_bytes() == n_bytes


@pytest.mark.parametrize("lengths", [[5] * 40, [3, 7, 1, 4] * 10, [0, 6, 2] * 13])
def test_many_short_rows_within_and_across_shards(tmp_path, lengths):
    """Rows of one length, of several, and empty ones; in one shard, in several, over a border."""
    column = Column("int32", (2,), axis="t", chunk_items=16, shard_items=64)
    values = [np.full((n, 2), i, np.int32) for i, n in enumerate(lengths)]
    store = one_column(tmp_path / "s.zarr", "x", column, values)
    n = len(lengths)
    for rows in ([0, 1, 2, 3], [3, 0, 2], [*range(n)][::-1], [n - 1, 0, 5, 5]):
        assert_batch(store.read(rows), [{"x": values[row]} for row in rows])


def test_a_chunk_is_checked_before_its_first_use_only(broken_path):
    """What rots under an open store is seen by the next one, and in chunks not used before."""
    store = TraceStore.open(broken_path, check=True)
    expected = store.read([0], ["label"])["label"].tolist()
    layout = store.schema.layout("label")
    path = broken_path / layout.shard_path(0)
    later = min(layout.shard_items, len(store)) - 1
    chunk = later // layout.chunk_items
    assert chunk
    for damaged in (0, chunk * layout.chunk_bytes):
        flip(path, damaged)
    assert store.read([0], ["label"])["label"].tolist() != expected
    with pytest.raises(CorruptError, match=f"array 'label', shard 0, chunk {chunk}"):
        store.read([later], ["label"])
    with pytest.raises(CorruptError, match="array 'label', shard 0, chunk 0"):
        TraceStore.open(broken_path, check=True).read([0], ["label"])
