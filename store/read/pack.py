"""Many short ranges of bytes, copied one after the other without a Python step for each.

NumPy copies windows of one width, an item of a type without meaning (`V`) each, from and to any
positions in one call. Pure but for the memory that is written.
"""

import numpy as np

__all__ = ["gather", "scatter", "window_width"]

WINDOWS_BYTES = 512 * 1024  # gathered before they are scattered: they stay in the processor's cache


def gather(memory: np.ndarray, firsts: np.ndarray, size: int) -> np.ndarray:
    """Copy ranges of one size one after the other.

    Parameters
    ----------
    memory
        Where they are: uint8.
    firsts
        The first byte of each: int64 `(n,)`.
    size
        Bytes of a range, not 0.

    Returns
    -------
    uint8 `(n * size,)`, a copy.
    """
    return _windows(memory, size)[firsts].view(np.uint8)


def window_width(sizes: np.ndarray, mean: int) -> int:
    """The width of windows that hold most ranges of these sizes, int64 `(n,)`."""
    return max(1, min(int(np.maximum.reduce(sizes)), 4 * mean))


def scatter(
    memory: np.ndarray,
    firsts: np.ndarray,
    sizes: np.ndarray,
    ends: np.ndarray,
    width: int,
    out: np.ndarray,
) -> None:
    """Copy ranges of different sizes one after the other, through windows of one width.

    What a window holds beyond its range is overwritten by the ranges that follow, because NumPy
    writes in order.

    Parameters
    ----------
    memory
        Where they are: uint8.
    firsts, sizes
        Of each range: int64 `(n,)`.
    ends
        How far the memory behind each range's first byte may be read: int64 `(n,)`.
    width
        Of a window; see `window_width`.
    out
        uint8 `(sizes.sum() + width,)`; what follows the ranges is undefined.
    """
    stops = sizes.cumsum()
    starts = stops - sizes
    fits = firsts + width <= ends
    if width < np.maximum.reduce(sizes):
        fits &= sizes <= width
    n_fit = np.count_nonzero(fits)
    sources = firsts
    if n_fit < len(
        firsts
    ):  # the others are copied afterwards; until then another is in their place
        sources = np.where(fits, firsts, firsts[np.argmax(fits)])
    if n_fit:
        read = _windows(memory, width)
        write = _windows(out, width)
        n = WINDOWS_BYTES // width + 1
        for i in range(0, len(firsts), n):
            write[starts[i : i + n]] = read[sources[i : i + n]]
    if n_fit < len(firsts):
        for i in np.flatnonzero(~fits).tolist():
            out[starts[i] : stops[i]] = memory[firsts[i] : firsts[i] + sizes[i]]


def _windows(memory: np.ndarray, width: int) -> np.ndarray:
    """Every window of a width, beginning at each byte: a view of type `V`."""
    return np.ndarray((len(memory) - width + 1,), f"V{width}", memory, strides=(1,))
