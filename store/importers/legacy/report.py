"""What became of an import: counts, and what was left out with the reasons."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from store.importers.arrays.report import ArrayReport
from store.importers.legacy.fields import Row
from store.importers.legacy.files import describe_files, import_command
from store.reports import count, count_lines

__all__ = ["ImportReport"]


@dataclass
class ImportReport(ArrayReport):
    """What became of an import: besides what any says, kinds, refused files, and scores.

    Attributes
    ----------
    kind
        What the files are that the traces come from.
    refused
        File -> why nothing of it was read.
    other_kinds
        Kind -> the refused files of that kind: they are whole, but belong into another store.
    repeated
        Traces of a question that had one before.
    scores_unused
        Scores of traces and questions that are not there.
    scores_misfit
        What to do if no score at all is of a trace that is there; else empty.
    """

    kind: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    other_kinds: dict[str, list[str]] = field(default_factory=dict)
    repeated: int = 0
    read: list[Path] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether everything was read, and scores, if given, fitted."""
        return not self.refused and super().whole

    @property
    def n_left_out(self) -> int:
        """Files and records that are in no row."""
        return len(self.refused) + self.skipped.n

    def summary(self, path: Path) -> str:
        """Return what the store holds, and what was left out, a line each."""
        counts = [
            (self.unlabelled, "without a label"),
            (self.repeated, "of a question that had one before"),
            (self.not_finite, "with a NaN or an infinity (kept)"),
        ]
        lines = [f"{path}: {count(self.rows, 'trace')}", *count_lines(counts)]
        lines += self.score_lines()
        not_used = [
            (self.skipped.n, "record", "left out"),
            (len(self.refused), "file", "left out"),
        ]
        lines += [f"  {count(n, noun)} {why}" for n, noun, why in not_used if n]
        return "\n".join([*lines, *self.skipped.lines(), *self._refused_lines()])

    def _refused_lines(self) -> list[str]:
        """Return a line for each file left out, and the commands for those of other kinds."""
        reasons = dict(self.refused)
        for name in chain.from_iterable(self.other_kinds.values()):
            reasons.pop(name, None)
        return [*reasons.values(), *self._other_kind_lines()]

    def _other_kind_lines(self) -> list[str]:
        """Return which files are in the store, and for each other kind a command to copy."""
        if not self.other_kinds:
            return []
        own = [file for file in self.read if str(file) not in self.refused]
        lines = [f"  imported: {describe_files(self.kind, own)}"]
        for kind, names in self.other_kinds.items():
            files = list(map(Path, names))
            others = [file for file in self.read if file not in files]
            lines.append(f"  of another kind: {describe_files(kind, files)}; import them with")
            lines.append(import_command(kind, files, others))
        return lines

    def left_out(self, place: Sequence[int]) -> dict[str, Any]:
        """Return what was left out up to a place, with the refused files and their kinds."""
        files = {"files": dict(self.refused), "kinds": self.other_kinds}
        return super().left_out(place) | files

    def resume(self, left_out: dict[str, Any]) -> None:
        """Go on from what a stopped import had left out."""
        super().resume(left_out)
        self.refused |= left_out["files"]
        # a store of an earlier version has no kinds
        kinds = left_out.get("kinds", {})
        self.other_kinds |= {kind: list(files) for kind, files in kinds.items()}

    def add(self, row: Row, n_of_question: int) -> None:
        """Count a trace, the n-th of its question."""
        self.count_row(row)
        self.repeated += n_of_question > 1
