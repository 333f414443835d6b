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


def test_headers_that_lie_are_refused(tmp_path, golden_lines):
    """Before anything of the data is read: entries, texts, and lengths that the file does not have
    or that are beyond the format's limit."""

    def say(header):
        match header:
            case dict():
                data = with_header({name: ENTRY | entry for name, entry in header.items()}, DATA)
            case list():
                data = with_header({"a": header[0]}, DATA)
            case str():
                text = header.replace("DEEP", "[" * 100_000).encode("latin1")
                data = len(text).to_bytes(8, "little") + text
            case _:
                data = header.to_bytes(8, "little") + b"{}"
        with pytest.raises((CorruptError, SchemaError)) as caught:
            read(tmp_path, data)
        said = str(caught.value)
        return said.partition(", found")[0] if isinstance(header, str) else said[:90]

    golden_lines("wrong_headers.txt", say)
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
