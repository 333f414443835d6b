"""Every error this package raises on purpose, grouped by what its reader does next.

A message is one line that says where, what was expected, what was found and what to do.
Bad arguments are plain `ValueError`, `TypeError` and `IndexError`. All errors survive pickling,
so they pass between processes whole.
"""

import difflib
from collections.abc import Iterable
from errno import EACCES, EMFILE, ENFILE, ENOMEM, ENOTCONN, EPERM, ETIMEDOUT

__all__ = [
    "CorruptError",
    "DamagedItemsError",
    "FormatError",
    "IncompleteError",
    "LockedError",
    "NotFoundError",
    "RefusedError",
    "SchemaError",
    "StoreError",
    "UnreachableError",
    "VersionError",
    "closest",
    "is_no_damage",
]


class StoreError(Exception):
    """Anything wrong with a store or with a request to it."""


class NotFoundError(StoreError, KeyError):
    """No such store, trace or column: check the name."""

    def __str__(self) -> str:  # KeyError would show the message's repr
        return self.args[0] if self.args else ""


class IncompleteError(StoreError):
    """A build stopped before its end: run the same command again."""


class LockedError(StoreError):
    """Another writer is at work on the store: wait for it."""


class SchemaError(StoreError):
    """The data or the request does not fit the schema: fix the caller."""


class UnreachableError(StoreError):
    """A server gave no good answer in the stated time: try again later."""


class RefusedError(StoreError):
    """The file asks for something that no trace needs: do not trust it."""


class FormatError(StoreError):
    """The bytes on disk are not a store that this version reads."""


class CorruptError(FormatError):
    """The bytes on disk contradict each other: restore them from a copy."""


class DamagedItemsError(CorruptError):
    """Items of one array are damaged; a caller who knows rows says which rows.

    Attributes
    ----------
    items
        The range of them: the first, and the one after the last.
    n_bits
        How many bits of a recorded checksum differ; None: not known.
    """

    def __init__(self, message: str, items: tuple[int, int], n_bits: int | None = None) -> None:
        super().__init__(message, items, n_bits)
        self.items = items
        self.n_bits = n_bits

    def __str__(self) -> str:
        return self.args[0]


class VersionError(FormatError):
    """The store was written by a newer format: upgrade this package."""


# no permission, too many open files, no memory, a file system that is not there now
_NOT_OF_THE_DATA = {EACCES, EMFILE, ENFILE, ENOMEM, ENOTCONN, EPERM, ETIMEDOUT}


def is_no_damage(error: BaseException) -> bool:
    """Whether an error says nothing of the data that were read, such as too little memory.

    Then nothing is left out, called damaged or repaired: the command ends, and may run again.
    """
    if isinstance(error, OSError):
        return error.errno in _NOT_OF_THE_DATA
    text = str(error) if isinstance(error, RuntimeError) else ""  # of torch, and of Python
    is_shortage = "can't allocate memory" in text or "can't start new thread" in text
    return is_shortage or isinstance(error, MemoryError)


def closest(name: str, known: Iterable[str]) -> str:
    """The known names most like `name`, as the tail of an error message ('' if there is none)."""
    by_lower = {one.lower(): one for one in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, cutoff=0.5)
    return f"; closest: {', '.join(repr(by_lower[one]) for one in matches)}" if matches else ""
