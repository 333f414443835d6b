"""`docs/format.md` suffices to read a store: a reader written from it alone reads every value.

`tests/independent_reader.py` is that reader. Where it and the package disagree, the document, the
package or the reader has a defect.
"""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from store import Column, Schema, StoreError, StoreWriter, TraceStore
from tests import independent_reader
from tests.independent_reader import Store
from tests.store.oracle import SCHEMA, assert_same_row, bits, make_rows
from tests.store.sample import ROWS as SAMPLE_ROWS
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
REPLACED = Column("int64", chunk_items=4, shard_items=8)


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
def copy(tmp_path):
    """The committed store of the first version."""
    return unpack(tmp_path)


def read_all(path):
    """All rows through the independent reader, as (trace id, values); each id is found."""
    store = Store(path)
    assert [store.find(trace_id) for trace_id in store.ids] == list(range(store.n_rows))
    with pytest.raises(KeyError):
        store.find("no such")
    return [
        (trace_id, {name: store.value(name, row) for name in store.columns})
        for row, trace_id in enumerate(store.ids)
    ]


def assert_rows(path, expected):
    """They are these, bit for bit, with all columns in their order."""
    for (trace_id, found), (other_id, values) in zip(read_all(path), expected, strict=True):
        assert trace_id == other_id
        assert list(found) == list(values)
        assert_same_row(found, values)


def test_the_reader_imports_nothing_of_the_package():
    text = Path(independent_reader.__file__).read_text()
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE))
    standard = {"hashlib", "json", "math", "pathlib", "re", "struct", "zlib"}
    assert imported == standard | {"crc32c", "numcodecs", "numpy"}


@pytest.mark.parametrize("version", [1, 2])
def test_the_committed_samples_read_bit_for_bit(tmp_path, version):
    assert_rows(unpack(tmp_path, version), SAMPLE_ROWS)


def test_a_store_written_today_reads_as_through_the_package(written):
    assert_rows(written, [(trace.id, trace) for trace in TraceStore.open(written)])
    assert len(Store(written).manifest["runs"]) > 1


def test_a_store_without_rows_reads(tmp_path):
    path = tmp_path / "empty.zarr"
    StoreWriter.create(path, WRITTEN).close()
    assert read_all(path) == []
    assert (path / "_offsets" / "tokens" / "c" / "0").exists()
    assert len(Store(path).manifest["tails"]["_offsets/tokens"]) == 1


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
    assert bits(early.value("tokens", 4)) == bits(TraceStore.open(written)[4]["tokens"])


# a byte of the committed sample: of a raw chunk, a split one, a compressed one, a text, offsets,
# the id table, and of the indexes at the ends of shards
BYTES = {
    "tokens/c/1": [5, 70, -1],
    "hidden/c/0/0/0": [100],
    "zipped/c/0": [9],
    "planes/c/0/0/0": [30, -20],
    "gzipped/c/0": [25],
    "question/c/0": [3],
    "label@3/c/1": [0],
    "_offsets/tokens/c/0": [16, -1],
    "_checksums/tokens/c/0/0": [0],
    "_index/0-13/hash/c/0": [8],
    "_index/0-13/row/c/0": [-2],
    "zarr.json": [400, -300],
}


@pytest.mark.parametrize("file", BYTES)
def test_a_flipped_bit_or_a_missing_file_is_refused(copy, file):
    whole = (copy / file).read_bytes()
    for place in BYTES[file]:
        data = bytearray(whole)
        data[place] ^= 1
        (copy / file).write_bytes(data)
        with pytest.raises(ValueError, match=r"."):
            read_all(copy)
    (copy / file).unlink()
    with pytest.raises(ValueError, match="no zarr.json" if file == "zarr.json" else "damage"):
        read_all(copy)


def assert_both_refuse(path, name):
    with pytest.raises(ValueError, match=name):
        read_all(path)
    with pytest.raises(StoreError, match=name):
        TraceStore.open(path, check=True).read(slice(None))


@pytest.mark.parametrize("name", ["tokens", "zipped"])
def test_both_readers_find_damage_behind_a_segment_s_border(tmp_path, name):
    """In the last chunk of a segment that is not the last, whose sum is with the others."""
    path = unpack(tmp_path, version=2)
    assert Store(path).manifest["segments"][name][1] == 6  # items, of 4 a chunk
    shard = path / name / "c" / "0"
    data = bytearray(shard.read_bytes())
    index = np.frombuffer(data[-68:-4], "<u8").tolist()
    data[index[2] + 6] ^= 1  # in the second chunk
    shard.write_bytes(data)
    assert_both_refuse(path, name)


@pytest.mark.parametrize("entry", [(2**64 - 8, 16), (2**64 - 1, 16), (0, 2**64 - 1), (0, 12)])
def test_both_readers_refuse_an_index_that_points_outside(copy, entry):
    """The sum of both numbers wraps; one alone says that the chunk is missing; it is too short."""
    shard = copy / "tokens" / "c" / "0"
    data = shard.read_bytes()
    index = np.frombuffer(data[-68:-4], "<u8").copy()  # of four chunks
    index[:2] = entry
    stated = crc32c(index.tobytes()).to_bytes(4, "little")
    shard.write_bytes(data[:-68] + index.tobytes() + stated)
    assert_both_refuse(copy, "tokens")
