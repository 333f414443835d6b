"""What became of an import of the older formats."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from store.importers.legacy.kinds import describe_files, import_command
from store.importers.report import FileReport
from store.reports import count

__all__ = ["ImportReport"]


@dataclass
class ImportReport(FileReport):
    """What became of an import: besides what any says, files of other kinds.

    Attributes
    ----------
    kind
        What the files are that the traces come from.
    other_kinds
        Kind -> the refused files of that kind: they are whole, but belong into another store.
    """

    kind: str = ""
    other_kinds: dict[str, list[str]] = field(default_factory=dict)
    read: list[Path] = field(default_factory=list)

    def _counts(self) -> Iterator[tuple[int, str]]:
        yield self.unlabelled, "without a label"
        yield self.repeated, "of a question that had one before"
        yield self.not_finite, "with a NaN or an infinity (kept)"

    def _left_out_lines(self) -> Iterator[str]:
        """Yield how many records and files, why, and the commands for files of other kinds."""
        for n, noun in ((self.skipped.n, "record"), (len(self.refused), "file")):
            if n:
                yield f"  {count(n, noun)} left out"
        yield from self.skipped.lines()
        of_other_kinds = set(chain.from_iterable(self.other_kinds.values()))
        yield from (self.refused[name] for name in self.refused if name not in of_other_kinds)
        if self.other_kinds:
            own = [file for file in self.read if str(file) not in self.refused]
            yield f"  imported: {describe_files(self.kind, own)}"
        for kind, names in self.other_kinds.items():
            files = list(map(Path, names))
            others = [file for file in self.read if file not in files]
            yield f"  of another kind: {describe_files(kind, files)}; import them with"
            yield import_command(kind, files, others)

    def left_out(self, place: Sequence[int]) -> dict[str, Any]:
        """Return what was left out up to a place, with the refused files and their kinds."""
        files = {"files": dict(self.refused), "kinds": self.other_kinds}
        return super().left_out(place) | files

    def resume(self, left_out: dict[str, Any]) -> None:
        """Go on from what a stopped import had left out."""
        super().resume(left_out)
        self.refused |= left_out["files"]
        self.other_kinds |= {kind: list(files) for kind, files in left_out["kinds"].items()}
