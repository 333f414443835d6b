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
    WRITTEN,
    assert_batch,
    assert_same_row,
    assert_zarr_shows,
    make_rows,
    write_store,
)

from store import (
    Column,
    CorruptError,
    IncompleteError,
    NotFoundError,
    Schema,
    SchemaError,
    StoreWriter,
    TraceStore,
    VersionError,
)
from store.errors import closest
from store.format.schema import DTYPES
from store.read import row_reader

ROOT = Path(__file__).parents[3]


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


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
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


@pytest.mark.parametrize("store_path", WRITTEN, indirect=True)
def test_zarr_python_reads_every_array(store_path, rows):
    assert_zarr_shows(store_path, SCHEMA, rows)
    group = zarr.open_group(store_path, mode="r")
    lengths = [len(row["tokens"]) for _, row in rows]
    assert group["_offsets/tokens"][:].tolist() == [0, *np.cumsum(lengths).tolist()]
    assert group["hidden_states"].metadata.dimension_names == (
        "tokens_items",
        "hidden_states_layers",
        "hidden",
    )


def test_tensorstore_reads_every_array(store_path):
    """All arrays, the auxiliary ones included, equal to what zarr-python reads."""
    group = zarr.open_group(store_path, mode="r")
    names = [name for name, node in group.members(max_depth=None) if isinstance(node, zarr.Array)]
    assert len(names) > 2 * len(SCHEMA.columns)
    for name in names:
        kvstore = {"driver": "file", "path": f"{store_path}/{name}/"}
        array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, read=True).result()
        assert array.read().result().tobytes() == group[name][...].tobytes(), name


def test_only_registered_codecs_are_used(store_path):
    documents = [path.read_text() for path in store_path.rglob("zarr.json")]
    assert not any("numcodecs." in text for text in documents)


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
    schema = Schema(
        {
            "one": Column("bfloat16"),
            "three": Column("bfloat16", (2, 3)),
            "many": Column("bfloat16", axis="t", codec="zstd"),
        }
    )
    array = BFLOAT16_VALUES.reshape(2, 3)
    with StoreWriter.create(tmp_path / "s.zarr", schema) as writer:
        for i, one in enumerate(BFLOAT16_VALUES):
            writer.append(f"a{i}", {"one": one, "three": kind(array), "many": kind(array[0])})
        written = {"three": kind(array), "many": [*BFLOAT16_VALUES]}
        writer.commit()
        for trace in TraceStore.open(tmp_path / "s.zarr"):
            writer.append(f"again {trace.id}", {"one": trace["one"], **written})
    store = TraceStore.open(tmp_path / "s.zarr")
    bits = BFLOAT16_VALUES.view(np.uint16)
    assert all(type(trace["one"]) is BFLOAT16 for trace in store)
    assert [int(trace["one"].view(np.uint16)) for trace in store] == [*bits, *bits]
    found = store.read_arrays(slice(None))
    assert (found.fixed("three").view(np.uint16) == bits.reshape(2, 3)).all()
    many = found.ragged("many").values
    assert many.view(np.uint16).tolist() == [*bits[:3]] * 6 + [*bits] * 6
    assert store[0]["three"].dtype == store.read([0])["one"].dtype == torch.bfloat16


def test_a_store_pickles_small_and_sees_its_own_generation(tmp_path, rows):
    path = write_store(tmp_path / "s.zarr", SCHEMA, rows[:10])
    store = TraceStore.open(path)
    store.read(range(10))
    shipped = pickle.dumps(store)
    assert len(shipped) < 20_000
    with StoreWriter.open(path) as writer:
        writer.append(*rows[10])
    again = pickle.loads(shipped)  # noqa: S301 - our own bytes
    assert len(again) == 10
    assert_batch(again.read(range(10)), [row for _, row in rows[:10]])
    assert rows[10][0] not in again
    assert pickle.loads(pickle.dumps(store.ids))[3] == rows[3][0]  # noqa: S301
    assert len(TraceStore.open(path)) == 11


def test_a_reader_keeps_its_generation_while_the_tail_grows(tmp_path, rows):
    """Shards it had not mapped yet are replaced under it by longer ones."""
    path = write_store(tmp_path / "s.zarr", SCHEMA, rows[:5])
    store = TraceStore.open(path)
    with StoreWriter.open(path) as writer:
        for n, row in enumerate(rows[5:]):
            writer.append(*row)
            if n % 5 == 0:
                writer.commit()
    assert_batch(store.read(range(5)), [row for _, row in rows[:5]])


def test_the_caller_may_reuse_its_memory(tmp_path):
    buffer = np.zeros(4, np.int32)
    with StoreWriter.create(
        tmp_path / "s.zarr", Schema({"x": Column("int32", axis="t")})
    ) as writer:
        for i in range(3):
            buffer[:] = i
            writer.append(str(i), {"x": buffer})
    assert [trace["x"].tolist() for trace in TraceStore.open(tmp_path / "s.zarr")] == [
        [i] * 4 for i in range(3)
    ]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tokens": np.zeros((2, 2), np.int32)}, r"expected shape \(n\), found \(2, 2\)"),
        ({"tokens": np.array([2**40])}, "expected integers from -2147483648 to 2147483647"),
        (
            {"tokens": np.zeros(99, np.int32)},
            "expected 99 items on axis 'tokens' like column 'tokens', found",
        ),
        ({"attn_mean": np.zeros((1, 2))}, "expected float32, found float64"),
        (
            {"states": np.zeros((2, 3), np.float32)},
            "expected bfloat16 of torch or ml_dtypes, found float32; convert it first",
        ),
        ({"states": torch.zeros(3, 2).bfloat16()}, r"expected shape \(2, 3\), found \(3, 2\)"),
        ({"label": 200}, "expected integers from -128 to 127, found 200$"),
        ({"label": 0.5}, "expected int8, found float64"),
        ({"label": None}, "expected int8, found object"),
        ({"question": 3}, "expected a string, found int"),
        ({"question": "\ud800"}, "UTF-8"),
        ({"labels": 1}, "found 'labels'; closest: 'label'"),
    ],
)
def test_a_wrong_row_is_refused_whole(tmp_path, rows, change, message):
    writer = StoreWriter.create(tmp_path / "s.zarr", SCHEMA)
    trace_id, row = rows[3]
    with pytest.raises(SchemaError, match=message):
        writer.append(trace_id, row | change)
    assert len(writer) == 0
    writer.append(trace_id, row)
    writer.commit()
    writer.close()
    assert_same_row(TraceStore.open(tmp_path / "s.zarr")[trace_id], row)


def test_a_missing_value_is_refused(tmp_path):
    writer = StoreWriter.create(tmp_path / "s.zarr", SCHEMA)
    with pytest.raises(SchemaError, match=r"found none for \['hidden_states'"):
        writer.append("a", {"tokens": []})
    with pytest.raises(SchemaError, match="expected columns of the schema, found 1"):
        writer.append("a", [1])
    writer.close()


def test_ids_are_unique_strings(tmp_path):
    with StoreWriter.create(tmp_path / "s.zarr", Schema({"x": Column("int8")})) as writer:
        writer.append("a", {"x": 1})
        for taken in ("a", "", "x" * 2000, 5):
            with pytest.raises(SchemaError, match="trace_id"):
                writer.append(taken, {"x": 1})
        writer.commit()
        with pytest.raises(SchemaError, match="found it in the store already"):
            writer.append("a", {"x": 1})


def test_an_unknown_id_names_the_closest(store_path):
    with pytest.raises(
        NotFoundError, match="one of its 40 trace ids, found 'trace 7'; closest: 'trace 7 é'"
    ):
        TraceStore.open(store_path)["trace 7"]
    with pytest.raises(NotFoundError):
        TraceStore.open(store_path)["\udcff"]  # which no text can be
    assert closest("zzz", ["abc"]) == ""


def test_a_damaged_chunk_names_the_rows_it_holds(broken_path, rows):
    """In batches and in single values, for ragged columns by their offsets."""
    flip(broken_path / "zipped/c/0/0", 3)
    lengths = [len(row["zipped"]) for _, row in rows]
    concerned = [i for i in range(40) if lengths[i] and sum(lengths[:i]) < 4]
    store = TraceStore.open(broken_path)
    text = f"array 'zipped', shard 0, chunk 0: .*rows? {concerned[0]}" + f" to {concerned[-1]}" * (
        len(concerned) > 1
    )
    with pytest.raises(CorruptError, match=text):
        store.read(range(40), ["zipped"])
    with pytest.raises(CorruptError, match=text):
        store[concerned[0]]["zipped"]
    store.read(range(40), ["label", "planes"])


def test_maps_are_bounded_over_all_columns(store_path, monkeypatch):
    """However many shards there are: the oldest maps go, and reading goes on."""
    monkeypatch.setattr(row_reader, "MAX_STORE_MAPS", 60)
    store = TraceStore.open(store_path)
    expected = TraceStore.open(store_path).read(range(40))
    for _ in range(2):
        found = store.read(range(40))
    assert torch.equal(found["tokens"].values, expected["tokens"].values)
    mapped = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(store_path) in line
    ]
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
    with pytest.raises(
        CorruptError, match=r"array 'tokens', shard 0: expected .*, found: No such file"
    ):
        TraceStore.open(broken_path).read(range(40), ["tokens"])
    TraceStore.open(broken_path).read(range(40), ["label"])


def test_offsets_that_lie_are_refused(broken_path):
    shard = broken_path / "_offsets/tokens/c/0"
    data = bytearray(shard.read_bytes())
    data[8 * 5 : 8 * 6] = (10**12).to_bytes(8, "little")
    shard.write_bytes(data)
    store = TraceStore.open(broken_path)
    for row in (4, 5):
        with pytest.raises(CorruptError, match="axis 'tokens'"):
            store.read([row])
        with pytest.raises(CorruptError, match="axis 'tokens'"):
            store[row]["tokens"]


@pytest.mark.parametrize(
    "edit, error, message",
    [
        (
            lambda text: text.replace('"format_version": 1', '"format_version": 3'),
            VersionError,
            "upgrade this package",
        ),
        (
            lambda text: text.replace('"n_rows": 40', '"n_rows": 41'),
            CorruptError,
            "expected checksum",
        ),
        (lambda text: text[: len(text) // 2], CorruptError, "expected JSON"),
        (lambda text: "[" * 100_000, CorruptError, "expected JSON"),
        (lambda text: "[]", Exception, "expected a Zarr v3 group"),
        (lambda text: text.replace("trace_store", "other"), Exception, "without 'trace_store'"),
    ],
)
@pytest.mark.parametrize("broken_path", WRITTEN, indirect=True)
def test_a_damaged_or_newer_manifest_is_refused(broken_path, edit, error, message):
    group = broken_path / "zarr.json"
    group.write_text(edit(group.read_text()))
    with pytest.raises(error, match=message):
        TraceStore.open(broken_path)


def test_no_store_at_the_path(tmp_path):
    (tmp_path / "file").write_text("")
    for path, found in [
        ("nothing", "no such path"),
        ("file", "a file"),
        ("", "no zarr.json in it"),
    ]:
        with pytest.raises(NotFoundError, match=f"expected a trace store .*found {found}"):
            TraceStore.open(tmp_path / path)
    with pytest.raises(NotFoundError):
        TraceStore.open("a\0b")


def test_a_column_that_did_not_grow_keeps_its_last_checksum(tmp_path):
    """A second writer that adds only empty rows must not forget the padded chunk's checksum."""
    schema = Schema({"x": Column("int32", axis="t", chunk_items=4, shard_items=8)})
    with StoreWriter.create(tmp_path / "s.zarr", schema) as writer:
        writer.append("a", {"x": [1, 2, 3]})
    tails = TraceStore.open(tmp_path / "s.zarr").manifest.tails
    with StoreWriter.open(tmp_path / "s.zarr") as writer:
        writer.append("b", {"x": []})
    assert TraceStore.open(tmp_path / "s.zarr").manifest.tails["x"] == tails["x"] != []


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


def test_an_old_reader_finds_its_ids_after_the_table_was_merged(tmp_path, rows):
    """Also one that was pickled before, and many at once; rows added since stay unseen."""
    path = write_store(tmp_path / "s.zarr", SCHEMA, rows[:10], commits=2)
    old = TraceStore.open(path)
    shipped = pickle.dumps(old)
    with StoreWriter.open(path) as writer:
        for row in rows[10:30]:
            writer.append(*row)
        writer.merge_runs()
    wanted = [trace_id for trace_id, _ in rows[:30]]
    for store in (old, pickle.loads(shipped)):  # noqa: S301 - our own bytes
        assert [store.row_of(trace_id) for trace_id, _ in rows[:10]] == list(range(10))
        assert rows[10][0] not in store
    for store in (TraceStore.open(path), pickle.loads(shipped)):  # noqa: S301
        assert store.ids.find_all(wanted).tolist()[:10] == list(range(10))
    assert store.ids.find_all(wanted).tolist()[10:] == [-1] * 20


def test_a_relative_path_outlives_a_change_of_directory(tmp_path, rows, monkeypatch):
    write_store(tmp_path / "s.zarr", SCHEMA, rows[:3])
    monkeypatch.chdir(tmp_path)
    store = TraceStore.open("s.zarr")
    monkeypatch.chdir("/")
    assert_same_row(store[rows[1][0]], rows[1][1])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"half": [70000.0]}, "expected numbers that float16 can hold, found up to 70000"),
        ({"half": [np.float32(0.1)]}, "expected float16, found float"),
        ({"half": np.float64(0.1).reshape(1)}, "expected float16, found float"),
        ({"bits": BFLOAT16_VALUES}, "expected uint16, found bfloat16; convert it first"),
    ],
)
def test_python_numbers_may_be_rounded_arrays_may_not(tmp_path, change, message):
    schema = Schema(
        {
            "score": Column("float32"),
            "half": Column("float16", axis="t"),
            "bits": Column("uint16", axis="u"),
        }
    )
    with StoreWriter.create(tmp_path / "s.zarr", schema) as writer:
        row = {"score": 0.1, "half": [0.1, 2], "bits": []}
        writer.append("a", row)
        with pytest.raises(SchemaError, match=message):
            writer.append("b", row | change)
    assert TraceStore.open(tmp_path / "s.zarr")["a"]["score"] == np.float32(0.1)


def test_text_that_is_damaged_is_named(broken_path, rows):
    shard = broken_path / "question/c/0"
    data = bytearray(shard.read_bytes())
    data[: sum(len(row["question"].encode()) for _, row in rows)] = b"\xff" * len(
        "".join(row["question"] for _, row in rows).encode()
    )
    shard.write_bytes(data)
    store = TraceStore.open(broken_path)
    row = next(i for i, (_, values) in enumerate(rows) if values["question"])
    for read in (lambda: store[row]["question"], lambda: store.read([row])):
        with pytest.raises(CorruptError, match=r"column 'question'.*expected UTF-8"):
            read()


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


def test_lengths(store_path, rows):
    store = TraceStore.open(store_path)
    assert store.lengths("tokens").tolist() == [len(row["tokens"]) for _, row in rows]
    assert store.lengths("label").tolist() == [1] * 40


@pytest.mark.parametrize("lengths", [[5] * 40, [3, 7, 1, 4] * 10, [0, 6, 2] * 13])
def test_many_short_rows_within_and_across_shards(tmp_path, lengths):
    """Rows of one length, of several, and empty ones; in one shard, in several, and over a
    border."""
    column = Column("int32", (2,), axis="t", chunk_items=16, shard_items=64)
    with StoreWriter.create(tmp_path / "s.zarr", Schema({"x": column})) as writer:
        for i, n in enumerate(lengths):
            writer.append(str(i), {"x": np.full((n, 2), i, np.int32)})
    store = TraceStore.open(tmp_path / "s.zarr")
    for rows in (
        [0, 1, 2, 3],
        [3, 0, 2],
        list(range(len(lengths)))[::-1],
        [len(lengths) - 1, 0, 5, 5],
    ):
        assert_batch(
            store.read(rows), [{"x": np.full((lengths[row], 2), row, np.int32)} for row in rows]
        )


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
