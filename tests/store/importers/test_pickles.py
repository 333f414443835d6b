"""Tests of reading untrusted files: data comes back whole, and nothing that a file asks for is
done."""

import codecs  # noqa: F401 - in the files beside this one
import contextlib
import copyreg
import gzip
import io
import operator  # noqa: F401
import os  # noqa: F401
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from functools import partial
from operator import attrgetter

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16

from store.errors import CorruptError, RefusedError, StoreError
from store.importers.pickles import read_content
from store.importers.pickles.builders import Graph
from store.memory_limits import MemoryLimits

read_pickle = partial(read_content, kind="pickle")
read_torch = partial(read_content, kind="torch")
DTYPES = [
    *("?", "i1", "u1", "<i2", ">u4", "<i8", "<f2", ">f4", "<f8", "<c8", ">c16", "g"),
    *("<U3", ">U2", "S4"),
]
NUMBERS = st.booleans() | st.integers() | st.floats() | st.complex_numbers()
ATOMS = st.none() | NUMBERS | st.text(max_size=8) | st.binary(max_size=8)
KEYS = st.text(max_size=4) | st.integers(-(2**60), 2**60) | st.binary(max_size=3) | st.booleans()
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(
        dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    )
)
LAYOUTS = [
    lambda a: a,
    np.asfortranarray,
    lambda a: a[..., ::2] if a.ndim else a,
    lambda a: np.moveaxis(a, -1, 0) if a.ndim > 2 else a,
]
VALUES = st.recursive(
    st.one_of(
        ATOMS,
        st.builds(bytearray, st.binary(max_size=8)),
        st.builds(lambda array, layout: layout(array), ARRAYS, st.sampled_from(LAYOUTS)),
        st.builds(lambda n: torch.arange(2 * n).reshape(2, n).half().T, st.integers(0, 3)),
        st.floats(width=32).map(np.float32),
        st.text("abc", min_size=1).map(np.str_),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4).map(OrderedDict),
        st.sets(KEYS, max_size=4),
        st.frozensets(KEYS, max_size=4),
    ),
    max_leaves=12,
)


def as_array(tensor):
    """What a tensor comes back as."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(bfloat16)
    return tensor.numpy()


def assert_same(a, b):
    """The same types, layouts and bits, all the way down; of tensors as arrays."""
    if isinstance(b, torch.Tensor):
        b = as_array(b)
    assert type(a) is type(b)
    if isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        assert_same(list(a.values()), list(b.values()))
    elif isinstance(a, np.ndarray):
        for value in ("dtype.str", "shape", "flags.f_contiguous"):
            assert attrgetter(value)(a) == attrgetter(value)(b)
        assert a.tobytes() == b.tobytes()
    else:
        assert repr(a) == repr(b)


class Calls:
    """Pickles as a call."""

    def __init__(self, function, *args):
        self.reduced = (function, args)

    def __reduce__(self):
        return self.reduced


@pytest.fixture
def canary(tmp_path):
    """A file that the hostile files try to make."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists()


@pytest.fixture
def written(tmp_path):
    """Put bytes into a file; give its path."""

    def write(data):
        (tmp_path / "file.pkl").write_bytes(data)
        return tmp_path / "file.pkl"

    return write


def refusal(path, error=RefusedError, read=read_pickle, **options):
    """The one line of a file's error."""
    with pytest.raises(error) as caught:
        read(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    assert message.isascii()
    return message


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("pickles") / "value.pkl"


@given(value=VALUES, protocol=st.integers(0, 5), compress=st.booleans())
def test_round_trip(scratch, value, protocol, compress):
    """What was pickled in any protocol comes back with the same types, layouts and bits."""
    data = pickle.dumps(value, protocol)
    scratch.write_bytes(gzip.compress(data, 1) if compress else data)
    assert_same(read_pickle(scratch), pickle.loads(data))  # noqa: S301 - made here


@pytest.mark.parametrize("protocol", range(6))
def test_old_numpy(written, protocol):
    """The module names of NumPy 1 are known."""
    data = pickle.dumps([np.arange(3), np.float32(1.5)], protocol)
    if protocol < 4:
        data = data.replace(b"numpy._core", b"numpy.core")
    assert_same(read_pickle(written(data)), [np.arange(3), np.float32(1.5)])


def test_shared(written):
    """An array in two places is one array."""
    array = np.arange(3)
    got = read_pickle(written(pickle.dumps([array, (array,), {"a": array}], 4)))
    assert got[0] is got[1][0] is got[2]["a"]
    assert type(got[0]) is np.ndarray
    assert got[0].flags.writeable


def test_deep_nesting(written):
    """A value may be 100 deep."""
    for opening in (b"]", b")"):
        value = read_pickle(written(b"\x80\x04" + opening + b"\x85" * 100 + b"."))
        for _ in range(100):
            (value,) = value


def test_free_memory_is_a_limit(written, monkeypatch):
    """A pickle that it does not hold is not read; nothing is said against a file of that size."""
    memory = MemoryLimits(10**9, 10**6, 10**6)
    monkeypatch.setattr("store.importers.pickles.read_memory", lambda: memory)
    data = pickle.dumps(bytes(2 * 10**6))
    path = written(data)
    with pytest.raises(MemoryError, match=f"{path}: it does not fit into the 1000000 bytes of"):
        read_pickle(path)
    assert "at most 1000000 bytes" in refusal(written(gzip.compress(data)))


class Text(str):
    """A subclass is not a str."""

    __slots__ = ()


def named(module, name):
    """A name on the stack, by protocol 4."""
    texts = [b"\x8c" + bytes([len(text)]) + text for text in (module, name)]
    return b"\x80\x04" + b"".join(texts) + b"\x93"


def pickled(value):
    """Without the end."""
    return pickle.dumps(value, 4)[:-1]


def tenfold(value, n):
    for _ in range(n):
        value = [value] * 10
    return value


def array_pickle(shape, data, dtype="f4"):
    """A pickled array of any shape, over any bytes."""
    honest = pickle.dumps([np.zeros(3, dtype)], 2)
    assert honest.count(b"K\x01K\x03\x85") == 1
    text = data.decode("latin1").encode()
    start = honest.index(b"X\x0c\x00\x00\x00" + bytes(12))
    payload = b"X" + struct.pack("<I", len(text)) + text
    sizes = b"".join(b"\x8a\x09" + n.to_bytes(9, "little", signed=True) for n in shape)
    changed = honest[:start] + payload + honest[start + 17 :]
    return changed.replace(b"K\x01K\x03\x85", b"K\x01(" + sizes + b"t")


def saved(value, is_zip=True):
    """The bytes of a torch file."""
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=is_zip)
    return file.getvalue()


def repacked(value, change, compression=zipfile.ZIP_STORED):
    """A torch file whose records, name -> bytes, are others."""
    with zipfile.ZipFile(io.BytesIO(saved(value))) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in change(records).items():
            archive.writestr(name, data)
    return file.getvalue()


def replaced(old, new):
    """A change of the bytes in all records."""
    return lambda records: {name: data.replace(old, new) for name, data in records.items()}


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_what_no_trace_asks_for_is_refused(written, canary, golden_lines, kind):
    """By its name, and nothing of it is done: a call of any function outside the table, in
    protocols 0 and 5, names with dots, what lies outside the file, methods of arrays, states, other
    encodings, lengths, and shapes that the bytes do not fill; storages beyond their records."""

    def say(expression):
        value = eval(expression, globals() | {"path": canary})  # noqa: S307 - see beside this file
        files = [value]
        if not isinstance(value, bytes):
            files = [pickle.dumps([1, value], protocol) for protocol in (0, 5)]
        said = {refused(written(data)) for data in files}
        return " or ".join(sorted(said))

    def refused(path):
        with pytest.raises(StoreError) as caught:
            read_content(path, kind, 10**9)
        message = str(caught.value).replace(f"{__name__}.", "")
        if kind == "torch":  # whose files are not as large in every version
            message = message.replace(str(path.stat().st_size), "SIZE")
        assert message.isascii()
        assert message.isprintable()
        return f"{caught.type.__name__}: {message}"

    copyreg.add_extension("posix", "getpid", 1)
    try:
        golden_lines(f"refused_{kind}.txt", say)
    finally:
        copyreg.remove_extension("posix", "getpid", 1)
    assert np.dtype("f4").str == "<f4"
    assert OrderedDict(a=1).items()


ANNOUNCED = {
    "BINBYTES": b"\x80\x03B" + struct.pack("<I", 2**32 - 1),
    "BINUNICODE": b"\x80\x02X" + struct.pack("<I", 2**32 - 1),
    "BINSTRING": b"\x80\x02T" + struct.pack("<I", 2**31 - 1),
    "BINBYTES8": b"\x80\x04\x8e" + struct.pack("<Q", 2**60),
    "BINBYTES8 lazily": b"\x80\x04\x8e" + struct.pack("<Q", 2**33),
    "BINUNICODE8": b"\x80\x04\x8d" + struct.pack("<Q", 2**60),
    "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 2**63),
    "FRAME": b"\x80\x04\x95" + struct.pack("<Q", 2**60),
    "LONG4": b"\x80\x02\x8b" + struct.pack("<I", 2**31 - 1),
    "LONG_BINPUT": b"\x80\x02Nr" + struct.pack("<I", 2**31 - 1),
    "PUT": b"Np2147483647\n",
}


@pytest.mark.parametrize("compress", [False, True])
def test_huge_announcements(written, compress):
    """A size that the file cannot hold is refused with its number before it is allocated."""
    numbers = {2**60, 2**33, 2**63, 2**32 - 1, 2**31 - 1}
    for opcode, announced in ANNOUNCED.items():
        n = 2 * announced.startswith(b"\x80")  # bytes of the protocol
        for filler in (b"", b"(" * (1 << 14)):
            data = announced[:n] + filler + announced[n:] + b"N" * 9 + b"."
            message = refusal(written(gzip.compress(data) if compress else data), StoreError)
            assert any(str(n) in message for n in numbers), opcode


def test_text_is_text(written):
    """Code points that Python does not have are an error, in arrays and scalars of either byte
    order."""
    for dtype in ("<U1", ">U1"):
        for value in (np.array(["a"], dtype), np.array(["a"], dtype)[0]):
            for protocol in (4, 5):
                good = pickle.dumps(value, protocol)
                data = good.replace(value.tobytes(), b"\xff" * 4)
                assert data != good
                assert "1114111" in refusal(written(data), CorruptError)
    one = b"\x96\x01" + bytes(7)
    boolean = pickle.dumps(np.array([True]), 5).replace(one + b"\x01", one + b"\x05")
    assert "up to 1" in refusal(written(boolean), CorruptError)


def test_gzip_bomb(written):
    """Decompressed bytes are counted as they come; the message names the cap and how to raise
    it."""
    data = pickle.dumps(bytes(1 << 22), 4)
    path = written(gzip.compress(data))
    assert path.stat().st_size < 1 << 15
    message = refusal(path, max_bytes=1 << 20)
    assert str(1 << 20) in message
    assert "max_bytes" in message
    assert len(read_pickle(path, max_bytes=len(data))) == 1 << 22
    many = written(gzip.compress(b"]" + b"N0" * (1 << 20) + b"."))
    refusal(many, max_bytes=1 << 20)
    assert "do not trust" in refusal(many)  # a higher limit would change nothing
    refusal(written(gzip.compress(b"V" + b"a" * (1 << 22) + b"\n.")), max_bytes=1 << 20)


STATES = np.arange(6, dtype="f2").reshape(2, 3)
SAMPLE = {"states": [STATES], "answer": "x", "text": ["a", "b"], "n": 3}


def admitted(value):
    """Whether a value is inert all the way down."""
    if isinstance(value, Graph):
        value = value.attributes
    if isinstance(value, dict):
        return all(map(admitted, [*value, *value.values()]))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(admitted, value))
    numbers = bool | int | float | complex | np.ndarray | np.generic
    return isinstance(value, None | str | bytes | bytearray | numbers)


def flipped(data, rng):
    data = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def graphs():
    from torch_geometric.data import Data

    return [
        Data(
            x=torch.arange(2.0 * n).reshape(n, 2).half(),
            edge_index=torch.tril_indices(n, n).flip(0),
            edge_attr=torch.rand(n * (n + 1) // 2).half(),
            num_nodes=n,
            num_possible_edges=n * (n + 1) // 2,
            filter_ratio=0.5,
        )
        for n in (1, 3)
    ]


FORMS = pytest.mark.parametrize("is_zip", [True, False])


def save(value, path, is_zip=True):
    torch.save(value, path, _use_new_zipfile_serialization=is_zip)
    return path


@FORMS
def test_tensors_round_trip(tmp_path, is_zip):
    """Tensors of every dtype, views, empty ones and shared storages come back from both forms."""
    base = torch.arange(24.0)
    value = {"labels": torch.ones(3), "question_ids": ["a", "b"], "blob": b"\xff\x00"}
    value["view"] = base[4:10:2]
    value["expanded"] = torch.ones(1).expand(5)
    value["more"] = [OrderedDict(a=base.reshape(4, 6).T), (torch.zeros(0, 3), torch.tensor(True))]
    value["dtypes"] = [
        torch.ones(2, dtype=d)
        for d in (torch.bfloat16, torch.half, torch.int8, torch.long, torch.cfloat)
    ]
    whole = torch.arange(6)
    value["unsigned"] = [whole.to(d)[1:4] for d in (torch.uint16, torch.uint32, torch.uint64)]
    value["none"] = torch.zeros(0, dtype=torch.uint16)
    path = save(value, tmp_path / "file.pt", is_zip)
    assert_same(read_torch(path), value)


@FORMS
def test_graphs_round_trip(tmp_path, is_zip):
    """Lists of graphs come back with their attributes, and nothing of torch is asked for them."""
    value = {"graphs": [graphs()], "labels": torch.ones(1), "question_ids": ["a"]}
    path = save(value, tmp_path / "file.pt", is_zip)
    got = read_torch(path)
    for a, b in zip(got["graphs"][0], value["graphs"][0], strict=True):
        assert a.attributes.keys() == b.to_dict().keys()
        for key, expected in b.to_dict().items():
            assert_same(a[key], expected)


def test_torch_need_not_be_there(tmp_path):
    """Nor torch_geometric: the files of both forms give arrays without them."""
    for is_zip in (True, False):
        save({"graphs": graphs(), "x": torch.ones(3)}, tmp_path / f"{is_zip}.pt", is_zip)
    code = (
        "import sys; sys.modules.update(torch=None, torch_geometric=None); "
        "from store.importers.legacy.source import LegacySource; "
        "from pathlib import Path; from store.importers.pickles import read_content; "
        f"files = sorted(Path({str(tmp_path)!r}).iterdir()); "
        "found = [read_content(file, 'torch') for file in files]; "
        "print(*((one['graphs'][1]['x'].shape, one['x'].tolist()) for one in found))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{' '.join(2 * ['((3, 2), [1.0, 1.0, 1.0])'])}\n"


@FORMS
def test_views_of_a_few_bytes_count_with_all_that_they_show(tmp_path, is_zip):
    """One number, shown a million times by each of many tensors, would fill the memory once it is
    copied."""
    value = [torch.ones(1).expand(1000, 1000) for _ in range(5)]
    path = save({"x": value}, tmp_path / "file.pt", is_zip)
    message = refusal(path, read=read_torch, max_bytes=16_000_000)
    assert "expected at most 16000000 bytes, found arrays of 20000000 bytes" in message
    assert len(read_torch(path, max_bytes=20_000_000)["x"]) == 5
    refusal(save(torch.ones(999), path, is_zip), read=read_torch, max_bytes=1000)


MORE = [{1}, 1j, bytearray(b"x"), OrderedDict(a=1), np.float32(1)]
WHOLE = {
    **{f"pickle {n}": lambda n=n: pickle.dumps([*SAMPLE.items(), *MORE], n) for n in range(6)},
    "pickle in gzip": lambda: gzip.compress(pickle.dumps(SAMPLE, 4)),
    "torch, zip": lambda: saved({"labels": torch.ones(3), "graphs": graphs()}),
    "torch, older": lambda: saved({"labels": torch.ones(3), "graphs": graphs()}, is_zip=False),
}


@pytest.mark.parametrize("name", WHOLE)
def test_damaged_files(written, name):
    """A file that ends early is never taken for a whole one; one of other bytes gives an error of
    ours or data, and nothing else."""
    kind = "torch" if name.startswith("torch") else "pickle"
    data = WHOLE[name]()
    first, step = (20, len(data) // 40) if kind == "torch" else (2, 1)
    for n in [*range(first, len(data), step), len(data) - 1]:
        message = refusal(written(data[:n]), CorruptError, partial(read_content, kind=kind))
        assert kind == "torch" or "whole pickle" in message
    rng = random.Random(name)  # noqa: S311 - not for secrets
    for _ in range(150):
        with contextlib.suppress(StoreError):
            assert admitted(read_content(written(flipped(data, rng)), kind))
