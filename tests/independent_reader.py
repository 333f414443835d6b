"""A second reader of versions 1 and 2 of the format, written from `docs/format.md` alone.

It imports nothing of the package, and is changed only when the document is, never because the
package reads otherwise. Comments name the document's sections. It checks everything that has a
checksum, and raises ValueError for what must be refused.
"""

import hashlib
import json
import math
import pathlib
import re
import struct
import zlib

import crc32c
import numcodecs.blosc
import numcodecs.zstd
import numpy as np

# Section 4: the logical types, and how their numbers are stored. A bfloat16 stays its 16 bits.
INTEGERS = [f"{kind}{n_bits}" for kind in ("int", "uint") for n_bits in (8, 16, 32, 64)]
NUMBERS = [*INTEGERS, "float16", "float32", "float64"]
STORED = {name: np.dtype(name).newbyteorder("<") for name in NUMBERS}
STORED |= {"bool": np.dtype("u1"), "utf8": np.dtype("u1"), "bfloat16": np.dtype("<u2")}

# Section 3: the keys of the manifest that must be there, and those of a column's description.
MANIFEST = {"uuid": str, "generation": int, "n_rows": int, "runs": list}
MANIFEST |= dict.fromkeys(["n_items", "tails", "schema", "arrays", "provenance"], dict)
COLUMN = {"dtype": str, "chunk_items": int, "shard_items": int}
COLUMN |= dict.fromkeys(["item_shape", "axis_names", "split"], list)
COLUMN |= dict.fromkeys(["axis", "codec"], (str, type(None)))

# Section 3.3: the caps and the names.
MAX_MANIFEST_BYTES = 2**26
MAX_COUNT = 2**48 - 1
MAX_COLUMNS = 1024
MAX_ITEM_AXES = 32
MAX_BYTES = 2**31
MAX_SIZE = 2**40 - 1
MAX_SHARDS = 2**17
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
VERSION = re.compile(r"@[1-9][0-9]{0,18}")

MISSING = 2**64 - 1
AGAIN = "the store was changed meanwhile: open it again"


def need(condition, reason):
    if not condition:
        raise ValueError(reason)


def is_integer(value, low, high):
    """Whether a JSON value is an integer in the range; true and 1.0 are none."""
    return type(value) is int and low <= value <= high


def ceil_div(number, divisor):
    return -(-number // divisor)


def layout(dtype, item_shape, chunk_items, shard_items):
    """The description of an array that is raw, not split and not ragged on a shared axis."""
    sizes = {"item_shape": item_shape, "chunk_items": chunk_items, "shard_items": shard_items}
    return {"dtype": dtype, "axis": None, "axis_names": [], "split": [], "codec": None, **sizes}


TRACE_ID = layout("utf8", [], 65536, 134217728)
OFFSETS = layout("int64", [], 512, 1048576)


# Sections 3 to 3.3: the manifest.


def read_manifest(root):
    path = root / "zarr.json"
    need(path.is_file(), "no zarr.json: not a store")
    need(path.stat().st_size <= MAX_MANIFEST_BYTES, "zarr.json is too large")
    manifest = parse_group(path.read_bytes())
    version = manifest.get("format_version")
    need(is_integer(version, 1, math.inf), "no format_version")
    need(version <= 2, f"format version {version} is newer than this reader")
    need(checksum(manifest) == manifest.get("crc32c"), "the manifest's checksum is wrong")
    check_manifest(manifest)
    return manifest


def parse_group(data):
    """The attribute `trace_store` of a group's zarr.json."""
    try:
        group = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("zarr.json is nested too deeply") from None
    need(isinstance(group, dict) and group.get("node_type") == "group", "not a Zarr group")
    attributes = group.get("attributes")
    need(isinstance(attributes, dict), "a group without attributes")
    need(isinstance(attributes.get("trace_store"), dict), "a group without a manifest")
    return attributes["trace_store"]


def unique(pairs):
    """The object of its pairs of key and value; a key that is there twice is refused."""
    found = dict(pairs)
    need(len(found) == len(pairs), "a JSON object has a key twice")
    return found


def checksum(manifest):
    """Section 3.1: the CRC32C of the canonical JSON of all keys but `crc32c`."""
    rest = {key: value for key, value in manifest.items() if key != "crc32c"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{crc32c.crc32c(text.encode('ascii')):08x}"


def check_manifest(manifest):
    """Section 3.3: refuse a manifest that contradicts itself."""
    for key, kind in MANIFEST.items():
        need(type(manifest.get(key)) is kind, f"manifest: {key} is missing or of another type")
    for key in ("generation", "n_rows"):
        need(is_integer(manifest[key], 0, MAX_COUNT), f"manifest: {key} is out of range")
    check_runs(manifest["runs"], manifest["n_rows"])
    check_sums(manifest.get("run_sums", {}), manifest["tails"])
    check_schema(manifest["schema"])
    for name, path in manifest["arrays"].items():
        right = name in manifest["schema"] and type(path) is str and path.startswith(name)
        need(right and VERSION.fullmatch(path[len(name) :]), f"manifest: arrays: {name!r}")
    check_counts(manifest)


def check_runs(runs, n_rows):
    covered = 0
    for run in runs:
        need(type(run) is list and len(run) == 2, "manifest: a run is no pair")
        need(all(is_integer(end, 0, MAX_COUNT) for end in run), "manifest: a run is out of range")
        need(covered == run[0] < run[1], "manifest: runs leave gaps or are empty")
        covered = run[1]
    need(covered == n_rows, "manifest: runs do not cover the rows")


def check_sums(run_sums, tails):
    need(type(run_sums) is dict, "manifest: run_sums is no object")
    need(all(type(sums) is list for sums in tails.values()), "manifest: a tail is no array")
    for number in [*run_sums.values(), *(number for sums in tails.values() for number in sums)]:
        need(is_integer(number, 0, 2**32 - 1), "manifest: not a checksum")


def check_schema(schema):
    need(len(schema) <= MAX_COLUMNS, "too many columns")
    need("trace_id" not in schema, "a column is called trace_id")
    for name, column in schema.items():
        need(NAME.fullmatch(name), f"not a name: {name!r}")
        check_column(name, column)
        check_sizes(name, column)
    texts = {name for name, column in schema.items() if column["dtype"] == "utf8"} | {"trace_id"}
    for name, column in schema.items():
        need(column["axis"] not in texts, f"{name}: the axis belongs to a text")


def check_column(name, column):
    need(type(column) is dict and set(column) == set(COLUMN), f"{name}: keys of the description")
    for key, kind in COLUMN.items():
        need(isinstance(column[key], kind), f"{name}: {key} is of another type")
    shape = column["item_shape"]
    axis = column["axis"]
    names = column["axis_names"]
    split = column["split"]
    need(column["dtype"] in STORED, f"{name}: unknown dtype")
    need(column["dtype"] != "utf8" or (shape, axis) == ([], None), f"{name}: not a text's shape")
    for word in [*names, *split, *([] if axis is None else [axis])]:
        need(type(word) is str and NAME.fullmatch(word), f"{name}: not a name: {word!r}")
    need(len(names) in (0, len(shape)), f"{name}: not one name an item axis")
    need(len(set(names)) == len(names), f"{name}: item axes of one name")
    need(len(set(split)) == len(split) and set(split) <= set(names), f"{name}: split")


def check_sizes(name, column):
    shape = column["item_shape"]
    chunk_items = column["chunk_items"]
    need(len(shape) <= MAX_ITEM_AXES, f"{name}: too many item axes")
    for size in [*shape, chunk_items, column["shard_items"]]:
        need(is_integer(size, 1, MAX_SIZE), f"{name}: a size is out of range")
    need(column["shard_items"] % chunk_items == 0, f"{name}: a shard is not of whole chunks")
    item_bytes = STORED[column["dtype"]].itemsize * math.prod(shape)
    need(item_bytes <= MAX_BYTES, f"{name}: an item is too large")
    if column["codec"] is not None:
        need(column["codec"].split(":")[0] in DECODERS, f"{name}: unknown codec")
        chunk_bytes = chunk_items * item_bytes // count_planes(column)
        need(chunk_bytes <= MAX_BYTES, f"{name}: a chunk is too large")


def check_counts(manifest):
    counts = manifest["n_items"]
    n_rows = manifest["n_rows"]
    columns = {"trace_id": TRACE_ID, **manifest["schema"]}
    axes = {axis_of(name, column) for name, column in columns.items()} - {None}
    need(set(counts) == axes or (n_rows == 0 and not counts), "manifest: n_items has other axes")
    for axis, count in counts.items():
        need(is_integer(count, 0, MAX_COUNT), f"manifest: n_items of {axis} is out of range")
        need(n_rows > 0 or count == 0, "manifest: items without rows")
    need(counts.get("trace_id", 0) >= n_rows, "manifest: ids without bytes")
    need(ceil_div(n_rows + 1, OFFSETS["shard_items"]) <= MAX_SHARDS, "too many shards of offsets")
    segments = segments_of(manifest)
    need(isinstance(segments, dict), "manifest: segments is no object")
    paths = {path_of(manifest, name) for name in columns}
    need(set(segments) <= paths, "manifest: segments of an array that is no column's")
    for name, column in columns.items():
        n_items = count_items(manifest, name, column)
        firsts = [0]
        if path_of(manifest, name) in segments:
            firsts = segments[path_of(manifest, name)]
            check_firsts(name, firsts, n_items)
        sizes = sizes_of_segments(firsts, n_items)
        shards = sum(ceil_div(size, column["shard_items"]) for size in sizes)
        need(shards <= MAX_SHARDS, f"{name}: too many shards")


def segments_of(manifest):
    """Section 14: the segments of a store of version 2."""
    return manifest.get("segments") if manifest["format_version"] == 2 else {}


def check_firsts(name, firsts, n_items):
    """Section 14: segments begin with an item each, the first with item 0."""
    need(isinstance(firsts, list) and firsts[:1] == [0], f"{name}: segments do not begin with 0")
    for first in firsts:
        need(is_integer(first, 0, n_items - 1), f"{name}: a segment is out of range")
    rising = sorted(set(firsts))
    need(firsts == rising, f"{name}: segments do not rise")


def sizes_of_segments(firsts, n_items):
    return [stop - first for first, stop in zip(firsts, [*firsts[1:], n_items], strict=True)]


def axis_of(name, column):
    """The ragged axis of a column, or None; a text has its own, of its own name."""
    return name if column["dtype"] == "utf8" else column["axis"]


def count_items(manifest, name, column):
    """The committed items of a column; those of a fixed one are the rows."""
    axis = axis_of(name, column)
    return manifest["n_rows"] if axis is None else manifest["n_items"].get(axis, 0)


def split_axes(column):
    """The places of the split axes in the item shape, ascending."""
    names = column["axis_names"]
    return [place for place, name in enumerate(names) if name in column["split"]]


def count_planes(column):
    return math.prod(column["item_shape"][place] for place in split_axes(column))


def path_of(manifest, name):
    """Section 3.2: the path of a column's array."""
    return manifest["arrays"].get(name, name)


def checksums_path(path):
    """Section 2: the path of the checksums of an array."""
    return "_checksums/" + path.lstrip("_").replace("/", ".")


def array_paths(manifest):
    """The paths of all arrays that a manifest calls for."""
    columns = {"trace_id": TRACE_ID, **manifest["schema"]}
    axes = {axis_of(name, column) for name, column in columns.items()} - {None}
    checked = {path_of(manifest, name) for name in columns} | {f"_offsets/{axis}" for axis in axes}
    runs = [f"_index/{first}-{stop}" for first, stop in manifest["runs"]]
    index = {f"{run}/{part}" for run in runs for part in ("hash", "row")}
    return checked | {checksums_path(path) for path in checked} | index


# Section 6: chunks and shards.


def unzstd(data, size):
    return numcodecs.zstd.decompress(data)


def ungzip(data, size):
    """The content of one gzip member with nothing after it."""
    member = zlib.decompressobj(wbits=31)
    content = member.decompress(data, size + 1)
    need(member.eof and not member.unused_data, "not exactly one gzip member")
    return content


def unblosc(data, size):
    """The content of a Blosc buffer; its header has the sizes of the content and of itself."""
    need(len(data) >= 16, "a Blosc buffer without a header")
    content, _, total = struct.unpack("<III", data[4:16])
    need((content, total) == (size, len(data)), "a Blosc buffer of another size")
    return numcodecs.blosc.decompress(data)


DECODERS = {"zstd": unzstd, "gzip": ungzip, "blosc": unblosc}


def decompress(codec, stored, size):
    """The decoded bytes of a chunk, of which the last four stored bytes are the CRC32C."""
    stated = struct.pack("<I", crc32c.crc32c(stored[:-4]))
    need(stored[-4:] == stated, "the checksum of a compressed chunk is wrong")
    try:
        return DECODERS[codec.split(":")[0]](stored[:-4], size)
    except (RuntimeError, MemoryError, zlib.error) as error:
        raise ValueError(f"cannot be decompressed: {error}") from None


class Shard:
    """One file of an array, and the index at its end."""

    def __init__(self, data, n_entries):
        self.end = len(data) - 16 * n_entries - 4
        need(self.end >= 0, "a shard is shorter than its index")
        index = data[self.end : -4].tobytes()
        stated = struct.pack("<I", crc32c.crc32c(index))
        need(data[-4:].tobytes() == stated, "the checksum of a shard's index is wrong")
        self.data = data
        self.index = np.frombuffer(index, "<u8").reshape(n_entries, 2)

    def stored(self, entry):
        """The stored bytes of the chunk that an entry of the index points to."""
        offset, n_bytes = (int(number) for number in self.index[entry])
        need((offset, n_bytes) != (MISSING, MISSING), "a chunk is missing")
        need(offset + n_bytes <= self.end, "a chunk does not end before the index")
        return self.data[offset : offset + n_bytes].tobytes()


class Array:
    """An array of the store: its committed items, read chunk by chunk."""

    def __init__(self, open_file, path, column, n_items, sums=None, tail=None, firsts=(0,)):
        """An array as a description says, with its checksums (section 7), if it has any."""
        self.firsts = firsts
        self.sizes = sizes_of_segments(firsts, n_items)
        self.first_shards = sums_before(self.sizes, column["shard_items"])
        self.first_sums = sums_before(self.sizes, column["chunk_items"])
        self.open_file = open_file
        self.path = path
        self.n_items = n_items
        self.sums = sums
        self.tail = tail
        self.codec = column["codec"]
        self.chunk_items = column["chunk_items"]
        self.chunks_per_shard = column["shard_items"] // column["chunk_items"]
        self.dtype = STORED[column["dtype"]]
        self.shape = tuple(column["item_shape"])
        self.split = split_axes(column)
        self.n_planes = count_planes(column)
        self.shards = {}

    def items(self, start, stop):
        need(0 <= start <= stop <= self.n_items, f"{self.path}: items that are not committed")
        parts = [np.empty((0, *self.shape), self.dtype)]
        while start < stop:
            segment = sum(first <= start for first in self.firsts) - 1
            inside = start - self.firsts[segment]
            number, place = divmod(inside, self.chunk_items)
            n_left = min(stop - start, self.sizes[segment] - inside)
            parts.append(self.chunk(segment, number)[place : place + n_left])
            start += len(parts[-1])
        return np.concatenate(parts)

    def chunk(self, segment, number):
        """All planes of a chunk of a segment, put together: (chunk_items, *item_shape)."""
        try:
            return self.join([self.plane(segment, number, i) for i in range(self.n_planes)])
        except ValueError as error:
            raise ValueError(f"{self.path}: chunk {number}: {error}") from None

    def join(self, planes):
        """Put planes, which are numbered in C order over the split axes, into their places."""
        sizes = [self.shape[axis] for axis in self.split]
        rest = [size for axis, size in enumerate(self.shape) if axis not in self.split]
        joined = np.stack(planes).reshape(*sizes, self.chunk_items, *rest)
        return np.moveaxis(joined, range(len(sizes)), [1 + axis for axis in self.split])

    def plane(self, segment, number, plane):
        """One plane of a chunk of a segment as a flat array of numbers, after all checks."""
        shard, place = divmod(number, self.chunks_per_shard)
        shard += self.first_shards[segment]
        data = self.shard(shard).stored(place * self.n_planes + plane)
        size = self.chunk_items * self.dtype.itemsize * math.prod(self.shape) // self.n_planes
        whole_sum = crc32c.crc32c(data)
        if self.codec is not None:
            whole_sum = crc32c.crc32c(data[:-4])
            data = decompress(self.codec, data, size)
        need(len(data) == size, "another size")
        if self.sums is not None:
            self.check(segment, number, plane, whole_sum, data)
        return np.frombuffer(data, self.dtype)

    def shard(self, number):
        """A shard, opened once; the file's name has a 0 for every item axis."""
        if number not in self.shards:
            path = "/".join([self.path, "c", str(number), *"0" * len(self.shape)])
            n_entries = self.chunks_per_shard * self.n_planes
            self.shards[number] = Shard(self.open_file(path), n_entries)
        return self.shards[number]

    def check(self, segment, number, plane, whole_sum, data):
        """Section 7: compare a chunk with its checksum; that of the last is over zero padding.

        Section 14: so is that of the last chunk of every segment.
        """
        n_there = self.sizes[segment] - number * self.chunk_items
        is_whole = n_there >= self.chunk_items
        if is_whole or segment + 1 < len(self.firsts):
            at = self.first_sums[segment] + number
            stated = self.sums.items(at, at + 1)[0, plane]
        else:
            need(self.tail and len(self.tail) == self.n_planes, "not one checksum a plane")
            stated = self.tail[plane]
        if not is_whole:
            filled = n_there * len(data) // self.chunk_items
            whole_sum = crc32c.crc32c(data[:filled].ljust(len(data), b"\0"))
        need(whole_sum == stated, "the checksum is wrong")


def sums_before(sizes, unit):
    """Section 14: for each segment the shards, or chunks, of all before it."""
    counts = [ceil_div(size, unit) for size in sizes]
    return [sum(counts[:i]) for i in range(len(counts))]


class Store:
    """A store as its manifest stated it when it was opened."""

    def __init__(self, path):
        self.root = pathlib.Path(path)
        need(self.root.is_dir(), "no directory: not a store")
        self.directory = self.identity()
        self.manifest = read_manifest(self.root)
        self.n_rows = self.manifest["n_rows"]
        self.columns = list(self.manifest["schema"])
        self.descriptions = {"trace_id": TRACE_ID, **self.manifest["schema"]}
        self.arrays = {}
        self.runs = {}

    @property
    def ids(self):
        return [self.value("trace_id", row) for row in range(self.n_rows)]

    def value(self, name, row):
        need(name in self.descriptions, f"no column {name!r}")
        need(0 <= row < self.n_rows, f"no row {row}")
        column = self.descriptions[name]
        axis = axis_of(name, column)
        if axis is None:
            found = self.column(name).items(row, row + 1)[0]
        else:
            found = self.column(name).items(*self.bounds(axis, row))
        if column["dtype"] == "utf8":
            return found.tobytes().decode("utf-8")
        if column["dtype"] == "bool":
            need(np.all(found <= 1), f"{name}: a bool that is neither 0 nor 1")
            return found.astype(bool)
        return found

    def bounds(self, axis, row):
        """Section 5: the first item of a row on an axis and the one after its last."""
        n_items = self.manifest["n_items"][axis]
        offsets = self.array(f"_offsets/{axis}", OFFSETS, self.n_rows + 1)
        start, stop = (int(offset) for offset in offsets.items(row, row + 2))
        need(0 <= start <= stop <= n_items, f"{axis}: offsets of row {row} fall or lie outside")
        need(row > 0 or start == 0, f"{axis}: offsets do not begin with 0")
        need(row + 1 < self.n_rows or stop == n_items, f"{axis}: offsets leave items out")
        return start, stop

    def column(self, name):
        column = self.descriptions[name]
        n_items = count_items(self.manifest, name, column)
        return self.array(path_of(self.manifest, name), column, n_items)

    def array(self, path, column, n_items):
        """A column's array or one of offsets, with its checksums (sections 2, 5, 7); made once."""
        if path not in self.arrays:
            planes = count_planes(column)
            chunk_items = max(1, 4096 // (4 * planes))
            description = layout("uint32", [planes], chunk_items, 2048 * chunk_items)
            firsts = segments_of(self.manifest).get(path, [0])
            sizes = sizes_of_segments(firsts, n_items)
            n_sums = sum(ceil_div(size, column["chunk_items"]) for size in sizes[:-1])
            n_sums += sizes[-1] // column["chunk_items"]
            sums = Array(self.open_file, checksums_path(path), description, n_sums)
            tail = self.manifest["tails"].get(path)
            self.arrays[path] = Array(self.open_file, path, column, n_items, sums, tail, firsts)
        return self.arrays[path]

    def identity(self):
        """What tells the directory from another one at its path."""
        status = self.root.stat()
        return status.st_dev, status.st_ino

    def open_file(self, path):
        """The bytes of a shard; section 9: of this directory, which is looked at afterwards."""
        try:
            data = np.memmap(self.root / path, np.uint8, "r")
            need(self.identity() == self.directory, AGAIN)
        except OSError as error:
            raise ValueError(self.why(path, error)) from None
        return data

    def why(self, path, error):
        """Sections 8 and 9: whether a missing file is damage, or the store has gone on."""
        now = read_manifest(self.root)
        has_grown = now["generation"] > self.manifest["generation"]
        is_called_for = path.partition("/c/")[0] in array_paths(now)
        is_same = now["uuid"] == self.manifest["uuid"]
        return AGAIN if is_same and has_grown and not is_called_for else f"damage: {error}"

    # Section 8: the id table.

    def find(self, trace_id):
        """The row of an id; KeyError if there is none."""
        digest = hashlib.blake2b(trace_id.encode("utf-8"), digest_size=8).digest()
        wanted = np.frombuffer(digest, "<u8")[0]
        for first, stop in self.manifest["runs"]:
            hashes, rows = self.run(first, stop)
            low, high = (np.searchsorted(hashes, wanted, side) for side in ("left", "right"))
            for row in rows[low:high]:
                if self.value("trace_id", row) == trace_id:
                    return int(row)
        raise KeyError(trace_id)

    def run(self, first, stop):
        """The hashes and the rows of a run, read once, checked as far as its sum is known."""
        name, size = f"{first}-{stop}", stop - first
        if name not in self.runs:
            hashes = self.index_array(name, "hash", "uint64", size)
            rows = self.index_array(name, "row", "int64", size)
            stated = self.manifest.get("run_sums", {}).get(name)
            found = crc32c.crc32c(hashes.tobytes() + rows.tobytes())
            need(stated in (None, found), f"run {name}: the checksum is wrong")
            need(np.all(hashes[:-1] <= hashes[1:]), f"run {name}: hashes fall")
            need(np.array_equal(np.sort(rows), np.arange(first, stop)), f"run {name}: other rows")
            self.runs[name] = (hashes, rows)
        return self.runs[name]

    def index_array(self, name, part, dtype, size):
        """One of the two arrays of a run, whole."""
        description = layout(dtype, [], 8192, 8192 * ceil_div(size, 8192))
        return Array(self.open_file, f"_index/{name}/{part}", description, size).items(0, size)
