"""The bytes of an untrusted pickle, counted before they are read.

A pickle announces strings and frames of up to 2**64 bytes. `CheckedReader` refuses a size that the
rest of the file cannot hold or that is above the limit, before any memory is allocated for it.
"""

from io import BufferedIOBase

from store.errors import CorruptError, RefusedError

__all__ = ["CheckedReader", "TooLargeError", "too_much"]

MAX_OPCODES = 1_000_000  # of a small pickle
OPCODES_PER_BYTE = 4  # of a compressed one
OPCODE_BYTES = 256  # of memory that an opcode takes at most; an empty set has 216


class TooLargeError(RefusedError):
    """A file is above a limit that may be raised; nothing else is wrong with it."""


class CheckedReader:
    """A file object for an unpickler that reads no more than it should.

    Parameters
    ----------
    size : int
        Most bytes that `file` can hold, which are not compressed any more.
    max_bytes : int
        Most bytes to read.
    n_stored
        Bytes on the disk, where they are compressed.

    Attributes
    ----------
    max_opcodes
        Most opcodes of a pickle: compressed ones multiply, and each takes some memory.
    takes_memory
        Whether the memory is what allows no more of them.
    """

    def __init__(
        self, file: BufferedIOBase, size: int, max_bytes: int, n_stored: int | None = None
    ) -> None:
        self._file = file
        self._size = size
        self._max_bytes = max_bytes
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
        line = self._file.readline(self._max_bytes - self.n_read + 1)
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
        if self.n_read + n > self._max_bytes:
            raise too_much(f"{n} bytes at byte {self.n_read}", self._max_bytes)


def too_much(found: str, max_bytes: int) -> TooLargeError:
    """Name the limit, what exceeded it, and how to raise it."""
    return TooLargeError(
        f"expected at most {max_bytes} bytes, found {found}; "
        "if you trust the file, raise max_bytes (--max-file-gb)"
    )
