"""Which of many texts contain, or are, a given one: searched as UTF-8, not decoded. Pure.

Upper and lower case are the same. Most letters have the same number of bytes in both, so a needle
is a row of places, each with a few spellings, and the bytes are compared with vector instructions.
Texts with letters for which that is not so (the sign of kelvin is a k, "ß" is "ss") are decoded.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

__all__ = ["count_characters", "equal_rows", "find_rows", "row_blocks"]

BLOCK_ROWS = 1 << 16  # texts that are searched at once, at most
BLOCK_BYTES = 1 << 22  # and about how many bytes of them; a longer text is a block of its own
LAST_OF_LETTERS = 0x1FFFF  # later characters have no case


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
    if not needle:
        return np.ones(len(offsets) - 1, bool)
    folded = needle.casefold()
    spellings = [_spellings(letter) for letter in folded]
    text = np.frombuffer(data, np.uint8)
    n_bytes = len(folded.encode())
    found = _rows_of(_places(text, spellings), n_bytes, offsets)
    if needle.isascii():
        return found
    odd = _odd_places(text, folded)
    rows = np.unique(np.searchsorted(offsets, odd, side="right") - 1)
    for row in rows[~found[rows]].tolist():
        other = data[offsets[row] : offsets[row + 1]].decode("utf-8", "replace")
        found[row] = folded in other.casefold()
    return found


def _rows_of(places: np.ndarray, n_bytes: int, offsets: np.ndarray) -> np.ndarray:
    """Which texts have one of the ascending `places`, with the bytes after it: bool `(n,)`."""
    if len(places) > len(offsets):
        firsts = np.searchsorted(places, offsets[:-1])
        return np.searchsorted(places, offsets[1:] - n_bytes, side="right") > firsts
    rows = np.searchsorted(offsets, places, side="right") - 1
    is_inside = places + n_bytes <= offsets[rows + 1]  # and not partly in the next text
    found = np.zeros(len(offsets) - 1, bool)
    found[rows[is_inside]] = True
    return found


@lru_cache(maxsize=1)
def _unfolded() -> dict[str, list[str]]:
    """Letter of lower case -> the other characters that become it, or texts with it."""
    others: dict[str, list[str]] = {}
    for code in range(LAST_OF_LETTERS):
        folded = chr(code).casefold()
        if folded != chr(code):
            for letter in set(folded):
                others.setdefault(letter, []).append(chr(code))
    return others


def _spellings(letter: str) -> list[bytes]:
    """A letter of lower case, and the others that become it, of as many bytes."""
    own = letter.encode()
    others = [other.encode() for other in _unfolded().get(letter, []) if other.casefold() == letter]
    return [own, *(other for other in others if len(other) == len(own))]


def _odd_places(text: np.ndarray, folded: str) -> np.ndarray:
    """Where characters are that become letters of a text, but not as `_spellings` has it."""
    odd = {
        other.encode()
        for letter in set(folded)
        for other in _unfolded().get(letter, [])
        if other.encode() not in _spellings(letter)
    }
    firsts = {other[0] for other in odd}
    if not firsts:
        return np.zeros(0, np.int64)
    places = np.flatnonzero(_is_any(text, firsts))
    return places[_is_spelled(text, places, sorted(odd))]


def _places(text: np.ndarray, spellings: Sequence[Sequence[bytes]]) -> np.ndarray:
    """Where letters are, one after the other: int64 `(n,)`, ascending.

    `text` is uint8 `(n_bytes,)`; the spellings of a letter are of one length.
    """
    lengths = [len(spelled[0]) for spelled in spellings]
    n_places = max(0, len(text) - sum(lengths) + 1)
    # two bytes are looked for everywhere, with vector instructions, the others where these are;
    # the last byte of a letter is rarer than its first
    first = lengths[0] - 1
    last = sum(lengths) - 1
    is_place = _is_any(text[first:][:n_places], {spelled[-1] for spelled in spellings[0]})
    if first < last:
        is_place &= _is_any(text[last:][:n_places], {spelled[-1] for spelled in spellings[-1]})
    places = np.flatnonzero(is_place)
    start = 0
    for spelled, length in zip(spellings, lengths, strict=True):
        places = places[_is_spelled(text, places + start, spelled)]
        start += length
    return places


def _is_any(text: np.ndarray, wanted: set[int]) -> np.ndarray:
    """Which bytes are among a few: bool `(n,)`."""
    low, high = min(wanted), max(wanted)
    bit = low ^ high
    if len(wanted) == 2 and bit & (bit - 1) == 0:  # as upper and lower case differ
        return (text | np.uint8(bit)) == high
    found = text == low
    for byte in wanted - {low}:
        found |= text == byte
    return found


def _is_spelled(text: np.ndarray, places: np.ndarray, spelled: Sequence[bytes]) -> np.ndarray:
    """At which places one of several spellings begins: bool `(n,)`."""
    found = np.zeros(len(places), bool)
    for spelling in spelled:
        is_this = np.ones(len(places), bool)
        for i, byte in enumerate(spelling):
            is_this &= text[np.minimum(places + i, len(text) - 1)] == byte
        found |= is_this
    return found


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
