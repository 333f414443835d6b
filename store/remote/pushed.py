"""What a push leaves in the group's attributes: which values the store in the bucket has.

A manifest names the checksums of last chunks alone. Copies of a store that grew on their own have
one UUID, and may have one manifest: what tells them apart are the checksums of their whole chunks,
of which a push leaves one checksum an array.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from crc32c import crc32c

from store.errors import CorruptError
from store.format.values import is_integer

__all__ = ["IN_BUCKET", "PUSHED", "PUSHED_KEY", "Sums", "as_attribute", "record_in", "sums_in"]

PUSHED_KEY = "trace_store_push"  # of the group's attributes
# keys of the record: path of an array -> its sums
PUSHED = "pushed"  # as the pushed store lays it out
IN_BUCKET = "in_bucket"  # and as it lies in the bucket


class Sums(NamedTuple):
    """What the first items of an array are, as one way of laying them out shows it.

    `crc` is the CRC32C of the checksums of the whole chunks, one after the other; `tails` are the
    checksums of the padded last chunk, one a plane, or none if it is whole.
    """

    crc: int
    tails: list[int]


def as_attribute(record: dict[str, Any]) -> dict[str, Any]:
    """The attribute that holds a record, with its checksum."""
    return {"record": record, "crc32c": _checksum(record)}


def record_in(attributes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What pushes left; nothing where another program put the store there."""
    pushed = attributes.get(PUSHED_KEY)
    if pushed is None:
        return {}
    record = pushed.get("record") if isinstance(pushed, dict) else None
    if not isinstance(record, dict) or pushed.get("crc32c") != _checksum(record):
        raise CorruptError(f"{where}: expected the record of a push, found a damaged one")
    return record


def sums_in(record: Mapping[str, Any], key: str) -> dict[str, Sums]:
    """Path -> sums, from what a push left; anything else is left out, and fits no store."""
    found = record.get(key)
    entries = found.items() if isinstance(found, dict) else ()
    return {path: Sums(*entry) for path, entry in entries if _is_sums(entry)}


def _is_sums(entry: object) -> bool:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], list):
        return False
    return all(is_integer(number) and 0 <= number < 2**32 for number in (entry[0], *entry[1]))


def _checksum(record: dict[str, Any]) -> int:
    return crc32c(json.dumps(record, sort_keys=True).encode())
