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
        uint8 `(sizes.sum(),)`.
    """
    stops = sizes.cumsum()
    starts = stops - sizes
    # the window of one of the last ranges would reach beyond `out`
    n = int(starts.searchsorted(len(out) - width, "right"))
    fits = firsts[:n] + width <= ends[:n]
    if width < np.maximum.reduce(sizes):
        fits &= sizes[:n] <= width
    n_fit = np.count_nonzero(fits)
    if n_fit:
        sources = firsts[:n]
        if n_fit < n:  # until the others are copied, one that fits is in their place
            sources = np.where(fits, sources, sources[np.argmax(fits)])
        read = _windows(memory, width)
        write = _windows(out, width)
        step = WINDOWS_BYTES // width + 1
        for i in range(0, n, step):
            write[starts[i : min(i + step, n)]] = read[sources[i : i + step]]
    others = [] if n_fit == n else np.flatnonzero(~fits).tolist()
    for i in [*others, *range(n, len(firsts))]:
        out[starts[i] : stops[i]] = memory[firsts[i] : firsts[i] + sizes[i]]


def _windows(memory: np.ndarray, width: int) -> np.ndarray:
    """Every window of a width, beginning at each byte: a view of type `V`."""
    return np.ndarray((len(memory) - width + 1,), f"V{width}", memory, strides=(1,))
