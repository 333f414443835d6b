"""`docs/format.md` suffices to read a store: a reader written from it alone reads every value.

`tests/independent_reader.py` is that reader. Where it and the package disagree, the document, the
package or the reader has a defect.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from store import Column, Schema, StoreError, StoreWriter, TraceStore
from tests import independent_reader
from tests.independent_reader import Store, checksum
from tests.store.oracle import SCHEMA, bits, make_rows
from tests.store.sample import ROWS as SAMPLE_ROWS
from tests.store.sample import SCHEMA as SAMPLE_SCHEMA
from tests.store.sample import unpack

# besides raw, compressed, split, ragged, text and bfloat16 columns: the other codecs
WRITTEN = Schema(
    SCHEMA.columns
    | {
        "gzipped": Column("float64", codec="gzip:1", chunk_items=4, shard_items=16),
        "answer": Column("utf8", codec="zstd:1", chunk_items=16, shard_items=1024),
        "word": Column("uint32", (2,), codec="blosc:lz4:5:shuffle", chunk_items=4),
    }
)
READERS_IMPORTS = {"hashlib", "json", "math", "pathlib", "re", "struct", "zlib"}
READERS_IMPORTS |= {"crc32c", "numcodecs", "numpy"}
REPLACED = Column("int64", chunk_items=4, shard_items=8)


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """The committed store, of the first variant."""
    return unpack(tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    """The committed store with segments."""
    return unpack(tmp_path_factory.mktemp("merged"), version=2)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A store written today: six commits by two writers, and a column replaced between them."""
    path = tmp_path_factory.mktemp("written") / "traces.zarr"
    rows = make_rows(WRITTEN, 30, seed=3)
    StoreWriter.create(path, WRITTEN, {"model": "none", "numbers": [1, 1e-5, 1.5e16]}).close()
    append(path, rows[:13])
    with StoreWriter.open(path) as writer:
        writer.set_columns({"label": REPLACED}, ({"label": row} for row in range(13)))
    append(path, rows[13:])
    return path


def append(path, rows):
    """Append rows, with a commit after every fifth."""
    with StoreWriter.open(path) as writer:
        for i, (trace_id, values) in enumerate(rows):
            writer.append(trace_id, values)
            if i % 5 == 4:
                writer.commit()


@pytest.fixture
def copy(sample, tmp_path):
    """A copy of the committed store, for a test that damages it."""
    return shutil.copytree(sample, tmp_path / "copy.zarr")


def assert_same_value(found, expected):
    """The same text, or the same bits in the same shape."""
    assert bits(found) == bits(expected)
    if not isinstance(expected, str):
        assert found.shape == tuple(expected.shape)


def read_all(path):
    """All values and rows of ids, through the independent reader."""
    store = Store(path)
    rows = range(store.n_rows)
    values = {name: [store.value(name, row) for row in rows] for name in store.columns}
    return values, [store.find(trace_id) for trace_id in store.ids]


def test_the_reader_imports_nothing_of_the_package():
    text = Path(independent_reader.__file__).read_text()
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE))
    assert imported == READERS_IMPORTS


@pytest.mark.parametrize("name", ["sample", "merged"])
def test_the_committed_samples_read_bit_for_bit(name, request):
    store = Store(request.getfixturevalue(name))
    assert store.columns == list(SAMPLE_SCHEMA.columns)
    assert store.ids == [trace_id for trace_id, _ in SAMPLE_ROWS]
    for row, (trace_id, values) in enumerate(SAMPLE_ROWS):
        assert store.find(trace_id) == row
        for name, value in values.items():
            assert_same_value(store.value(name, row), value)
    with pytest.raises(KeyError):
        store.find("trace 19 é")


def test_a_store_written_today_reads_as_through_the_package(written):
    ours = TraceStore.open(written)
    theirs = Store(written)
    assert theirs.columns == list(ours.schema.columns)
    assert theirs.ids == list(ours.ids)
    assert len(theirs.manifest["runs"]) > 1
    for row, trace_id in enumerate(ours.ids):
        assert theirs.find(trace_id) == ours.row_of(trace_id) == row
        for name in ours.schema.columns:
            assert_same_value(theirs.value(name, row), ours[row][name])


def test_a_store_without_rows_reads(tmp_path):
    path = tmp_path / "empty.zarr"
    StoreWriter.create(path, WRITTEN).close()
    store = Store(path)
    assert store.ids == []
    assert (path / "_offsets" / "tokens" / "c" / "0").exists()
    assert len(store.manifest["tails"]["_offsets/tokens"]) == 1
    with pytest.raises(KeyError):
        store.find("trace 0 é")


def test_a_reader_keeps_its_commit_and_notices_a_replaced_column(written, tmp_path):
    path = shutil.copytree(written, tmp_path / "copy.zarr")
    early = Store(path)
    append(path, [(f"new {i}", values) for i, (_, values) in enumerate(make_rows(WRITTEN, 3, 1))])
    assert Store(path).n_rows == early.n_rows + 3
    assert [early.find(trace_id) for trace_id in early.ids[:5]] == list(range(5))
    with StoreWriter.open(path) as writer:
        writer.set_columns({"label": REPLACED}, ({"label": 0} for _ in range(33)))
    with pytest.raises(ValueError, match="open it again"):
        early.value("label", 0)
    assert_same_value(early.value("tokens", 4), TraceStore.open(written)[4]["tokens"])


# a byte of the committed sample: of a raw chunk, a split one, a compressed one, a text, offsets,
# the id table, and of the indexes at the ends of shards
BYTES = [
    ("tokens/c/1", 5),
    ("tokens/c/1", 70),
    ("tokens/c/1", -1),
    ("hidden/c/0/0/0", 100),
    ("zipped/c/0", 9),
    ("planes/c/0/0/0", 30),
    ("planes/c/0/0/0", -20),
    ("gzipped/c/0", 25),
    ("question/c/0", 3),
    ("label@3/c/1", 0),
    ("_offsets/tokens/c/0", 16),
    ("_offsets/tokens/c/0", -1),
    ("_checksums/tokens/c/0/0", 0),
    ("_index/0-13/hash/c/0", 8),
    ("_index/0-13/row/c/0", -2),
    ("zarr.json", 400),
    ("zarr.json", -300),
]


# what contradicts section 14
SEGMENTS = [[], None, [0, 0], [0, 40, 20], [0, 2**40], [0, 5.0], [False, 20], [1], {"0": 1}]


@pytest.mark.parametrize("firsts", SEGMENTS, ids=str)
def test_both_readers_refuse_segments_that_contradict_themselves(merged, tmp_path, firsts):
    copied = shutil.copytree(merged, tmp_path / "copy.zarr")
    edit_manifest(copied, ("segments", "tokens"), firsts)
    with pytest.raises(ValueError, match=r"."):
        Store(copied)
    with pytest.raises(StoreError):
        TraceStore.open(copied)


def test_both_readers_find_damage_behind_a_segment_s_border(merged, tmp_path):
    """In the last chunk of a segment that is not the last, whose sum is with the others."""
    for name in ("tokens", "zipped"):
        copied = shutil.copytree(merged, tmp_path / name)
        assert Store(copied).manifest["segments"][name][1] == 6  # items, of 4 a chunk
        shard = copied / name / "c" / "0"
        data = bytearray(shard.read_bytes())
        index = np.frombuffer(data[-68:-4], "<u8").tolist()
        data[index[2] + 6] ^= 1  # in the second chunk
        shard.write_bytes(data)
        with pytest.raises(ValueError, match=r"."):
            read_all(copied)
        with pytest.raises(StoreError):
            TraceStore.open(copied, check=True).read(slice(None))


@pytest.mark.parametrize(("file", "place"), BYTES)
def test_a_flipped_bit_is_refused(copy, file, place):
    data = bytearray((copy / file).read_bytes())
    data[place] ^= 1
    (copy / file).write_bytes(data)
    with pytest.raises(ValueError, match=r"."):
        read_all(copy)


def test_a_missing_shard_is_damage(copy):
    (copy / "tokens" / "c" / "1").unlink()
    with pytest.raises(ValueError, match="damage"):
        read_all(copy)


# key, value: each contradicts section 3.3
CONTRADICTIONS = [
    (("format_version",), 0),
    (("format_version",), "1"),
    (("generation",), -1),
    (("n_rows",), 2**48),
    (("n_rows",), 20),
    (("runs",), [[0, 13], [14, 19]]),
    (("runs",), [[0, 13], [13, 13], [13, 19]]),
    (("n_items", "other"), 0),
    (("n_items", "trace_id"), 18),
    (("tails", "tokens"), [2**32]),
    (("tails", "other"), [-1]),
    (("run_sums", "9-99"), 2**32),
    (("arrays", "label"), "label@03"),
    (("arrays", "label"), "tokens@3"),
    (("arrays", "trace_id"), "trace_id@1"),
    (("schema", "hidden", "dtype"), "complex64"),
    (("schema", "hidden", "axis"), "question"),
    (("schema", "hidden", "axis"), "../x"),
    (("schema", "hidden", "axis_names"), ["a", "a"]),
    (("schema", "hidden", "split"), ["other"]),
    (("schema", "hidden", "codec"), "lz4"),
    (("schema", "hidden", "chunk_items"), 0),
    (("schema", "hidden", "shard_items"), 33),
    (("schema", "hidden", "item_shape"), [2**31, 5]),
    (("schema", "hidden", "other"), 1),
]


@pytest.mark.parametrize(("keys", "value"), CONTRADICTIONS, ids=str)
def test_both_readers_refuse_a_manifest_that_contradicts_itself(copy, keys, value):
    """Its checksum is right."""
    edit_manifest(copy, keys, value)
    with pytest.raises(ValueError, match=r"."):
        Store(copy)
    with pytest.raises(StoreError):
        TraceStore.open(copy)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("new",), {"numbers": [1, 1e-5, 1.5e16, 1e-4, -0.0, 1e22], "text": "é😀\x7f\x00/"}),
        (("run_sums",), {}),
        (("tails", "other"), [5]),
        (("generation",), 2**48 - 1),
    ],
    ids=str,
)
def test_both_readers_ignore_what_has_no_meaning(copy, keys, value):
    """Keys of a later writer, and checksums that belong to nothing."""
    edit_manifest(copy, keys, value)
    assert Store(copy).ids == list(TraceStore.open(copy).ids)


def edit_manifest(path, keys, value):
    """Set a value in the manifest, and its checksum as section 3.1 says."""
    group = json.loads((path / "zarr.json").read_bytes())
    manifest = group["attributes"]["trace_store"]
    target = manifest
    for key in keys[:-1]:
        target = target[key]
    target[keys[-1]] = value
    manifest["crc32c"] = checksum(manifest)
    (path / "zarr.json").write_text(json.dumps(group))


@pytest.mark.parametrize("entry", [(2**64 - 8, 16), (2**64 - 1, 16), (0, 2**64 - 1), (0, 12)])
def test_both_readers_refuse_an_index_that_points_outside(copy, entry):
    """The sum of both numbers wraps; one alone says that the chunk is missing; it is too short."""
    edit_index(copy / "tokens" / "c" / "0", entry)
    with pytest.raises(ValueError, match=r"tokens"):
        read_all(copy)
    with pytest.raises(StoreError):
        TraceStore.open(copy).read(range(19), ["tokens"])


def edit_index(path, entry):
    """Set the first entry of a shard of four chunks, and the checksum of its index."""
    data = path.read_bytes()
    index = np.frombuffer(data[-68:-4], "<u8").copy()
    index[:2] = entry
    stated = crc32c(index.tobytes()).to_bytes(4, "little")
    path.write_bytes(data[:-68] + index.tobytes() + stated)
