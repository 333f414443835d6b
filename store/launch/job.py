"""The job of a launch: one command, cut into parts that are stores beside the one to make. Pure."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Job", "Task", "parts_folder"]


@dataclass(frozen=True)
class Task:
    """One attempt at a part.

    Attributes
    ----------
    part
        Its number, from 1.
    attempt
        From 1.
    arguments
        Of `python -m store`.
    log
        Where its output goes, behind that of earlier attempts.
    folder
        Where the command runs.
    """

    part: int
    attempt: int
    arguments: tuple[str, ...]
    log: str
    folder: str


@dataclass(frozen=True)
class Job:
    """One import or extraction in parts.

    Attributes
    ----------
    arguments
        The command and its arguments as for one store.
    out_index
        Which of them is the path of that store.
    out
        That path, absolute.
    n_parts
        Into how many parts it is cut.
    arguments_sha256, inputs_sha256
        See `store.launch.identity`.
    folder
        Where the command was typed: relative paths in the arguments are of it.
    """

    arguments: tuple[str, ...]
    out_index: int
    out: Path
    n_parts: int
    arguments_sha256: str
    inputs_sha256: str
    folder: Path

    @property
    def command(self) -> str:
        return self.arguments[0]

    def part_path(self, part: int) -> Path:
        """Return where a part is made: numbers in names are padded, so that they sort."""
        return parts_folder(self.out) / f"{self.part_name(f'{part:04d}')}.zarr"

    def part_name(self, number: str) -> str:
        return f"part-{number}-of-{self.n_parts:04d}"

    def log_path(self, part: int) -> Path:
        return self.part_path(part).with_suffix(".log")

    def task(self, part: int, attempt: int) -> Task:
        """Return an attempt at a part."""
        command, *rest = self.arguments
        rest[self.out_index - 1] = str(self.part_path(part))
        arguments = (command, "--part", f"{part}/{self.n_parts}", *rest)
        return Task(part, attempt, arguments, str(self.log_path(part)), str(self.folder))


def parts_folder(out: Path) -> Path:
    """Return where the parts of the store at `out` are made."""
    return out.with_name(f"{out.name}.parts")
