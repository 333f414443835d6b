"""The manifest: one small record in the group's attributes, replaced whole at every commit.

Readers take everything from here (schema, rows, items, id runs) and never from the arrays' own
metadata, so a crash between two files of a commit cannot show half of it. The record carries its
own CRC32C. Its invariants are at the end of this file, `_check_numbers` to `_check_sizes`.
"""

import json
import os
import re
import uuid as uuid_module
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from crc32c import crc32c

from store.errors import (
    CorruptError,
    FormatError,
    NotFoundError,
    SchemaError,
    VersionError,
    is_no_damage,
)
from store.format.layout import offsets_layout
from store.format.schema import TRACE_ID, Schema
from store.format.segments import count_shards
from store.format.values import is_integer
from store.format.zarr_json import column_paths

__all__ = [
    "COLUMNS_KEY",
    "FORMAT_VERSION",
    "GROUP_FILE",
    "KEY",
    "Manifest",
    "address_text",
    "group_attributes",
    "read_manifest",
]

FORMAT_VERSION = 2  # the newest that is read; only stores with segments need it
GROUP_FILE = "zarr.json"
KEY = "trace_store"
COLUMNS_KEY = "columns"  # column -> path of its array, which no reader of ours needs
MAX_FILE_BYTES = 64 * 1024 * 1024  # a group's JSON larger than this is not ours
MAX_ITEMS = 2**48


@dataclass(frozen=True)
class Manifest:
    """What is committed.

    Appending keeps the uuid, copying rows elsewhere does not. `generation` counts commits,
    `n_items` the items of every ragged axis. `runs` are the row ranges `(first, stop)` of the id
    table's runs, in order, without gaps; `run_sums` has the CRC32C of a run's hashes and then its
    rows, by '<first>-<stop>'.

    `tails` has the CRC32C of the padded last chunk, decoded, for each plane, of every array whose
    last chunk is not whole. (Checksums of whole chunks never change and live in `_checksums`.)
    `segments` has, by the path of a column's array, the first item of each of its segments, from 0
    ascending, where it has several, as those of merged stores do. The provenance, a JSON object,
    says where the traces come from.
    """

    schema: Schema
    uuid: str = field(default_factory=lambda: str(uuid_module.uuid4()))
    generation: int = 0
    n_rows: int = 0
    n_items: dict[str, int] = field(default_factory=dict)
    runs: tuple[tuple[int, int], ...] = ()
    run_sums: dict[str, int] = field(default_factory=dict)
    tails: dict[str, list[int]] = field(default_factory=dict)
    provenance: dict = field(default_factory=dict)
    segments: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # As it will be read: keys are texts, tuples are lists. And a copy, which no caller changes.
        try:
            text = json.dumps(self.provenance, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise SchemaError(f"provenance: expected a JSON object, found: {error}") from error
        object.__setattr__(self, "provenance", json.loads(text))

    def n_items_of(self, name: str) -> int:
        """Committed items of a column (its rows, if it is fixed)."""
        axis = self.schema.axis_of(name)
        return self.n_rows if axis is None else self.n_items.get(axis, 0)

    def next(self, **changes: Any) -> "Manifest":
        """The manifest of the next generation, with other values of some fields."""
        return replace(self, generation=self.generation + 1, **changes)

    @property
    def checksum(self) -> str:
        """Of the record: copies of one store that grew on their own have one uuid, not this."""
        return _checksum(self._record())

    def to_attributes(self) -> dict:
        """The group's attributes: the record with its checksum, and the columns' paths."""
        record = self._record()
        return {KEY: record | {"crc32c": _checksum(record)}, COLUMNS_KEY: column_paths(self.schema)}

    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "format_version": 1,
            "uuid": self.uuid,
            "generation": self.generation,
            "n_rows": self.n_rows,
            "n_items": self.n_items,
            "runs": [list(run) for run in self.runs],
            "run_sums": self.run_sums,
            "tails": self.tails,
            "schema": self.schema.to_json(),
            "arrays": self.schema.arrays,
            "provenance": self.provenance,
        }
        if self.segments:  # an older reader would misread them, and refuses version 2
            record |= {"format_version": 2, "segments": self.segments}
        return record

    @classmethod
    def from_attributes(cls, attributes: dict, where: str) -> "Manifest":
        """Check and parse what `to_attributes` gave; raises FormatError."""
        record = attributes.get(KEY)
        if not isinstance(record, dict):
            raise FormatError(
                f"{where}: expected a trace store, found a Zarr group without {KEY!r} "
                "in its attributes"
            )
        version = record.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise VersionError(
                f"{where}: expected format version {FORMAT_VERSION} or older, found {version}; "
                "upgrade this package"
            )
        body = {key: value for key, value in record.items() if key != "crc32c"}
        stated = record.get("crc32c")
        checksum = _checksum(body)
        if stated != checksum:
            raise CorruptError(
                f"{where}: expected checksum {checksum}, found {stated!r:.40}; "
                "restore it from the newest copy"
            )
        try:
            return _parse(body)
        except (KeyError, TypeError, ValueError, SchemaError) as error:
            raise CorruptError(
                f"{where}: expected a store's attributes, found a fault: {error}"
            ) from error


def _checksum(record: dict) -> str:
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{crc32c(canonical.encode()):08x}"


def read_manifest(root: str | Path) -> Manifest:
    """The committed state of the store at `root`.

    Raises NotFoundError if there is no store, and FormatError if what is there is no store, a
    damaged one, or one of a newer format.
    """
    path = Path(root) / GROUP_FILE
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(_nothing_there(Path(root))) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if is_no_damage(error):
            raise
        raise NotFoundError(
            f"{str(root)!r}: expected a readable trace store, found: {error}"
        ) from error
    if len(text) > MAX_FILE_BYTES:
        raise FormatError(f"{path}: expected at most {MAX_FILE_BYTES} bytes of JSON, found more")
    return Manifest.from_attributes(group_attributes(text, str(path)), str(path))


def group_attributes(text: bytes, where: str) -> dict[str, Any]:
    """The attributes of a Zarr group, from its `zarr.json`; raises FormatError."""
    try:
        group = json.loads(text)
    except (ValueError, RecursionError) as error:
        fault = f"a fault: {error}; restore it from a copy"
        if text.lstrip().startswith(b"<"):  # what servers answer whom they want to log in
            fault = f"a web page, {text.strip()[:40]!r}; check the address, and who may read it"
        raise CorruptError(f"{where}: expected JSON, found {fault}") from error
    attributes = group.get("attributes") if isinstance(group, dict) else None
    if not isinstance(attributes, dict) or group.get("node_type") != "group":
        raise FormatError(
            f"{where}: expected a Zarr v3 group with attributes, found another document"
        )
    return attributes


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def address_text(path: Path) -> str | None:
    """The address that a path was made of, which has lost a slash; None: it is a path."""
    found = re.fullmatch(r"([a-zA-Z0-9+.-]+:)/(.*)", str(path))
    return None if found is None or Path(found[1]).exists() else f"{found[1]}//{found[2]}"


def _nothing_there(root: Path) -> str:
    expected = f"expected a trace store (a directory with {GROUP_FILE})"
    if not root.exists():
        address = address_text(root)
        if address is not None:
            return (
                f"{address}: {expected}, found an address; only s3://, gs://, az:// and https:// "
                "are read, and none is written: pull it, and push what becomes of it"
            )
        found = "no such path"
    elif root.is_file():
        found = "a file"
    else:
        found = f"no {GROUP_FILE} in it"
    return f"{root}: {expected}, found {found}; check the path"


def _parse(record: dict) -> Manifest:
    """The record as a Manifest, if it keeps every invariant; raises ValueError and others."""
    record = {"run_sums": {}, **record}  # the first stores had none
    version = record["format_version"]
    if not is_integer(version) or version not in (1, 2):
        raise ValueError(f"format_version: expected 1 or 2, found {version!r:.40}")
    if version == 1:  # there a key of this name has no meaning
        record["segments"] = {}
    for key, kind in _KINDS.items():
        if not isinstance(record[key], kind):
            raise ValueError(f"{key}: expected a {kind.__name__}, found {record[key]!r:.40}")
    fields = {key: record[key] for key in ("generation", "n_rows", *_KINDS)}
    fields["runs"] = tuple((first, stop) for first, stop in record["runs"])
    manifest = Manifest(Schema.from_json(record["schema"], record["arrays"]), **fields)
    _check_numbers(manifest)
    _check_items(manifest)
    _check_runs(manifest)
    _check_segments(manifest)
    _check_sizes(manifest)
    return manifest


_KINDS = {
    "uuid": str,
    "n_items": dict,
    "runs": list,
    "run_sums": dict,
    "tails": dict,
    "provenance": dict,
    "segments": dict,
}


def _check_numbers(manifest: Manifest) -> None:
    """Counts are whole numbers below `MAX_ITEMS`, checksums unsigned ones of 32 bits."""
    counts = [("generation", manifest.generation), ("n_rows", manifest.n_rows)]
    counts += manifest.n_items.items()
    for i, run in enumerate(manifest.runs):
        counts += [(f"runs[{i}]", row) for row in run]
    for name, count in counts:
        if not _is_below(MAX_ITEMS, count):
            raise ValueError(f"{name}: expected a count, found {count!r:.40}")
    run_sums = ("run_sums", list(manifest.run_sums.values()))
    for name, sums in (*manifest.tails.items(), run_sums):
        if not isinstance(sums, list) or not all(_is_below(2**32, value) for value in sums):
            raise ValueError(f"{name}: expected checksums, found {sums!r:.40}")


def _is_below(limit: int, value: object) -> bool:
    return is_integer(value) and 0 <= value < limit


def _check_items(manifest: Manifest) -> None:
    """Every axis has its items, none without rows; and an id has a byte at least."""
    n_rows = manifest.n_rows
    n_items = manifest.n_items
    axes = manifest.schema.axes
    if (n_rows or n_items) and set(n_items) != set(axes):
        raise ValueError(f"n_items: expected the axes {axes}, found {sorted(n_items)}")
    if not n_rows and any(n_items.values()):
        raise ValueError(f"n_items: expected none without rows, found {n_items!r:.100}")
    if n_items.get(TRACE_ID, 0) < n_rows:
        raise ValueError(f"n_items: expected ids of at least {n_rows} bytes")


def _check_runs(manifest: Manifest) -> None:
    """The runs of the id table cover all rows, one after the other."""
    end = 0
    for first, stop in manifest.runs:
        if first != end or stop <= first:
            raise ValueError(
                f"runs: expected row ranges without gaps, found {manifest.runs!r:.100}"
            )
        end = stop
    if end != manifest.n_rows:
        raise ValueError(f"runs: expected them to end at row {manifest.n_rows}, found {end}")


def _check_segments(manifest: Manifest) -> None:
    """Segments are of columns; each begins with an item, after the one before."""
    columns = {path: name for name, path in column_paths(manifest.schema).items()}
    for path, firsts in manifest.segments.items():
        if path not in columns:
            raise ValueError(f"segments: expected arrays of columns, found {path!r:.200}")
        n_items = manifest.n_items_of(columns[path])
        is_list = isinstance(firsts, list) and firsts[:1] == [0] and set(map(type, firsts)) == {int}
        if not is_list or any(b <= a for a, b in pairwise([*firsts, n_items])):
            raise ValueError(
                f"segments: {path}: expected first items that rise from 0 to less than {n_items}, "
                f"found {firsts!r:.100}"
            )


def _check_sizes(manifest: Manifest) -> None:
    """No array has more shards than could be looked for."""
    for axis in manifest.schema.axes:
        offsets_layout(axis).check_size(manifest.n_rows + 1)
    for name in manifest.schema.stored:
        layout = manifest.schema.layout(name)
        n_items = manifest.n_items_of(name)
        firsts = manifest.segments.get(layout.path)
        if firsts:  # the last shard of each segment counts as a full one
            n_items = count_shards(firsts, n_items, layout.shard_items) * layout.shard_items
        layout.check_size(n_items)
