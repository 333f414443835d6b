"""Completion records: that a part of a store is whole, and which part of what it is.

The record of `part1.zarr` is `part1.zarr.part.json` beside it. It is created only if there is none,
and whole or not at all: two attempts at one part publish one record. A record is evidence, not an
instruction: its store is the one that its own name says, and has to have its UUID.
"""

import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from store.errors import CorruptError, FormatError, NotFoundError, SchemaError
from store.format.manifest import read_manifest
from store.write.files import DISK

__all__ = ["SUFFIX", "Record", "publish", "read_record", "record_path", "store_path"]

SUFFIX = ".part.json"
MAX_BYTES = 1 << 16
MAX_PARTS = 1_000_000
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Record:
    """What a part is a part of, and what is in it.

    Attributes
    ----------
    command
        "import" or "extract".
    arguments_sha256
        Of the arguments that decide the rows, as `store.launch.identity` counts them.
    inputs_sha256
        Of what is imported, or asked.
    part, n_parts
        Its number, from 1, and how many there are.
    n_rows, n_left_out
        Traces in it, and files or records that it could not use.
    uuid
        Of the store.
    """

    command: str
    arguments_sha256: str
    inputs_sha256: str
    part: int
    n_parts: int
    n_rows: int
    n_left_out: int
    uuid: str

    @property
    def job(self) -> tuple[str, str, str]:
        """What parts of one store have in common, but for their number."""
        return self.command, self.arguments_sha256, self.inputs_sha256


def record_path(store: Path) -> Path:
    """Return where the record of a part is."""
    return store.with_name(store.name + SUFFIX)


def store_path(record: Path) -> Path:
    """Return the part that a record is of."""
    return record.with_name(record.name.removesuffix(SUFFIX))


def publish(store: Path, record: Record) -> bool:
    """Create the record of a part durably, if it has none.

    Returns whether the record that is there now is of this store: False if another attempt was
    first. Raises SchemaError if this store has a record as another part, or of another command.
    """
    path = record_path(store)
    with _temporary(path, json.dumps(asdict(record), indent=1)) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            found = read_record(path)
            if found.uuid == record.uuid:
                _check_same(path, found, record)
                return True
            if not _is_stored(store, record):
                return False
            # of a store that was here before, and was removed without its record
            temporary.replace(path)
        DISK.sync_dir(path.parent)
    return True


def _is_stored(store: Path, record: Record) -> bool:
    """Whether the store of a record is the one that is there."""
    with suppress(NotFoundError, FormatError):
        return read_manifest(store).uuid == record.uuid
    return False


def _check_same(path: Path, found: Record, record: Record) -> None:
    if (found.job, found.part, found.n_parts) != (record.job, record.part, record.n_parts):
        raise SchemaError(
            f"{path}: expected the record of part {record.part}/{record.n_parts} of this command, "
            f"found part {found.part}/{found.n_parts} of {_other(found, record)}; "
            "remove it, or choose another OUT"
        )


def _other(found: Record, record: Record) -> str:
    return "the same" if found.job == record.job else "another command"


@contextmanager
def _temporary(path: Path, text: str) -> Iterator[Path]:
    """Give a whole, durable file with a name of its own, which is removed at the end."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with DISK.created(temporary) as fd:
            DISK.write(fd, text.encode(), 0)
        yield temporary
    finally:
        DISK.remove(temporary)


def read_record(path: Path) -> Record:
    """Read a record, which may be anybody's.

    Raises NotFoundError if there is none, and CorruptError if it is not one.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: expected the record of a part, found none") from error
    if len(text) > MAX_BYTES:
        raise CorruptError(f"{path}: expected at most {MAX_BYTES:,} bytes, found more; remove it")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path}: expected JSON, found {error}; remove it") from error
    problem = _problem(found)
    if problem:
        raise CorruptError(f"{path}: expected the record of a part, found {problem}; remove it")
    return Record(**found)


def _problem(found: Any) -> str | None:
    """What is wrong with the content of a record; None if nothing is."""
    types = {field.name: field.type for field in fields(Record)}
    if not isinstance(found, dict) or found.keys() != types.keys():
        return f"{found!r:.80}"
    for name, kind in types.items():
        value = found[name]
        if type(value) is not kind:
            return f"{name} {value!r:.80}"
        if kind is int and not 0 <= value < 1 << 48:
            return f"{name} {value}"
    for name in ("arguments_sha256", "inputs_sha256"):
        if not DIGEST.fullmatch(found[name]):
            return f"{name} {found[name]!r:.80}"
    if not 1 <= found["part"] <= found["n_parts"] <= MAX_PARTS:
        return f"part {found['part']} of {found['n_parts']}"
    return None
