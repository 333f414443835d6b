"""Which of many texts contain, or are, a given one: searched as UTF-8, block by block. Pure."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

__all__ = ["count_characters", "equal_rows", "find_rows", "row_blocks"]

BLOCK_ROWS = 1 << 16  # texts that are searched at once, at most
BLOCK_BYTES = 1 << 22  # and about how many bytes of them; a longer text is a block of its own


def row_blocks(
    offsets: np.ndarray, n_bytes: int = BLOCK_BYTES, n_rows: int = BLOCK_ROWS
) -> Iterator[tuple[int, int]]:
    """Cut rows into blocks of a few bytes: the first row of each, and the one after its last.

    `offsets` are int64 `(n + 1,)`: text i is `data[offsets[i] : offsets[i + 1]]`.
    """
    start, end = 0, len(offsets) - 1
    while start < end:
        full = offsets[start] + n_bytes
        last = min(start + n_rows, end)
        fitting = int(np.searchsorted(offsets[start : last + 1], full, side="right")) - 1
        stop = start + max(1, fitting)
        yield start, stop
        start = stop


def find_rows(data: bytes, offsets: np.ndarray, needle: str) -> np.ndarray:
    """Which of several texts contain another, upper and lower case being the same.

    `data` has the texts in UTF-8, one after the other: text i is
    `data[offsets[i] : offsets[i + 1]]`, `offsets` int64 `(n + 1,)`. Every text contains the empty
    needle; in one of ASCII alone, only letters of ASCII have a case. Returns bool `(n,)`.
    """
    if needle.isascii():
        return _rows_of(_places(data.lower(), needle.lower().encode()), len(needle), offsets)
    folded = needle.casefold()
    texts = (data[start:stop].decode(errors="replace") for start, stop in pairwise(offsets))
    return np.fromiter((folded in text.casefold() for text in texts), bool, len(offsets) - 1)


def _places(data: bytes, needle: bytes) -> np.ndarray:
    """Where a text begins in others, one after the other: int64 `(n,)`, ascending."""
    text = np.frombuffer(data, np.uint8)
    n_places = max(0, len(text) - len(needle) + 1)
    is_place = np.ones(n_places, bool)
    # two bytes are looked for everywhere, with vector instructions, the others where these are
    for i in {0, len(needle) - 1} if needle else ():
        is_place &= text[i:][:n_places] == needle[i]
    places = np.flatnonzero(is_place)
    for i, byte in enumerate(needle):
        places = places[text[places + i] == byte]
    return places


def _rows_of(places: np.ndarray, n_bytes: int, offsets: np.ndarray) -> np.ndarray:
    """Which texts have one of the ascending `places`, with the bytes after it: bool `(n,)`."""
    firsts = np.searchsorted(places, offsets[:-1])
    return np.searchsorted(places, offsets[1:] - n_bytes, side="right") > firsts


def equal_rows(data: bytes, offsets: np.ndarray, text: str) -> np.ndarray:
    """Which of several texts are the given one: bool `(n,)`."""
    wanted = text.encode()
    rows = np.flatnonzero(np.diff(offsets) == len(wanted))
    characters = np.frombuffer(data, np.uint8)
    for i, character in enumerate(wanted):
        rows = rows[characters[offsets[rows] + i] == character]
    equal = np.zeros(len(offsets) - 1, bool)
    equal[rows] = True
    return equal


def count_characters(data: bytes, offsets: np.ndarray) -> np.ndarray:
    """The characters of each text: int64 `(n,)`."""
    is_first = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80  # of the bytes of a character
    before = np.concatenate([[0], np.cumsum(is_first, dtype=np.int64)])
    return before[offsets[1:]] - before[offsets[:-1]]
