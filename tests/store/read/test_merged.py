"""Stores of several segments read, grow, verify and are repaired as stores of one; the tests of
those run on merged stores as well, among the slow ones."""

import json
import shutil

import numpy as np
import oracle
import pytest
import zarr
from damage import assert_store, flip
from oracle import SCHEMA, assert_batch, assert_same_row, bits, make_rows, write_store

from store import Column, CorruptError, StoreWriter, TraceLoader, TraceStore
from store.check.repair import plan_repair, repair_store
from store.check.verify import verify_store
from store.cli.main import main
from store.format.contents import column_array
from store.transform.merge import merge_stores

MORE = make_rows(SCHEMA, 5, seed=9)
NEW = [(f"new {i}", row) for i, (_, row) in enumerate(MORE)]


@pytest.fixture
def path(merged_path, tmp_path):
    return shutil.copytree(merged_path, tmp_path / "m.zarr")


def values_of(rows):
    return [row for _, row in rows]


def expected_bytes(name, rows):
    return oracle.expected_bytes(SCHEMA.columns[name], [row[name] for row in values_of(rows)])


@pytest.mark.parametrize("check", [False, True])
def test_any_rows_of_any_parts(merged_path, rows, check):
    """In any order, twice, none; batches, traces and parts of rows; whole columns."""
    store = TraceStore.open(merged_path, check=check)
    rng = np.random.default_rng(0)
    for n in (0, 1, 7, 40, 60):
        order = rng.integers(0, 40, n)
        assert_batch(store.read(order), [rows[row][1] for row in order])
    for row, trace in enumerate(store):
        assert_same_row(trace, rows[row][1])
    select = {
        "hidden_states": {"tokens": slice(1, 4), "layers": -1},
        "planes": {"layers": 0},
        "states": {},
    }
    order = [39, 8, 7, 16, 0]
    batch = store.read(order, list(select), select)
    for found, row in zip(batch, values_of([rows[row] for row in order]), strict=True):
        states, planes = row["hidden_states"][1:4, -1:], row["planes"][:, :1]
        assert_same_row(found, {"hidden_states": states, "planes": planes, "states": row["states"]})
    assert store.column("question") == [row["question"] for row in values_of(rows)]
    assert bits(store.column("label")) == expected_bytes("label", rows)


def test_a_shuffle_through_a_small_cache(merged_path, rows):
    """Chunks that several rows need are found by when they are needed next."""
    largest = max(c.chunk_items * c.item_bytes for c in SCHEMA.columns.values() if c.codec)
    columns = ["zipped", "planes", "hidden_states", "states"]
    seen = []
    for batch in TraceLoader(merged_path, columns, 6, shuffle=True, cache_bytes=3 * largest):
        seen += batch.rows.tolist()
        for row, found in zip(batch.rows.tolist(), batch, strict=True):
            assert_same_row(found, {name: rows[row][1][name] for name in columns})
    assert sorted(seen) == list(range(40))


def test_zarr_python_finds_every_item_at_its_place(merged_path, rows):
    """As section 14 of docs/format.md says where it is."""
    store = TraceStore.open(merged_path)
    group = zarr.open_group(merged_path, mode="r")
    segments = group.attrs["trace_store"]["segments"]
    for name, column in SCHEMA.columns.items():
        firsts = segments[name]
        stops = [*firsts[1:], store.n_items(name)]
        place = 0
        found = []
        for first, stop in zip(firsts, stops, strict=True):
            found.append(group[name][place : place + stop - first])
            place += -(-(stop - first) // column.shard_items) * column.shard_items
        assert np.concatenate(found).tobytes() == expected_bytes(name, rows)
        assert group[name].metadata.dimension_names[0] == f"{name}_places"
        assert group[name].attrs["segments"] == f"trace_store/segments/{name}"


def test_it_grows_and_gets_columns(path, rows):
    """Rows go on in the last segment; a column that is added or replaced is one; readers of the
    earlier state keep it."""
    early = TraceStore.open(path)
    with StoreWriter.open(path) as writer:
        for trace_id, row in NEW:
            writer.append(trace_id, row)
    grown = [*rows, *NEW]
    assert_batch(early.read(slice(None)), values_of(rows))
    columns = {"label": Column("int16"), "score": Column("float32", axis="tokens", codec="zstd")}
    changed = [
        (trace_id, row | {"label": np.int16(i), "score": np.float32(row["tokens"] % 7)})
        for i, (trace_id, row) in enumerate([*grown, ("last", MORE[0][1])])
    ]
    with StoreWriter.open(path) as writer:
        writer.set_columns(columns, values_of(changed[:-1]))
        writer.append(*changed[-1])
    assert_store(path, changed)
    store = early.refresh()
    assert store.schema.layout("label").path not in store.manifest.segments


def test_a_subset_and_a_copy_have_no_segments(path, rows, tmp_path, capsys):
    """And they say format version 1, which every reader reads."""
    wanted = [rows[row] for row in (39, 0, 17)]
    (tmp_path / "ids.txt").write_text("\n".join(trace_id for trace_id, _ in wanted))
    few, copied = tmp_path / "few.zarr", tmp_path / "copied.zarr"
    assert main(["subset", str(few), str(path), "--ids", str(tmp_path / "ids.txt")]) == 0
    assert main(["merge", "--copy", str(copied), str(path)]) == 0
    for made, expected in ((few, wanted), (copied, rows)):
        assert_store(made, expected)
        record = json.loads((made / "zarr.json").read_text())["attributes"]["trace_store"]
        assert (record["format_version"], "segments" in record) == (1, False)


def test_merged_stores_are_merged(path, rows, tmp_path):
    """With one that was written, in between; segments add up."""
    write_store(tmp_path / "new.zarr", SCHEMA, NEW)
    again = [(f"again {i}", row) for i, row in enumerate(values_of(rows[:10]))]
    other = tmp_path / "other.zarr"
    halves = [write_store(tmp_path / f"{i}.zarr", SCHEMA, again[i::2]) for i in range(2)]
    merge_stores(other, list(map(TraceStore.open, halves)), lambda done: None)
    stores = [TraceStore.open(p, check=True) for p in (path, tmp_path / "new.zarr", other)]
    merged = merge_stores(tmp_path / "all.zarr", stores, lambda done: None)
    assert_store(merged.path, [*rows, *NEW, *again[::2], *again[1::2]])
    assert len(merged.manifest.segments["tokens"]) == 5 + 1 + 2


def damage_last_chunk(path, name):
    """Flip a byte in the padded last chunk of a segment; returns its first and last rows."""
    store = TraceStore.open(path)
    array = column_array(store.manifest, name)
    sizes = np.diff(array.segments.firsts)
    segment = np.flatnonzero(sizes % array.layout.chunk_items)[0]
    last = int(array.segments.stops[segment]) - 1
    place = int(array.segments.places_of(np.array([last]))[0])
    number, inside = divmod(place, array.layout.shard_items)
    entries = store.reader.column(name).shard(number).entries
    first_byte = int(entries[inside // array.layout.chunk_items, 0, 0])
    flip(path / array.layout.shard_path(number), first_byte)
    first, stop = array.items_of_chunk(place // array.layout.chunk_items)
    assert stop == last + 1
    if array.axis is None:
        return first, last
    offsets = store.offsets(array.axis)
    hit = np.flatnonzero((offsets[:-1] < stop) & (first < offsets[1:])).tolist()
    return hit[0], hit[-1]


def test_damage_in_the_last_chunk_of_a_segment(path, rows):
    """Its sum is beside those of whole chunks: read, verified and repaired, its rows are named."""
    names = ("hidden_states", "zipped", "states")
    hits = [damage_last_chunk(path, name) for name in names]
    for name, (first, _) in zip(names, hits, strict=True):
        with pytest.raises(CorruptError, match=f"array '{name}'.*rows? {first}"):
            TraceStore.open(path, check=True).read(slice(None), [name])
    assert sorted(problem.rows for problem in verify_store(path).problems) == sorted(hits)
    repair_store(path, plan_repair(path))
    lost = {row for first, last in hits for row in range(first, last + 1)}
    assert_store(path, [row for i, row in enumerate(rows) if i not in lost])
