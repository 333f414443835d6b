import contextlib
import gzip
import struct
from itertools import product

import numpy as np
import pytest
from crc32c import crc32c
from damage import flip
from small import one_column, store_columns

from store import Column, CorruptError, SchemaError, TraceLoader, TraceStore
from store.format.codecs import parse_codec

TEXTS = [
    "zstd",
    "zstd:-5",
    "zstd:19",
    "gzip",
    "gzip:9",
    "blosc",
    "blosc:lz4",
    "blosc:zlib:9",
    "blosc:zstd:1:shuffle",
]


def here() -> str:
    """What the messages of errors begin with."""
    return "here"


@pytest.mark.parametrize("text", TEXTS)
def test_every_flipped_byte_is_found(text):
    codec, chunk = parse_codec(text), np.arange(64, dtype=np.uint8)
    data, out = np.frombuffer(codec.encode(chunk, 2), np.uint8), np.empty(64, np.uint8)
    for position in range(len(data)):
        damaged = data.copy()
        damaged[position] ^= 0x10
        with pytest.raises(CorruptError, match="here: expected checksum"):
            codec.decode(damaged, out, here)


@pytest.mark.parametrize("text", TEXTS)
def test_a_sound_chunk_of_another_size_is_refused(text):
    """With its right checksum: what it does not hold would stay as the memory was."""
    codec = parse_codec(text)
    for itemsize, n_items in product((1, 8), (1, 16, 250, 300, 4095, 4097, 70_000)):
        other = np.arange(n_items * itemsize).astype(np.uint8)
        data = memoryview(codec.encode(other, itemsize))
        with pytest.raises(CorruptError, match=r"here: expected 4096 bytes of \w+, found: "):
            codec.decode(data, np.empty(4096, np.uint8), here)
        out = np.empty(len(other), np.uint8)
        codec.decode(data, out, here)
        assert np.array_equal(out, other)


def packed_chunk(text, n_bytes=4096):
    """The compressed bytes of a chunk, without their checksum."""
    return parse_codec(text).encode(np.arange(n_bytes).astype(np.uint8), 2)[:-4]


def with_header(packed, **sizes):
    """A Blosc buffer with other sizes in its header."""
    flags, n_bytes, block_bytes, n_packed = struct.unpack("<4I", packed[:16])
    stated = {"n_bytes": n_bytes, "block_bytes": block_bytes, "n_packed": n_packed} | sizes
    return struct.pack("<4I", flags, *stated.values()) + packed[16:]


def zstd_frame(content, header):
    """A frame of one raw block after a header."""
    block_header = len(content) << 3 | 1
    return b"\x28\xb5\x2f\xfd" + header + block_header.to_bytes(3, "little") + content


BLOSC = packed_chunk("blosc:lz4")
GZIP = packed_chunk("gzip")
ZSTD = packed_chunk("zstd")
# The length of its content would read as flags and a content size of 4096 bytes
N_SKIPPED = 0x60 | (4096 - 256) << 8
SKIPPABLE = struct.pack("<II", 0x184D2A50, N_SKIPPED) + bytes(N_SKIPPED)


@pytest.mark.parametrize(
    "name, packed, found",
    [
        ("blosc", with_header(BLOSC, n_packed=2**31 - 1), "2147483647 compressed bytes by the"),
        ("blosc", BLOSC[:-1], f"{len(BLOSC)} compressed bytes by the header"),
        ("blosc", with_header(BLOSC, n_bytes=2**31 - 1), "2147483647 bytes"),
        ("blosc", BLOSC[:12] + b"\x0d", "requires a buffer of 16 bytes"),
        ("blosc", b"", "requires a buffer of 16 bytes"),
        ("gzip", GZIP[:10] + b"\xff" * 8 + GZIP[18:], "Error -3 while decompressing"),
        ("gzip", gzip.compress(bytes(2**24))[:-4] + GZIP[-4:], "Unable to fit data"),
        ("gzip", packed_chunk("gzip", 100)[:-4] + GZIP[-4:], "Incorrect length of data"),
        ("gzip", b"", "0 bytes"),
        ("zstd", packed_chunk("zstd", 2**24), "16777216 bytes"),
        ("zstd", zstd_frame(bytes(100), b"\0\x50"), "expected to decompress 4096, got 100"),
        ("zstd", zstd_frame(bytes(5000), b"\0\x50"), "Destination buffer is too small"),
        ("zstd", SKIPPABLE + packed_chunk("zstd", 100), "no zstd frame"),
        ("zstd", ZSTD[:4], "invalid input data"),
    ],
)
def test_a_hostile_chunk_with_its_right_checksum_is_refused(name, packed, found):
    data = memoryview(packed + crc32c(packed).to_bytes(4, "little"))
    message = f"^here: expected 4096 bytes of {name}, found: .*{found}.*; restore it from a copy$"
    with pytest.raises(CorruptError, match=message):
        parse_codec(name).decode(data, np.empty(4096, np.uint8), here)


@pytest.mark.parametrize("text", TEXTS)
def test_a_damaged_body_with_its_right_checksum_is_read_or_refused(text):
    """Whatever a decoder makes of it: another error than ours would end a whole check."""
    random = np.random.default_rng(0)
    chunk = random.integers(0, 20, 4096, np.uint8)
    codec, out = parse_codec(text), np.empty(4096, np.uint8)
    packed = np.frombuffer(codec.encode(chunk, 2)[:-4], np.uint8)
    for _ in range(100):
        damaged = packed.copy()
        damaged[random.integers(0, len(packed), 2)] = random.integers(0, 256, 2)
        damaged = damaged[: random.choice([len(packed), random.integers(len(packed))])].tobytes()
        data = memoryview(damaged + crc32c(damaged).to_bytes(4, "little"))
        with contextlib.suppress(CorruptError):
            codec.decode(data, out, here)


@pytest.mark.parametrize(
    "text", ["lz4", "zstd:x", "zstd:23", "gzip:10", "zstd:1:2", "blosc:snappy", "blosc:lz4:1:up", 3]
)
def test_unknown_codecs_are_refused(text):
    with pytest.raises(SchemaError, match="codec: expected"):
        Column("int8", codec=text)


N_ROWS = 60
SHARED = {"axis": "t", "chunk_items": 8, "shard_items": 32}  # chunks hold several rows


@pytest.fixture(params=["zstd:1", "blosc:lz4:1:shuffle"])
def shared(request, tmp_path):
    """A path, and how many chunks there are; rows have 0 to 5 items, which say their numbers."""
    column = Column("float32", (3,), codec=request.param, **SHARED)
    values = [np.full((i % 6, 3), i, np.float32) for i in range(N_ROWS)]
    store = one_column(tmp_path / "s.zarr", "x", column, values)
    return store.path, -(-store.n_items("x") // 8)


@pytest.mark.parametrize("cache_bytes", [96, None, 0])
def test_hits_follow_from_shared_chunks(shared, cache_bytes):
    """In order, each chunk is decoded once; without a cache for every row, but once for a read."""
    path, n_chunks = shared
    store = TraceStore.open(path, cache_bytes)
    for row in range(N_ROWS):
        assert (store[row]["x"] == row).all()
    stats = store.cache.stats
    assert (stats.misses == n_chunks, stats.hits > 0) == (cache_bytes != 0,) * 2
    once = TraceStore.open(path, cache_bytes=0)
    rows = np.random.default_rng(0).permutation(N_ROWS)
    assert once.read(rows)["x"].values[:, 0].tolist() == np.repeat(rows, rows % 6).tolist()
    assert once.cache.stats.misses == n_chunks


def test_a_chunk_inside_a_row_is_decoded_in_place(tmp_path):
    """It would never be asked for again, so it must not push others out of the cache."""
    column = Column("int16", axis="t", codec="zstd", chunk_items=4, shard_items=64)
    store = one_column(tmp_path / "s.zarr", "x", column, [np.arange(22), np.arange(9)])
    assert store.read([1, 0])["x"].values.tolist() == [*range(9), *range(22)]
    assert (store.cache.stats.misses, store.cache.stats.hits) == (2, 1)


@pytest.mark.parametrize("n_chunks", [1, 6, 30])
def test_the_known_order_never_hits_less_than_lru(tmp_path, monkeypatch, n_chunks):
    """Over epochs of a global shuffle, at any size, of ragged and fixed columns; and the values
    are right."""
    x = Column("float32", (3,), codec="zstd", **SHARED)
    y = Column("int32", (4,), codec="zstd", chunk_items=6, shard_items=24)
    rows = range(N_ROWS)
    columns = {"x": (x, [np.full((i % 6, 3), i, np.float32) for i in rows])}
    columns["y"] = (y, [[i] * 4 for i in rows])
    path = store_columns(tmp_path / "s.zarr", columns).path

    def hits():
        loader = TraceLoader(path, ["x", "y"], 4, shuffle=True, cache_bytes=96 * n_chunks)
        for batch in [*loader, *loader]:
            values = batch["x"].values[:, 0]
            assert values.tolist() == batch.rows.repeat_interleave(batch["x"].lengths).tolist()
            assert batch["y"][:, 0].tolist() == batch.rows.tolist()
        return loader.store.cache.stats.hits

    known = hits()
    monkeypatch.setattr(TraceLoader, "_visit_times", lambda self, start: None)
    assert known >= hits()


@pytest.mark.parametrize("codec, split", [("zstd:1", ()), ("blosc:lz4", ("layers",))])
@pytest.mark.parametrize("chunk_items", [8, 257])
def test_whole_chunks_of_any_size_are_read_into_their_place(tmp_path, codec, split, chunk_items):
    """Where they go, but planes by way of other memory."""
    items = np.random.default_rng(0).integers(0, 4, (600, 2, 512)).astype(np.int16)
    names = {"axis_names": ("layers", "hidden"), "split": split}
    column = Column("int16", (2, 512), "t", **names, codec=codec, chunk_items=chunk_items)
    path = one_column(tmp_path / "s.zarr", "x", column, [items[:5], items[5:]]).path
    store = TraceStore.open(path, cache_bytes=0)
    expected = np.concatenate([items[5:], items[:5], items[5:]])
    assert np.array_equal(store.read([1, 0, 1])["x"].values, expected)
    batch = store.read([1, 0, 1], select={"x": {"layers": 1}})
    assert np.array_equal(batch["x"].values, expected[:, 1:])


@pytest.fixture
def compressed(tmp_path, monkeypatch):
    """A store of 4 chunks, and how often the checksum of one was computed."""
    computed = []

    def counted(data):
        computed.append(len(data))
        return crc32c(data)

    column = Column("int64", axis="t", codec="zstd:1", chunk_items=32, shard_items=64)
    store = one_column(tmp_path / "s.zarr", "x", column, [np.arange(8) + i for i in range(16)])
    monkeypatch.setattr("store.format.codecs.crc32c", counted)
    return store.path, computed


def test_a_chunk_is_compared_with_its_checksum_once_while_its_shard_is_open(compressed):
    path, computed = compressed
    loader = TraceLoader(path, ["x"], 4, shuffle=True, cache_bytes=0)
    epochs = [sum(int(batch["x"].values.sum()) for batch in loader) for _ in range(3)]
    assert epochs == [sum(8 * i + 28 for i in range(16))] * 3
    assert len(computed) == 4
    loader.store.reader.column("x").close_shards()
    list(loader)
    assert len(computed) == 8


def test_a_damaged_chunk_is_named_each_time(compressed):
    path, computed = compressed
    flip(path / "x/c/0", 10)
    store = TraceStore.open(path)
    for _ in range(3):
        with pytest.raises(CorruptError, match="array 'x', shard 0, chunk 0: expected checksum"):
            store.read(["t0"])
    assert len(computed) == 3
