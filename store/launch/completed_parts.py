"""Parts of a store that are whole, as the completion records beside them say.

The record of `part1.zarr` is `part1.zarr.part.json`. It is created only if there is none, and whole
or not at all: two attempts at one part publish one record. A record is evidence, not an
instruction: its store is the one that its own name says, and has to have its UUID. Parts of two
commands are refused, because it is unknown which was meant.
"""

import json
import os
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from store.errors import CorruptError, FormatError, NotFoundError, SchemaError
from store.format.manifest import GROUP_FILE, read_manifest
from store.reports import count
from store.write.files import DISK

__all__ = [
    "SUFFIX",
    "FoundParts",
    "JobKey",
    "Part",
    "Record",
    "find_part",
    "find_parts",
    "numbers_text",
    "publish",
    "read_record",
    "record_path",
]

SUFFIX = ".part.json"
MAX_BYTES = 1 << 16
MAX_COUNT = 1 << 48
MAX_PARTS = 1_000_000
DIGEST = re.compile(r"[0-9a-f]{64}")


class JobKey(NamedTuple):
    """What the parts of one store have in common: command, arguments, inputs, number of parts."""

    command: str
    arguments_sha256: str
    inputs_sha256: str
    n_parts: int


@dataclass(frozen=True)
class Record:
    """What a part is a part of, and what is in it."""

    command: str  # "import" or "extract"
    arguments_sha256: str  # of those that decide the rows; see `store.launch.job`
    inputs_sha256: str  # of what is imported or asked
    part: int  # its number, from 1
    n_parts: int
    n_rows: int
    n_left_out: int  # files or records that it could not use
    uuid: str  # of the store

    @property
    def job(self) -> JobKey:
        return JobKey(self.command, self.arguments_sha256, self.inputs_sha256, self.n_parts)

    def __post_init__(self) -> None:
        """Raise ValueError for what is no record: its file may be anybody's."""
        for field in fields(self):
            value = getattr(self, field.name)
            is_sound = type(value) is field.type
            if is_sound and field.name.endswith("_sha256"):
                is_sound = DIGEST.fullmatch(value) is not None
            elif is_sound and field.type is int:
                is_sound = 0 <= value < MAX_COUNT
            if not is_sound:
                raise ValueError(f"{field.name} {value!r:.80}")
        if not 1 <= self.part <= self.n_parts <= MAX_PARTS:
            raise ValueError(f"part {self.part} of {self.n_parts}")


@dataclass(frozen=True)
class Part:
    """A whole part: its store, and the record of it."""

    path: Path
    record: Record


@dataclass(frozen=True)
class FoundParts:
    """The whole parts of one job."""

    parts: list[Part]  # one for each number that there is, ascending
    n_parts: int  # how many there should be; 0 if none was found
    left_out: list[str]  # a line for each thing that is no part, or the same as another

    @property
    def missing(self) -> list[int]:
        """The numbers of the parts that there are not, ascending."""
        numbers = {part.record.part for part in self.parts}
        return [number for number in range(1, self.n_parts + 1) if number not in numbers]


def record_path(store: Path) -> Path:
    return store.with_name(store.name + SUFFIX)


def _check_job(path: Path, found: Record, expected: JobKey, like: str) -> None:
    """Raise SchemaError for a part of another job; `like` names what it was expected to fit."""
    if found.job == expected:
        return
    if found.job[:2] != expected[:2]:
        of = "another command"
    elif found.inputs_sha256 != expected.inputs_sha256:
        of = "other inputs, or of inputs that were changed since"
    else:
        of = "the same command"
    raise SchemaError(
        f"{path}: expected one of {expected.n_parts} parts of {like}, found part "
        f"{found.part}/{found.n_parts} of {of}; move it away, repeat its command or choose another "
        "OUT"
    )


def publish(store: Path, record: Record) -> bool:
    """Create the record of a part durably, if it has none.

    Returns whether the record that is there now is of this store: False if another attempt was
    first. Raises SchemaError if this store has a record as another part, or of another command.
    """
    path = record_path(store)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with DISK.created(temporary) as fd:
            DISK.write(fd, json.dumps(asdict(record), indent=1).encode(), 0)
        try:
            os.link(temporary, path)
        except FileExistsError:
            found = read_record(path)
            if found.uuid == record.uuid:
                _check_job(path, found, record.job, "this command")
                if found.part == record.part:
                    return True
                raise SchemaError(
                    f"{path}: expected the record of part {record.part}, found that of part "
                    f"{found.part}; remove it, or choose another OUT"
                ) from None
            if not _is_stored(store, record):
                return False
            # that record is of a store that was here before, and was removed without its record
            temporary.replace(path)
        DISK.sync_dir(path.parent)
    finally:
        DISK.remove(temporary)
    return True


def _is_stored(store: Path, record: Record) -> bool:
    """Whether the store of a record is the one that is there."""
    with suppress(NotFoundError, FormatError):
        return read_manifest(store).uuid == record.uuid
    return False


def read_record(path: Path) -> Record:
    """Read a record; raises NotFoundError if there is none, and CorruptError if it is not one."""
    try:
        with path.open("rb") as file:
            return Record(**json.loads(file.read(MAX_BYTES)))
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: expected the record of a part, found none") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptError(
            f"{path}: expected the record of a part, found {error!s:.200}; remove it"
        ) from error


def find_parts(folder: Path, job: JobKey | None = None) -> FoundParts:
    """Find the whole parts in a folder; what is no whole part is left out and named.

    Raises NotFoundError: there is no such folder; SchemaError: there are parts of another job than
    `job`, or than the first; or one that was changed.
    """
    if not folder.is_dir():
        raise NotFoundError(f"{folder}: expected a folder with parts, found none; check the path")
    chosen: dict[int, Part] = {}
    like = "this command"
    left_out = []
    for record in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            part = find_part(record.with_name(record.name.removesuffix(SUFFIX)))
        except (CorruptError, NotFoundError) as error:
            left_out.append(f"left out: {error}")
            continue
        if job is None:
            job, like = part.record.job, f"the command of {part.path}"
        _check_job(part.path, part.record, job, like)
        number = part.record.part
        alike = chosen.setdefault(number, part)
        if alike is not part:
            again = f"part {number}/{part.record.n_parts} again, as {alike.path}"
            left_out.append(f"left out: {part.path}: {again}")
    left_out += [
        f"left out: {path}: expected a whole part, found a store without a completion record; "
        "run its command again"
        for path in sorted(folder.iterdir())
        if (path / GROUP_FILE).is_file() and not record_path(path).exists()
    ]
    parts = [chosen[number] for number in sorted(chosen)]
    return FoundParts(parts, job.n_parts if job else 0, left_out)


def find_part(store: Path) -> Part:
    """Return the whole part at a path.

    Raises NotFoundError, CorruptError: there is none; SchemaError: it is no longer what it was when
    it was whole.
    """
    path = record_path(store)
    record = read_record(path)
    number = f"part {record.part}/{record.n_parts}"
    try:
        found = read_manifest(store)
    except (NotFoundError, FormatError) as error:
        raise NotFoundError(f"{number}, a record without its store: {error}") from error
    if found.uuid != record.uuid:
        raise CorruptError(
            f"{store}: expected the store {record.uuid} of its record ({number}), found "
            f"{found.uuid}; remove {path.name} and run its command again"
        )
    if found.n_rows != record.n_rows:
        raise SchemaError(
            f"{store}: expected the {count(record.n_rows, 'trace')} of its record ({number}), "
            f"found {found.n_rows:,}: the part was changed since; remove it and {path.name}, and "
            "run its command again"
        )
    return Part(store, record)


def numbers_text(numbers: Iterable[int]) -> str:
    """[1, 2, 3, 7] -> '1-3,7', as sbatch also reads them."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in ranges)
