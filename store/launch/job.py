"""The job of a launch: one command, cut into parts that are stores beside the one to make."""

import argparse
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from store.extras import version_text
from store.launch.completed_parts import JobKey
from store.sources.questions.files import RAGTRUTH_SOURCES

__all__ = ["Job", "Task", "arguments_digest", "parts_folder", "questions_digest"]

# what is recorded by itself; then where a part goes and how it is computed, which may differ from
# worker to worker
UNDECIDING = {"sources", "questions"} | {
    "store",
    "part",
    "typed",
    "inspect",
    "batch_size",
    "device",
    "device_map",
    "max_file_gb",
}


@dataclass(frozen=True)
class Task:
    """A part to make, as a worker gets it."""

    arguments: tuple[str, ...]  # of `python -m store`
    store: Path  # the part
    folder: Path  # where the command runs
    version: str  # of this package, which the worker has to have as well

    @property
    def log(self) -> Path:
        """Where the output of all attempts goes."""
        return self.store.with_suffix(".log")


@dataclass(frozen=True)
class Job:
    """One import or extraction in parts."""

    arguments: tuple[str, ...]  # behind its OUT
    out: Path  # the store to make, absolute
    key: JobKey  # what its parts have in common
    folder: Path  # where the command was typed: relative paths in the arguments are of it

    @property
    def n_parts(self) -> int:
        return self.key.n_parts

    def part_path(self, part: int) -> Path:
        """Return where a part is made: numbers in names are padded, so that they sort."""
        return parts_folder(self.out) / f"{self.part_name(f'{part:04d}')}.zarr"

    def part_name(self, number: str) -> str:
        return f"part-{number}-of-{self.n_parts:04d}"

    def task(self, part: int) -> Task:
        store = self.part_path(part)
        numbered = (self.key.command, "--part", f"{part}/{self.n_parts}")
        arguments = (*numbered, str(store), *self.arguments)
        return Task(arguments, store, self.folder, version_text())


def parts_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.parts")


def arguments_digest(args: argparse.Namespace) -> str:
    """Return the SHA-256 of the arguments that decide the rows, as hexadecimal digits.

    A file that an option names counts by its content, a folder by its name. Raises OSError if one
    cannot be read.
    """
    deciding = {
        name: _stable(value) for name, value in vars(args).items() if name not in UNDECIDING
    }
    canonical = json.dumps(deciding, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _stable(value: object) -> object:
    if isinstance(value, Path):
        return {"sha256": file_digest(value)}
    if isinstance(value, str) and os.path.isfile(value):  # noqa: PTH113 - it may be a long text
        return _stable(Path(value))
    if isinstance(value, str) and os.path.isdir(value):  # noqa: PTH112
        return os.path.realpath(value)
    return value


def questions_digest(path: Path) -> str:
    """Return the SHA-256 of a file of questions, and of the sources that RAGTruth has beside it."""
    beside = path.with_name(RAGTRUTH_SOURCES)
    if not beside.is_file():
        return file_digest(path)
    both = file_digest(path) + file_digest(beside)
    return hashlib.sha256(both.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
