import numpy as np
import pytest
import torch
from array_files import safetensors_bytes, with_header
from hypothesis import given
from hypothesis import strategies as st

from store.errors import CorruptError, SchemaError, StoreError
from store.importers.arrays.array_files import open_safetensors

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DATA = np.arange(2, dtype="<f4").tobytes()


def read(tmp_path, data):
    path = tmp_path / "t.safetensors"
    path.write_bytes(data)
    return open_safetensors(path)


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "bfloat16", "int8", "int64", "uint8", "bool"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (3, 2, 5)])
def test_files_of_the_library_are_read(tmp_path, dtype, shape):
    """Bit for bit, every dtype and awkward shape."""
    library = pytest.importorskip("safetensors.torch")
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(getattr(torch, dtype))
    other = torch.ones(3, dtype=torch.int32)
    path = tmp_path / "t.safetensors"
    library.save_file({"a": tensor, "b": other}, path, {"note": "x"})
    file = open_safetensors(path)
    assert set(file.keys) == {"a", "b"}
    assert (file.keys["a"].dtype, file.keys["a"].shape) == (dtype, shape)
    found = np.array(file.read("a"))
    assert found.dtype.name == dtype
    bits = tensor.view(torch.int16).numpy() if dtype == "bfloat16" else tensor.numpy()
    assert found.tobytes() == bits.tobytes()
    assert file.read("b").tolist() == [1, 1, 1]


def test_a_file_cut_anywhere_is_refused(tmp_path):
    """At every byte: none of it is taken for a shorter file."""
    whole = safetensors_bytes({"a": np.arange(6, dtype="<f4"), "b": np.ones((2, 2), "<f2")})
    for n_bytes in range(len(whole)):
        with pytest.raises(CorruptError):
            read(tmp_path, whole[:n_bytes])
    with pytest.raises(CorruptError):
        read(tmp_path, whole + b"\0")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**ENTRY, "dtype": "F8_E4M3"}, "expected one of BOOL"),
        ({**ENTRY, "dtype": ["F32"]}, "expected one of BOOL"),
        ({**ENTRY, "shape": [-2]}, "expected a shape"),
        ({**ENTRY, "shape": [True, 2]}, "expected a shape"),
        ({**ENTRY, "shape": [1] * 40}, "expected a shape"),
        ({**ENTRY, "shape": [2**61, 2**61]}, "expected .* bytes"),
        ({**ENTRY, "data_offsets": [-8, 0]}, "expected two offsets"),
        ({**ENTRY, "data_offsets": [8, 0]}, "expected 8 bytes"),
        ({**ENTRY, "data_offsets": [0, 8, 16]}, "expected two offsets"),
        ({**ENTRY, "data_offsets": [0.0, 8.0]}, "expected two offsets"),
        ({**ENTRY, "data_offsets": [8, 16]}, "overlap, or there is a gap"),
        ({"dtype": "F32"}, "expected dtype, shape, data_offsets"),
        ("F32", "expected dtype, shape, data_offsets"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path, entry, message):
    """Before anything of the data is read."""
    with pytest.raises((CorruptError, SchemaError), match=message):
        read(tmp_path, with_header({"a": entry}, DATA))


def test_overlapping_tensors_are_refused(tmp_path):
    with pytest.raises(CorruptError, match="overlap"):
        read(tmp_path, with_header({"a": ENTRY, "b": ENTRY}, DATA))


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"\xff\xfe", b'{"a": 1, "a": 2}', b"[" * 100_000, b"null"]
)
def test_a_header_that_is_no_object_is_refused(tmp_path, text):
    with pytest.raises(CorruptError, match="expected a header"):
        read(tmp_path, len(text).to_bytes(8, "little") + text)


def test_a_huge_header_is_refused_before_it_is_read(tmp_path):
    """A length that the file does not have, and one beyond the format's limit."""
    for length in (2**63, 10**9, 2**64 - 1):
        with pytest.raises(CorruptError, match="expected a header of at most"):
            read(tmp_path, length.to_bytes(8, "little") + b"{}")
    path = tmp_path / "sparse.safetensors"
    with path.open("wb") as file:
        file.write((200_000_000).to_bytes(8, "little"))
        file.truncate(300_000_000)
    with pytest.raises(CorruptError, match="at most 100000000 bytes"):
        open_safetensors(path)


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
def test_damage_is_an_error_of_ours_or_changes_values_only(tmp_path_factory, tail, place, byte):
    """Whatever the bytes are."""
    data = bytearray(safetensors_bytes({"a": np.arange(6, dtype="<f4")}))
    data[place % len(data)] = byte
    path = tmp_path_factory.mktemp("fuzz") / "t.safetensors"
    path.write_bytes(bytes(data) + tail)
    try:
        file = open_safetensors(path)
        for key in file.keys:
            file.read(key)
    except StoreError:
        pass
