"""What a push leaves in the group's attributes: which values the store in the bucket has.

A manifest names the checksums of last chunks alone. Copies of a store that grew on their own have
one UUID, and may have one manifest: what tells them apart are the checksums of their whole chunks,
of which a push leaves one checksum an array.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from crc32c import crc32c

from store.errors import CorruptError
from store.format.contents import StoredArray
from store.format.values import is_integer
from store.read.directory import StoreDirectory
from store.read.source import open_array

__all__ = [
    "PUSHED_KEY",
    "PushRecord",
    "Sums",
    "as_attribute",
    "check_sums",
    "crc_of_sums",
    "record_in",
]

PUSHED_KEY = "trace_store_push"  # of the group's attributes


class Sums(NamedTuple):
    """What the first items of an array are, as one way of laying them out shows it.

    `crc` is the CRC32C of the checksums of the whole chunks, one after the other; `tails` are the
    checksums of the padded last chunk, one a plane, or none if it is whole.
    """

    crc: int
    tails: list[int]


class PushRecord(NamedTuple):
    """What a push left, or nothing of it where another program put the store there.

    `source` is the checksum of the manifest that was pushed. Each array has sums by its path: in
    the store that was `pushed`, and as it lies `in_bucket`.
    """

    source: str | None = None
    pushed: Mapping[str, Sums] = {}
    in_bucket: Mapping[str, Sums] = {}


def as_attribute(record: PushRecord) -> dict[str, object]:
    """The attribute that holds a record, with a checksum, and an id: no two pushes write one."""
    found = record._asdict() | {"commit": uuid4().hex}
    return {"record": found, "crc32c": _checksum(found)}


def record_in(attributes: Mapping[str, Any], where: str) -> PushRecord:
    """What a push left in the group's attributes; raises CorruptError if it is damaged."""
    found = attributes.get(PUSHED_KEY)
    if found is None:
        return PushRecord()
    record = found.get("record") if isinstance(found, dict) else None
    if not isinstance(record, dict) or found.get("crc32c") != _checksum(record):
        raise CorruptError(f"{where}: expected the record of a push, found a damaged one")
    return PushRecord(
        record.get("source"), _sums_in(record.get("pushed")), _sums_in(record.get("in_bucket"))
    )


def _sums_in(found: object) -> dict[str, Sums]:
    """Path -> sums; anything else is left out, and fits no store."""
    entries = found.items() if isinstance(found, dict) else ()
    return {path: Sums(*entry) for path, entry in entries if _is_sums(entry)}


def _is_sums(entry: object) -> bool:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], list):
        return False
    return all(is_integer(number) and 0 <= number < 2**32 for number in (entry[0], *entry[1]))


def crc_of_sums(directory: StoreDirectory, checksums: StoredArray) -> int:
    """The CRC32C of all checksums of an array, see `Sums`."""
    return crc32c(open_array(directory, checksums).read(0, checksums.n_items).tobytes())


def check_sums(directory: StoreDirectory, checksums: StoredArray, expected: int) -> None:
    """Raise CorruptError unless checksums are those that were pushed, whose CRC32C is given."""
    found = crc_of_sums(directory, checksums)
    if found != expected:
        raise CorruptError(
            f"{checksums.layout.path}: expected checksums of checksum {expected:08x}, found "
            f"{found:08x}; push the store again"
        )


def _checksum(record: dict[str, object]) -> int:
    return crc32c(json.dumps(record, sort_keys=True).encode())
