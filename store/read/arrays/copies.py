"""Ranges of bytes, copied one after the other. Pure but for the memory that is written.

Short ranges take no Python step each: NumPy copies windows of one width, an item of a type without
meaning (`V`) each, from and to any positions in one call. Long ones are copied one by one.
"""

from typing import NamedTuple, TypeVar

import numpy as np

__all__ = [
    "SHORT_BYTES",
    "ByteRanges",
    "common_unit",
    "copy_ranges",
    "gather",
    "gather_into",
    "plan_copies",
    "plan_gathers",
    "scatter",
    "selected_runs",
    "window_width",
]

# Ranges shorter than this are copied by one call, without a Python step each: at 4 KB it takes 514
# ns a range against 625, at 8 KB 931 against 918.
SHORT_BYTES = 6 * 1024
LONG_BYTES = 512 * 1024
# of whole blocks that are gathered; the ends of what is mapped are those of pages
MIN_UNIT, MAX_UNIT = 512, 64 * 1024
WINDOWS_BYTES = 512 * 1024  # gathered before they are scattered: they stay in the processor's cache


class ByteRanges(NamedTuple):
    """Ranges of `sizes` bytes of `memory`, uint8, from `firsts` on; `ends` says how far the memory
    behind each first byte may be read; all int64 `(n,)`."""

    memory: np.ndarray
    firsts: np.ndarray
    sizes: np.ndarray
    ends: np.ndarray


Bytes = TypeVar("Bytes", memoryview, np.ndarray)
Copy = tuple[int, int, int]
"""A range of bytes, from its first to after its last, and where it goes."""


def plan_copies(firsts: np.ndarray, sizes: np.ndarray) -> list[Copy]:
    """Put ranges of bytes one after the other; `firsts` and `sizes` are int64 `(n,)`.

    They are cut into copies of at most `LONG_BYTES`, so that threads get equal shares of them.
    """
    stops = sizes.cumsum()
    ends = (firsts + sizes).tolist()
    copies = list(zip(firsts.tolist(), ends, (stops - sizes).tolist(), strict=True))
    if np.maximum.reduce(sizes) <= LONG_BYTES:
        return copies
    return [
        (begin, min(begin + LONG_BYTES, stop), at + begin - first)
        for first, stop, at in copies
        for begin in range(first, stop, LONG_BYTES)
    ]


def copy_ranges(source: Bytes, target: Bytes, copies: list[Copy]) -> None:
    """Copy between two memoryviews, or, to release the interpreter's lock, between two arrays."""
    for first, stop, at in copies:
        target[at : at + stop - first] = source[first:stop]


def gather(memory: np.ndarray, firsts: np.ndarray, size: int) -> np.ndarray:
    """Copy ranges of one size, not 0, one after the other: uint8 `(n * size,)`.

    `memory` is uint8, `firsts`, where they begin in it, int64 `(n,)`.
    """
    return _windows(memory, size)[firsts].view(np.uint8)


def plan_gathers(n: int, width: int) -> list[tuple[int, int]]:
    """Cut n ranges of one width into parts, first and after last, that stay in the processor's
    cache between being gathered and being written."""
    step = max(1, WINDOWS_BYTES // width)
    return [(first, min(first + step, n)) for first in range(0, n, step)]


def common_unit(firsts: np.ndarray, size: int) -> int:
    """The largest power of two, within a limit, that ranges of a size begin and end at multiples
    of."""
    ends = int(np.bitwise_or.reduce(firsts)) | size
    return min(ends & -ends, MAX_UNIT)


def gather_into(
    memory: np.ndarray,
    firsts: np.ndarray,
    size: int,
    unit: int,
    out: np.ndarray,
    parts: list[tuple[int, int]],
) -> None:
    """As `gather`, of parts of the ranges, into `out`, uint8 `(n * size,)`.

    NumPy releases the interpreter's lock. Blocks of a `unit` that is large enough it copies
    straight into their place.
    """
    if unit < MIN_UNIT:
        read = _windows(memory, size)
        write = out.view(f"V{size}")
        for first, stop in parts:
            write[first:stop] = read[firsts[first:stop]]
        return
    blocks = memory[: len(memory) // unit * unit].reshape(-1, unit)
    target = out.reshape(-1, unit)
    n = size // unit
    for first, stop in parts:
        units = firsts[first:stop] // unit
        if n > 1:
            units = (units[:, None] + np.arange(n)).reshape(-1)
        # with another mode NumPy would write into memory of its own first
        np.take(blocks, units, 0, target[first * n : stop * n], "clip")


def selected_runs(
    shape: tuple[int, ...], select: tuple[slice | np.ndarray, ...], n_bytes: int
) -> tuple[np.ndarray, int]:
    """Where the runs of bytes of a part of an item begin, int64 `(n_runs,)`, and their length.

    There is a part for each axis; a number has `n_bytes`.
    """
    firsts = np.zeros(1, np.int64)
    width = stride = n_bytes
    for n, part in reversed([*zip(shape, select, strict=True)]):
        chosen = np.arange(n)[part]
        if width == stride and chosen[-1] - chosen[0] == len(chosen) - 1:
            firsts = firsts + chosen[0] * stride
            width *= len(chosen)
        else:
            firsts = (chosen[:, None] * stride + firsts).reshape(-1)
        stride *= n
    return firsts, width


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

    The ranges are those of `ByteRanges`; `width` is that of `window_width`, `out` uint8
    `(sizes.sum(),)`.
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
