"""Tests of reading untrusted files: data comes back whole, and nothing that a file asks for is
done."""

import codecs
import contextlib
import copyreg
import gzip
import operator
import os
import pickle
import random
import re
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from functools import partial
from operator import attrgetter
from pathlib import Path

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16

from store.errors import CorruptError, RefusedError, StoreError
from store.importers.pickles import read_content
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
    """A value may be 100 deep; 100,000 cost no recursion, and are refused."""
    for opening in (b"]", b")"):
        value = read_pickle(written(b"\x80\x04" + opening + b"\x85" * 100 + b"."))
        for _ in range(100):
            (value,) = value
        assert "deep" in refusal(written(b"\x80\x04" + opening + b"\x85" * 100_000 + b"."))


def test_free_memory_is_a_limit(written, monkeypatch):
    """A pickle that it does not hold is not read; nothing is said against a file of that size."""
    memory = MemoryLimits(10**9, 10**6, 10**6)
    monkeypatch.setattr("store.importers.pickles.read_memory", lambda: memory)
    data = pickle.dumps(bytes(2 * 10**6))
    path = written(data)
    with pytest.raises(MemoryError, match=f"{path}: it does not fit into the 1000000 bytes of"):
        read_pickle(path)
    assert "at most 1000000 bytes" in refusal(written(gzip.compress(data)))


HOSTILE = {  # the last part of the name: the protocols spell some modules differently
    "system": lambda path: Calls(os.system, f"touch {path}"),
    "eval": lambda path: Calls(eval, f"open({str(path)!r}, 'w')"),
    "exec": lambda path: Calls(exec, f"open({str(path)!r}, 'w')"),
    "open": lambda path: Calls(open, str(path), "w"),
    "getattr": lambda path: Calls(getattr, Calls(__import__, "os"), "system"),
    "__import__": lambda path: Calls(__import__, "os"),
    "type": lambda path: type,
    "attrgetter": lambda path: Calls(operator.attrgetter, "system"),
    "partial": lambda path: partial(os.system, f"touch {path}"),
    "Popen": lambda path: Calls(subprocess.Popen, ["touch", str(path)]),
    "loads": lambda path: Calls(pickle.loads, pickle.dumps(Calls(os.system, f"touch {path}"))),
    "PosixPath": lambda path: path,
    "decode": lambda path: Calls(codecs.decode, "a", "rot13"),
    "load": lambda path: Calls(np.load, str(path)),
    "_reconstructor": lambda path: Calls(copyreg._reconstructor, str, object, None),
    "Text": lambda path: Text("a"),
    "float32": lambda path: np.float32,
}


class Text(str):
    """A subclass is not a str."""

    __slots__ = ()


@pytest.mark.parametrize("protocol", [0, 5])
@pytest.mark.parametrize("asked", HOSTILE)
def test_names_outside_the_table(written, canary, asked, protocol):
    """Any other name is refused, and said."""
    message = refusal(written(pickle.dumps([1, HOSTILE[asked](canary)], protocol)))
    named = "_reconstructor" if (asked, protocol) == ("Text", 0) else asked
    assert re.search(rf"asks for [\w.]+\.{named},", message)


@pytest.mark.parametrize(
    "dtype, hidden",
    [(object, "O8"), ([("a", object)], "V8"), ("M8[s]", "M8"), ([("a", "f4")], "V4")],
)
def test_arrays_of_more_than_numbers(written, canary, dtype, hidden):
    """A call hidden in an array of objects is not reached; neither fields nor dates are read."""
    array = np.zeros(1, dtype)
    call = Calls(os.system, f"touch {canary}")
    if array.dtype.hasobject:
        array[0] = call if dtype is object else (call,)
    for protocol in (2, 4, 5):
        message = refusal(written(pickle.dumps([array], protocol)))
        assert hidden in message or "posix.system" in message


def stack_global(module, name):
    texts = [b"\x8c" + bytes([len(text)]) + text for text in (module, name)]
    return b"\x80\x04" + b"".join(texts) + b"\x93"


@pytest.mark.parametrize(
    "module, name",
    [
        (b"numpy", b"core.multiarray.os.system"),
        (b"numpy", b"ndarray.__class__"),
        (b"builtins", b"set.__init__.__globals__"),
        (b"collections", b"_sys.modules"),
        (b"torch.storage", b"_load_from_bytes.__globals__"),
        (b"os\nsystem", b"\x1b[2J"),
        (b"", b""),
    ],
)
def test_dotted_names(written, module, name):
    """A name is looked up whole: a dot leads nowhere, and control characters do not reach the
    terminal."""
    message = refusal(written(stack_global(module, name) + b"."))
    assert "\x1b" not in message


@pytest.mark.parametrize(
    "data, said",
    [
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02\x83\x01\x00.", "EXT2"),
        (b"\x80\x02\x84\x01\x00\x00\x00.", "EXT4"),
        (b"\x80\x02K\x01Q.", "BINPERSID"),
        (b"Pid\n.", "PERSID"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (b"\x80\x05]\x98.", "READONLY_BUFFER"),
    ],
)
def test_opcodes_that_reach_outside(written, data, said):
    """The extension registry, persistent ids and out-of-band buffers are refused, in a registered
    case too."""
    copyreg.add_extension("posix", "system", 1)
    try:
        assert said in refusal(written(data))
    finally:
        copyreg.remove_extension("posix", "system", 1)


SET_STATE = {
    "a call's defaults": stack_global(b"numpy", b"dtype") + b"N}\x8c\x0c__defaults__)s\x86b.",
    "a class's method": stack_global(b"collections", b"OrderedDict") + b"}\x8c\x05itemsK\x01sb.",
    "a dict's method": stack_global(b"collections", b"OrderedDict") + b")R}\x8c\x05itemsK\x01sb.",
    "an array twice": pickle.dumps(np.zeros(2), 4)[:-1] + b"}\x8c\x05shapeK\x01sb.",
    "a new object": stack_global(b"numpy", b"ndarray") + b"K\x09\x85\x85\x81.",
    "a call of ndarray": stack_global(b"numpy", b"ndarray") + b"K\x09\x85\x85R.",
    "another encoding": stack_global(b"_codecs", b"encode") + b"\x8c\x01a\x8c\x05idna \x86R.",
    "bytes by a codec": stack_global(b"builtins", b"bytearray") + b"\x8c\x01a\x8c\x05punyc\x86R.",
    "the bare call": stack_global(b"builtins", b"set") + b".",
    "a call inside": b"]" + stack_global(b"builtins", b"set")[2:] + b"\x85a.",
    "a call as a key": b"}" + stack_global(b"builtins", b"set")[2:] + b"K\x01s.",
}


ARRAY = pickle.dumps(np.zeros(2), 4)[:-1]
FILLED = {
    "append to an array": ARRAY + b"K\x01a.",
    "extend an array": ARRAY + b"(K\x01e.",
    "an item of an array": ARRAY + b"K\x00K\x01s.",
    "items of an array": ARRAY + b"(K\x00K\x01u.",
    "add to an array": ARRAY + b"(K\x01\x90.",
    "add to a tensor": pickle.dumps(torch.ones(2), 4)[:-1] + b"(K\x01\x90.",
    "add to a list": b"\x80\x04](K\x01\x90.",
    "an object of Python 2": b"(cnumpy\nndarray\nK\x09o.",
    "a named object of Python 2": b"(K\x09inumpy\nndarray\n.",
    "an object with keywords": stack_global(b"numpy", b"ndarray") + b")}\x92.",
}


@pytest.mark.parametrize("trick", FILLED | SET_STATE)
def test_only_containers_are_filled_and_no_state_is_set_but_an_arrays(written, trick):
    """Arrays have methods of the same names as containers: none is called. What a pickle may call,
    it may neither change nor keep."""
    refusal(written((FILLED | SET_STATE)[trick]), RefusedError if trick in FILLED else StoreError)
    assert np.dtype("f4").str == "<f4"
    assert OrderedDict(a=1).items()


def test_dtype_keeps_to_itself(written):
    """A dtype's state is its byte order: flags, sizes and fields from a pickle do not reach
    NumPy."""
    state = b"\x8c\x02f4\x89\x88\x87R(K\x03\x8c\x01<)}NJ\xff\xff\xff\xffK\x04K\x3ftb."
    data = stack_global(b"numpy", b"dtype") + state
    assert "dtype with fields" in refusal(written(data))


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


@pytest.mark.parametrize("shape", [(4,), (2,), (10**12,), (-3,), (2**62, 2**62), (3, 0), ()])
def test_shape_and_bytes_agree(written, shape):
    """An array of more or fewer bytes than its shape says is an error with the numbers, before any
    is allocated."""
    assert_same(read_pickle(written(array_pickle((3,), bytes(12)))), [np.zeros(3, "f4")])
    message = refusal(written(array_pickle(shape, bytes(12))), CorruptError)
    assert "found 12" in message or "-3" in message


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
@pytest.mark.parametrize("opcode", ANNOUNCED)
def test_huge_announcements(written, opcode, compress):
    """A size that the file cannot hold is refused with its number before it is allocated."""
    numbers = {2**60, 2**33, 2**63, 2**32 - 1, 2**31 - 1}
    announced = ANNOUNCED[opcode]
    n = 2 * announced.startswith(b"\x80")  # bytes of the protocol
    for filler in (b"", b"(" * (1 << 14)):
        data = announced[:n] + filler + announced[n:] + b"N" * 9 + b"."
        message = refusal(written(gzip.compress(data) if compress else data), StoreError)
        assert any(str(n) in message for n in numbers)


def test_calls_with_a_length(written):
    """A number is no length: bytes and bytearray are made of bytes."""
    number = b"\x8a\x06" + (10**12).to_bytes(6, "little")
    for kind in (b"bytes", b"bytearray"):
        data = stack_global(b"builtins", kind) + number + b"\x85R."
        assert "1000000000000" in refusal(written(data))


def test_copies_are_counted(written):
    """One string copied again and again is refused before the memory is full."""
    text = b"B" + struct.pack("<I", 10**6) + bytes(10**6)
    data = stack_global(b"builtins", b"bytearray") + b"q\x00" + text + b"q\x01"
    assert "copy" in refusal(written(data + b"h\x00h\x01\x85R" * 10_000 + b"."))


def tenfold(value, n):
    for _ in range(n):
        value = [value] * 10
    return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([np.ones(10_000)] * 100_000, "found arrays of 8000000000 bytes"),
        (["x" * 1000] * 30_000, "items and characters by references"),
        (tenfold(1.0, 30), "items and characters by references"),
    ],
    ids=["arrays", "texts", "lists"],
)
def test_what_is_shown_again_and_again_is_refused(written, value, said):
    """It would fill the memory of whoever copies it."""
    assert said in refusal(written(pickle.dumps([{"h": value}])), max_bytes=10**9)


def test_endless_values(written):
    """A value that would be endless when shown is not shown."""
    # three times the one before
    data = stack_global(b"numpy", b"dtype") + b"K\x01" + b"22\x87" * 60
    assert "tuple" in refusal(written(data + b"\x85R."))


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


@pytest.mark.parametrize("protocol, compress", [(0, False), (2, False), (5, False), (4, True)])
def test_truncated_anywhere(written, protocol, compress):
    """A file that ends early is never taken for a whole one."""
    data = pickle.dumps(SAMPLE, protocol)
    data = gzip.compress(data) if compress else data
    for n in range(2 if compress else 1, len(data)):
        assert "whole pickle" in refusal(written(data[:n]), CorruptError)


def test_more_than_one_pickle(written):
    """Bytes after the end are not lost silently."""
    assert "more bytes" in refusal(written(pickle.dumps(1) + pickle.dumps(2)), CorruptError)


def test_neither(written):
    """Text and nothing are not taken for pickles."""
    for data in (b"", b"question_id,score\n", b"<html>", b"\x89PNG"):
        refusal(written(data), CorruptError)
    with pytest.raises(FileNotFoundError):
        read_pickle(Path("nowhere.pkl"))


def admitted(value):
    """Whether a value is inert all the way down."""
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


@pytest.mark.parametrize("protocol", range(6))
def test_random_damage(written, protocol):
    """A damaged file gives an error of ours or data, and nothing else."""
    rng = random.Random(protocol)  # noqa: S311 - not for secrets
    more = [{1}, 1j, bytearray(b"x"), OrderedDict(a=1), np.float32(1)]
    data = pickle.dumps([*SAMPLE.items(), *more], protocol)
    for _ in range(150):
        damaged = flipped(data, rng)
        with contextlib.suppress(StoreError):
            assert admitted(read_pickle(written(damaged)))


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


@FORMS
def test_torch_need_not_be_there(tmp_path, is_zip):
    """Nor torch_geometric: the files give arrays without them."""
    path = save({"graphs": graphs(), "x": torch.ones(3)}, tmp_path / "file.pt", is_zip)
    code = (
        "import sys; sys.modules.update(torch=None, torch_geometric=None); "
        "from store.importers.legacy.source import LegacySource; "
        "from pathlib import Path; from store.importers.pickles import read_content; "
        f"found = read_content(Path({str(path)!r}), 'torch'); "
        "print(found['graphs'][1]['x'].shape, found['x'].tolist())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "(3, 2) [1.0, 1.0, 1.0]\n"


@FORMS
def test_views_of_a_few_bytes_count_with_all_that_they_show(tmp_path, is_zip):
    """One number, shown a million times by each of many tensors, would fill the memory once it is
    copied."""
    value = [torch.ones(1).expand(1000, 1000) for _ in range(5)]
    path = save({"x": value}, tmp_path / "file.pt", is_zip)
    message = refusal(path, read=read_torch, max_bytes=16_000_000)
    assert "expected at most 16000000 bytes, found arrays of 20000000 bytes" in message
    assert len(read_torch(path, max_bytes=20_000_000)["x"]) == 5


@FORMS
def test_hostile_torch_files(tmp_path, canary, is_zip):
    """A torch file that asks for more is refused, and what it asked for is named."""
    names = {os.system: "posix.system", bytearray: "bytearray", torch.nn.Linear: "Linear"}
    for function, name in names.items():
        value = {"x": torch.ones(1), "y": Calls(function, f"touch {canary}")}
        path = save(value, tmp_path / "file.pt", is_zip)
        assert name in refusal(path, read=read_torch)


def repacked(path, change, *arguments, compression=zipfile.ZIP_STORED):
    """Rewrite the records of a torch file."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in change(records, *arguments).items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("name", [b"_mapping", b"_store"])
def test_graphs_without_attributes_are_refused(tmp_path, name):
    """A state that is no graph's is damage."""
    path = save({"graph": graphs()[0]}, tmp_path / "file.pt")
    repacked(path, lambda r: {k: v.replace(name, name[::-1]) for k, v in r.items()})
    assert "the attributes of a graph" in refusal(path, CorruptError, read_torch)


def test_storages_end_where_their_records_do(tmp_path):
    """A storage or tensor that claims more than its bytes is refused: torch would read what
    follows."""
    for old, new in ((b"K\x07t", b"K\x77t"), (b"K\x07\x85", b"K\x77\x85")):
        path = save(torch.ones(7), tmp_path / "file.pt")
        repacked(path, lambda r, *pair: {k: v.replace(*pair) for k, v in r.items()}, old, new)
        message = refusal(path, CorruptError, read_torch)
        assert "119" in message or "476" in message


def without_data(records):
    return {name: data for name, data in records.items() if "/data/0" not in name}


ODD_ZIPS = {  # what is made of the records, and the error
    "a compressed record": (dict, RefusedError),
    "a missing record": (without_data, CorruptError),
    "a doubled record": (lambda r: r | {"file/DATA/0": b"x"}, CorruptError),
    "another zip file": (lambda r: {"file/readme": b"x"}, CorruptError),
    "another byte order": (lambda r: r | {"file/byteorder": b"big"}, RefusedError),
}


@pytest.mark.parametrize("name", ODD_ZIPS)
def test_odd_zip_files(tmp_path, name):
    """Each gives one line; tensors of the other byte order are not misread."""
    change, error = ODD_ZIPS[name]
    path = save(torch.ones(999), tmp_path / "file.pt")
    is_compressed = name == "a compressed record"
    method = zipfile.ZIP_DEFLATED if is_compressed else zipfile.ZIP_STORED
    message = refusal(repacked(path, change, compression=method), error, read_torch)
    assert name.split()[-1] in message or error is CorruptError


def test_the_bytes_of_tensors_are_limited(tmp_path):
    path = save(torch.ones(999), tmp_path / "file.pt")
    refusal(path, RefusedError, read_torch, max_bytes=1000)


def test_records_begin_where_the_file_says(tmp_path):
    """A record whose header points beyond the file is an error: nothing beyond the file is read."""
    path = save(torch.ones(7), tmp_path / "file.pt")
    data = bytearray(path.read_bytes())
    start = data.index(b"file/data/0")
    data[start - 2 : start] = b"\xff\xff"  # the length of the extra field
    path.write_bytes(data)
    refusal(path, StoreError, read_torch)


@FORMS
def test_a_storage_alone(tmp_path, is_zip):
    """A storage is no data."""
    path = save({"a": 1}, tmp_path / "file.pt", is_zip)
    torch.save(torch.ones(3).untyped_storage(), path, _use_new_zipfile_serialization=is_zip)
    refusal(path, StoreError, read_torch)


def test_storages_that_the_older_form_does_not_hold(tmp_path):
    """A tensor over memory that the file does not fill is refused."""
    path = save(torch.ones(7), tmp_path / "file.pt", is_zip=False)
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"\x80\x02]")] + b"\x80\x02].")
    assert "keys of all storages" in refusal(path, CorruptError, read_torch)


def test_legacy_announcements(tmp_path):
    """The older form allocates what it announces: more than the file holds is refused before."""
    path = save(torch.ones(7), tmp_path / "file.pt", is_zip=False)
    number = b"\x8a\x06" + (10**12).to_bytes(6, "little")
    path.write_bytes(path.read_bytes().replace(b"K\x07N", number + b"N"))
    assert str(4 * 10**12) in refusal(path, CorruptError, read_torch)


@FORMS
def test_truncated_torch_files(tmp_path, is_zip):
    """A torch file that ends early is an error, wherever it ends."""
    path = save({"labels": torch.ones(50), "graphs": graphs()}, tmp_path / "file.pt", is_zip)
    data = path.read_bytes()
    for n in [*range(20, len(data), len(data) // 40), len(data) - 1]:
        path.write_bytes(data[:n])
        refusal(path, CorruptError, read_torch)


@FORMS
def test_random_damage_of_torch_files(tmp_path, is_zip):
    """A damaged torch file gives an error of ours or something that reads."""
    rng = random.Random(int(is_zip))  # noqa: S311 - not for secrets
    path = tmp_path / "file.pt"
    data = save({"labels": torch.ones(3), "ids": ["a"]}, path, is_zip).read_bytes()
    for _ in range(150):
        path.write_bytes(flipped(data, rng))
        with contextlib.suppress(StoreError):
            assert admitted(read_torch(path))
