"""Numbers of 16 bits as float32, exactly. Pure.

NumPy has no bfloat16, and converts float16 number by number: that takes five times as long as here.
torch is as fast, but takes seconds to import. In a thread that treats denormal numbers as zeros,
denormal numbers of float16 become zeros.
"""

import numpy as np

__all__ = ["to_float32", "without_bfloat16"]

BLOCK_ITEMS = 1 << 17  # converted at once: they stay in the processor's cache
EXPONENT = 0x7C00  # its bits in a float16; all of them are set in infinity and NaN
SPREAD = ~0x70000000  # a float16's sign and its other 15 bits, 13 places further left
BIAS = np.float32(2.0**112)  # exponents count from 15 in float16, from 127 in float32


def to_float32(values: np.ndarray) -> np.ndarray:
    """Numbers as float32, bfloat16 of ml_dtypes among them; a copy, except of float32."""
    if values.dtype == np.float16:
        return _widen_float16(values)
    return without_bfloat16(values).astype(np.float32, copy=False)


def without_bfloat16(values: np.ndarray) -> np.ndarray:
    """Numbers of ml_dtypes' bfloat16 as float32, a copy; others as they are."""
    if values.dtype.kind != "V":
        return values
    return _widen_bfloat16(values.view(np.uint16))


def _widen_bfloat16(bits: np.ndarray) -> np.ndarray:
    """bfloat16 is the upper half of a float32."""
    wide = bits.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def _widen_float16(halves: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(halves).reshape(-1)
    wide = np.empty(flat.shape, np.float32)
    for start in range(0, len(flat), BLOCK_ITEMS):
        block = slice(start, start + BLOCK_ITEMS)
        _widen_block(flat[block], wide[block])
    return wide.reshape(halves.shape)


def _widen_block(halves: np.ndarray, wide: np.ndarray) -> None:
    """Shift each number's bits to their places in a float32, and correct its exponent."""
    bits = halves.view(np.int16)
    if ((bits & EXPONENT) == EXPONENT).any():
        wide[:] = halves  # infinity and NaN have an exponent of their own
        return
    shifted = wide.view(np.int32)
    shifted[:] = bits
    shifted <<= 13
    shifted &= SPREAD
    wide *= BIAS
