"""What an untrusted pickle may ask of the memory, of the processor, and of what walks its value.

A pickle announces strings and frames of up to 2**64 bytes: `CheckedReader` refuses a size that the
rest of the file cannot hold or that is above the limit, before any memory is allocated for it. A
few bytes can name a value that takes for ever to hash or to walk through: tuples that hold each
other twice, level by level. So keys are of few types, and values are measured when they are whole.
Nothing here recurses.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from typing import Any

from store.errors import CorruptError, RefusedError

__all__ = [
    "CheckedReader",
    "check_keys",
    "check_sizes",
    "check_tree",
    "refused",
    "too_much",
]

MAX_OPCODES = 1_000_000  # of a small pickle
OPCODES_PER_BYTE = 4  # of a compressed one
OPCODE_BYTES = 256  # of memory that an opcode takes at most; an empty set has 216
MAX_DIMENSIONS = 64
MAX_DEPTH = 200
MAX_ITEMS = 16_000_000  # and characters, that any pickle may show
ITEMS_PER_BYTE = 100  # by references to the same values
_TEXTS = (str, bytes, bytearray)
_KEYS = (str, bytes, int, float, bool, type(None))


class CheckedReader:
    """A file object for an unpickler that reads no more than it should.

    `size` is the most that the file can hold once it is unpacked, `n_stored` its bytes on the disk,
    where they are compressed. A pickle has `max_opcodes` at most: compressed ones multiply, and
    each takes some memory; `takes_memory` says that this allows no more of them.
    """

    def __init__(
        self, file: BufferedIOBase, size: int, max_bytes: int, n_stored: int | None = None
    ) -> None:
        self._file = file
        self._size = size
        self.max_bytes = max_bytes
        self.n_read = 0
        by_size = OPCODES_PER_BYTE * (size if n_stored is None else n_stored)
        by_memory = max_bytes // OPCODE_BYTES
        self.max_opcodes = MAX_OPCODES + min(by_size, by_memory)
        self.takes_memory = by_memory < by_size

    def read(self, n: int) -> bytes:
        """Return the next `n` bytes, fewer at the end of a compressed file."""
        self.check_size(n)
        data = self._file.read(n)
        self.n_read += len(data)
        return data

    def readline(self) -> bytes:
        """Return the bytes up to the next newline, inclusive."""
        line = self._file.readline(self.max_bytes - self.n_read + 1)
        self.check_size(len(line))
        self.n_read += len(line)
        if not line.endswith(b"\n"):
            raise CorruptError("expected a whole pickle, found its end; copy the file again")
        return line

    def check_size(self, n: int) -> None:
        """Raise an error if `n` more bytes cannot follow or are too many."""
        left = self._size - self.n_read
        if n > left:
            raise CorruptError(
                f"expected a whole pickle, found at most {left} of the next {n} bytes "
                f"at byte {self.n_read}; copy the file again"
            )
        if self.n_read + n > self.max_bytes:
            raise too_much(f"{n} bytes at byte {self.n_read}", self.max_bytes)


def check_keys(keys: Iterable[object]) -> None:
    """Refuse keys but texts and plain numbers: others may take long to hash, or have one hash."""
    for key in keys:
        is_huge = type(key) is int and abs(key) >= sys.hash_info.modulus
        if type(key) not in _KEYS or is_huge:
            raise refused(f"{'a huge number' if is_huge else f'a {type(key).__name__}'} as a key")


def check_sizes(sizes: Any) -> None:
    """Refuse what no array has for a shape, whose product would have millions of digits."""
    if len(sizes) > MAX_DIMENSIONS or any(type(n) is int and n >> 63 > 0 for n in sizes):
        raise refused("an array of that shape")


def check_tree(
    root: object, parts_of: Callable[[Any], Iterable[Any] | None], n_bytes: int, max_bytes: int
) -> None:
    """Refuse a value that is nested too deep, in itself, or shown too often by references.

    `parts_of` gives what a value holds, None of a number, a text or an array; `n_bytes` has the
    pickle. What is shown twice counts twice: each value, each character, and apart from them the
    bytes of arrays, of which there may be `max_bytes`.
    """
    most = MAX_ITEMS + ITEMS_PER_BYTE * n_bytes
    # items, and bytes of arrays, in and below a container; those of the path have -1
    known: dict[int, tuple[int, int]] = {}
    path: list[tuple[int, Iterator[Any]]] = [(0, iter([root]))]
    counts = [[0, 0]]
    while path:
        number, rest = path[-1]
        count = counts[-1]
        for value in rest:
            n_items, n_shown = known.get(id(value), (0, 0))
            if n_items < 0:
                raise refused("a value that holds itself")
            count[0] += 1 + n_items + (len(value) if isinstance(value, _TEXTS) else 0)
            count[1] += n_shown + getattr(value, "nbytes", 0)
            if id(value) not in known and (parts := parts_of(value)) is not None:
                known[id(value)] = (-1, 0)
                path.append((id(value), iter(parts)))
                counts.append([0, 0])
                break
        else:
            path.pop()
            n_items, n_shown = counts.pop()
            known[number] = n_items, n_shown
            if counts:
                counts[-1][0] += n_items
                counts[-1][1] += n_shown
        if len(path) > MAX_DEPTH:
            raise refused(f"values nested more than {MAX_DEPTH} deep")
        if count[0] > most:
            raise refused(f"more than {most} items and characters by references to the same")
        if count[1] > max_bytes:
            raise too_much(f"arrays of {count[1]} bytes, each as often as it is shown", max_bytes)


def refused(asked: str) -> RefusedError:
    """The error of a pickle that asks for something."""
    return RefusedError(f"asks for {asked}, which no trace needs; do not trust the file")


def too_much(found: str, max_bytes: int) -> RefusedError:
    """Name the limit, what exceeded it, and how to raise it."""
    return RefusedError(
        f"expected at most {max_bytes} bytes, found {found}; if you trust the file, raise "
        "max_bytes (--max-file-gb), or free memory"
    )
