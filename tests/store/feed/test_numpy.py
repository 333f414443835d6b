"""`arrays="numpy"`: the same batches, of NumPy arrays."""

import ml_dtypes
import numpy as np
import pytest
import torch
from oracle import SCHEMA

from store import Batch, TraceLoader, TraceStore


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
    for name, column in SCHEMA.columns.items():
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


@pytest.mark.parametrize("n", [0, 1, 9])
def test_a_batch_and_its_rows_packed_again_are_the_same(store_path, n):
    """Read at once, in parts of rows, or from a loader."""
    store = TraceStore.open(store_path)
    rows = [5, -1, 5, 0, 7, 8, 9, 1, 2][:n]
    select = {"hidden_states": {"tokens": slice(1, 3)}}
    for given in ({}, {"select": select}):
        batch = store.read(rows, arrays="numpy", **given)
        assert_same(batch, store.read(rows, **given))
        if n:
            assert_same(
                Batch.from_rows(list(batch)), Batch.from_rows(list(store.read(rows, **given)))
            )
    pairs = (TraceLoader(store, rows=rows, arrays=arrays) for arrays in ("numpy", "torch"))
    for found, expected in zip(*pairs, strict=True):
        assert_same(found, expected)


def test_what_needs_tensors_says_so(store_path):
    batch = TraceStore.open(store_path).read([0], arrays="numpy")
    for move in (batch.pin_memory, lambda: batch.to("cpu")):
        with pytest.raises(TypeError, match='has no device: read with arrays="torch"'):
            move()
