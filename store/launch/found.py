"""Which parts of a store are whole, as their completion records say.

What is no whole part is left out and named; parts of two commands are refused, because it
is unknown which was meant.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from store.errors import CorruptError, FormatError, NotFoundError, SchemaError
from store.format.manifest import GROUP_FILE, read_manifest
from store.launch.records import SUFFIX, Record, read_record, record_path, store_path
from store.reports import count

__all__ = [
    "FoundParts",
    "Part",
    "find_part",
    "find_parts",
    "numbers_text",
]


@dataclass(frozen=True)
class Part:
    """A whole part: its store, and the record of it."""

    path: Path
    record: Record


@dataclass(frozen=True)
class FoundParts:
    """The whole parts of one job.

    Attributes
    ----------
    parts
        One for each number that there is, ascending.
    n_parts
        How many there should be; 0 if none was found.
    left_out
        A line for each thing that is no part, or the same as another.
    """

    parts: list[Part]
    n_parts: int
    left_out: list[str]

    @property
    def missing(self) -> list[int]:
        """The numbers of the parts that there are not, ascending."""
        numbers = {part.record.part for part in self.parts}
        return [number for number in range(1, self.n_parts + 1) if number not in numbers]


def find_parts(folder: Path) -> FoundParts:
    """Find the whole parts in a folder.

    Raises
    ------
    NotFoundError
        There is no such folder.
    SchemaError
        There are parts of two commands, or of another number of parts, or one that was changed.
    """
    if not folder.is_dir():
        raise NotFoundError(f"{folder}: expected a folder with parts, found none; check the path")
    parts: list[Part] = []
    left_out = []
    for record in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            parts.append(find_part(store_path(record)))
        except (CorruptError, NotFoundError) as error:
            left_out.append(f"left out: {error}")
    chosen: dict[int, Part] = {}
    for part in parts:
        _check_same_job(parts[0], part)
        number = part.record.part
        first = chosen.setdefault(number, part)
        if first is not part:
            left_out.append(
                f"left out: {part.path}: part {number}/{part.record.n_parts} again, as {first.path}"
            )
    left_out += _without_records(folder)
    n_parts = parts[0].record.n_parts if parts else 0
    return FoundParts([chosen[number] for number in sorted(chosen)], n_parts, left_out)


def find_part(store: Path) -> Part:
    """Return the whole part at a path.

    Raises
    ------
    NotFoundError, CorruptError
        There is none.
    SchemaError
        It is no longer what it was when it was whole.
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


def _without_records(folder: Path) -> list[str]:
    """A line for each store in a folder that no record calls whole."""
    return [
        f"left out: {path}: expected a whole part, found a store without a completion record; "
        "run its command again"
        for path in sorted(folder.iterdir())
        if (path / GROUP_FILE).is_file() and not record_path(path).exists()
    ]


def _check_same_job(first: Part, other: Part) -> None:
    expected = first.record
    found = other.record
    number = f"part {found.part}/{found.n_parts}"
    if found.job != expected.job:
        same_arguments = found.job[:2] == expected.job[:2]
        difference = "other inputs" if same_arguments else "another command"
        raise SchemaError(
            f"{other.path}: expected a part of the same command as {first.path}, found {number} "
            f"of {difference}; move it away"
        )
    if found.n_parts != expected.n_parts:
        raise SchemaError(
            f"{other.path}: expected one of {expected.n_parts} parts as {first.path}, found "
            f"{number}; move it away"
        )


def numbers_text(numbers: Iterable[int]) -> str:
    """[1, 2, 3, 7] -> '1-3,7', as sbatch also reads them."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in ranges)
