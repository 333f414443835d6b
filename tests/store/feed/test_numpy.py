"""`arrays="numpy"`: the same batches, of NumPy arrays."""

import ml_dtypes
import numpy as np
import pytest
import torch

from store import Batch, Column, Schema, StoreWriter, TraceLoader, TraceStore

COLUMNS = {
    "states": Column("bfloat16", (2, 3), axis="tokens"),
    "logprob": Column("float32", axis="tokens"),
    "tokens": Column("int32", axis="tokens"),
    "packed": Column("float16", (4,), codec="zstd:1"),
    "half": Column("bfloat16"),
    "label": Column("int8"),
    "answer": Column("utf8"),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("numpy") / "s.zarr"
    draw = np.random.default_rng(0)
    with StoreWriter.create(path, Schema(COLUMNS)) as writer:
        for i in range(50):
            n = int(draw.integers(0, 6))
            row = {
                "states": draw.normal(size=(n, 2, 3)).astype(ml_dtypes.bfloat16),
                "logprob": draw.normal(size=n).astype(np.float32),
                "tokens": draw.integers(0, 9, n),
                "packed": draw.normal(size=4).astype(np.float16),
                "half": ml_dtypes.bfloat16(i / 2),
                "label": i % 2,
                "answer": f"answer {i}",
            }
            writer.append(f"t{i}", row)
    return path


def as_numpy(values):
    """A tensor as the array that is expected in its place."""
    if values.dtype == torch.bfloat16:
        return values.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return values.numpy()


def assert_same(found, expected):
    """A batch of arrays is one of tensors, dtypes and all."""
    assert (found.arrays, expected.arrays) == ("numpy", "torch")
    assert list(found.columns) == list(expected.columns)
    pairs = [(found.rows, expected.rows)]
    for name, column in COLUMNS.items():
        if column.is_text:
            assert found.texts(name) == expected.texts(name)
        elif column.axis:
            pairs += zip(found.ragged(name), expected.ragged(name), strict=True)
            pairs.append((found.ragged(name).lengths, expected.ragged(name).lengths))
            pairs += zip(found.padded(name, -1), expected.padded(name, -1), strict=True)
        else:
            pairs.append((found.fixed(name), expected.fixed(name)))
    for array, tensor in pairs:
        assert type(array) is np.ndarray
        assert array.dtype == as_numpy(tensor).dtype
        np.testing.assert_array_equal(array, as_numpy(tensor))
    assert repr(found) == repr(expected)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_a_loader_gives_the_same_rows(path, batch_size, num_workers):
    """One by one, and cut from windows: the rows here are small."""
    given = {"batch_size": batch_size, "shuffle": True, "num_workers": num_workers}
    found = TraceLoader(path, arrays="numpy", **given)
    expected = TraceLoader(path, **given)
    for arrays, tensors in zip(found, expected, strict=True):
        assert_same(arrays, tensors)
    assert found.state_dict() == expected.state_dict()


def test_a_read_gives_the_same_rows(path):
    store = TraceStore.open(path)
    select = {"states": {"tokens": slice(1, 3)}}
    rows = [5, -1, 5, 0]
    assert_same(store.read(rows, select=select, arrays="numpy"), store.read(rows, select=select))
    assert_same(store.read([], arrays="numpy"), store.read([]))


@pytest.mark.parametrize("n", [1, 9])
def test_rows_of_a_batch_are_packed_again(path, n):
    batch = TraceStore.open(path).read(range(n), arrays="numpy")
    again = Batch.from_rows(list(batch))
    assert_same(again, TraceStore.open(path).read(range(n)))


def test_what_needs_tensors_says_so(path):
    batch = TraceStore.open(path).read([0], arrays="numpy")
    for move in (batch.pin_memory, lambda: batch.to("cpu")):
        with pytest.raises(TypeError, match='has no device: read with arrays="torch"'):
            move()
    with pytest.raises(ValueError, match='arrays: expected "torch" or "numpy", found \'jax\''):
        TraceLoader(path, arrays="jax")
    with pytest.raises(ValueError, match='expected False with arrays="numpy"'):
        TraceLoader(path, arrays="numpy", pin_memory=True)
