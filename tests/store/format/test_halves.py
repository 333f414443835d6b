"""Numbers of 16 bits as float32, against NumPy and torch."""

import ml_dtypes
import numpy as np
import pytest
import torch

from store.format import halves
from store.format.halves import to_float32

EVERY = np.arange(1 << 16).astype(np.uint16)


@pytest.mark.parametrize("block_items", [1 << 10, 1 << 17])
def test_every_float16_keeps_its_value(monkeypatch, block_items):
    """Also subnormal, infinite and signed zero; in blocks with NaN and in those without."""
    monkeypatch.setattr(halves, "BLOCK_ITEMS", block_items)
    values = EVERY.view(np.float16)
    expected = values.astype(np.float32)
    np.testing.assert_array_equal(to_float32(values), expected)
    np.testing.assert_array_equal(np.signbit(to_float32(values)), np.signbit(expected))


def test_every_bfloat16_keeps_its_bits():
    """They are the upper ones of a float32."""
    expected = torch.from_numpy(EVERY.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(to_float32(EVERY.view(ml_dtypes.bfloat16)), expected)


def test_any_shape_and_stride():
    """float32 is not copied."""
    values = np.arange(24, dtype=np.float16).reshape(4, 6)[::2, ::3]
    np.testing.assert_array_equal(to_float32(values), [[0, 3], [12, 15]])
    wide = np.ones(3, np.float32)
    assert to_float32(wide) is wide
    assert to_float32(np.ones((0, 3), np.float16)).shape == (0, 3)
