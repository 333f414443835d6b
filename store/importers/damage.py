"""What reading damaged files and values raises, and how a message says it."""

import errno
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from store.errors import CorruptError, StoreError, is_no_damage
from store.reports import in_one_line

__all__ = ["DAMAGE", "DAMAGED_BYTES", "damage", "one_line"]

DAMAGE = (  # what NumPy, torch and Python raise for values that contradict each other
    StoreError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
)
DAMAGED_BYTES = (  # what NumPy, h5py, zipfile, gzip and the unpickler raise besides
    *DAMAGE[1:],
    AssertionError,
    BufferError,
    EOFError,
    OSError,
    SyntaxError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def one_line(error: Exception) -> str:
    """Return what is wrong, from an error of this package or a library; raises MemoryError."""
    if is_no_damage(error):
        raise MemoryError(*error.args) from error
    message = " ".join(str(error).split())[:300]
    if isinstance(error, StoreError):
        return message
    return f"expected a whole trace, found {type(error).__name__}: {message}"


@contextmanager
def damage(
    expected: str = "whole arrays", errors: tuple[type[Exception], ...] = DAMAGED_BYTES
) -> Iterator[None]:
    """Turn what libraries raise for damaged bytes into one error; a StoreError stays itself."""
    try:
        yield
    except StoreError:
        raise
    except errors as error:
        if is_no_damage(error):
            raise MemoryError(*error.args) from error
        # a damaged archive has a place before its beginning; other errors are those of the disk,
        # some of which zipfile takes for damage
        cause = error.__context__ if isinstance(error, zipfile.BadZipFile) else error
        if isinstance(cause, OSError) and cause.errno not in (None, errno.EINVAL):
            raise cause from None
        found = in_one_line(error)
        raise CorruptError(f"expected {expected}, found {found}; copy the file again") from error
