"""What became of an import: counts, and what was left out with the reasons."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store.reports import LeftOut, count, count_lines
from store.sources.legacy.files import describe_kind

__all__ = ["ImportReport"]


@dataclass
class ImportReport:
    """What became of an import.

    Attributes
    ----------
    rows
        Traces written.
    skipped
        Records left out.
    refused
        File -> why nothing of it was read.
    other_kinds
        Kind -> the refused files of that kind: they are whole, but belong into another store.
    unlabelled, repeated, not_finite
        Traces without a label, of a question that had one before, and with a NaN or an infinity in
        a stored array.
    scores_unused
        Scores of traces and questions that are not there.
    scores_misfit
        What to do if no score at all is of a trace that is there; else empty.
    bytes_done, bytes_all
        Of the files, for the progress.
    read
        The files that were meant to be read.
    """

    rows: int = 0
    skipped: LeftOut = field(default_factory=LeftOut)
    refused: dict[str, str] = field(default_factory=dict)
    other_kinds: dict[str, list[str]] = field(default_factory=dict)
    unlabelled: int = 0
    repeated: int = 0
    not_finite: int = 0
    scores_unused: int = 0
    scores_misfit: str = ""
    bytes_done: int = 0
    bytes_all: int = 0
    read: list[Path] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether everything was read, and scores, if given, fitted."""
        return not self.refused and not self.skipped.n and not self.scores_misfit

    def summary(self, path: Path) -> str:
        """Return what the store holds, and what was left out, a line each."""
        lines = [f"{path}: {count(self.rows, 'trace')}"]
        lines += count_lines(
            (
                (self.unlabelled, "without a label"),
                (self.repeated, "of a question that had one before"),
                (self.not_finite, "with a NaN or an infinity (kept)"),
            )
        )
        if self.scores_unused:
            scores = count(self.scores_unused, "score")
            lines.append(f"  {scores} of traces or questions that are not there")
        if self.skipped.n:
            lines.append(f"  {count(self.skipped.n, 'record')} left out")
        if self.refused:
            lines.append(f"  {count(len(self.refused), 'file')} left out")
        if self.scores_misfit:
            lines.append(self.scores_misfit)
        return "\n".join([*lines, *self.skipped.lines(), *self._refused_lines()])

    def _refused_lines(self) -> list[str]:
        """Return a line for each file left out, and one with a command for each other kind."""
        of_other_kinds = {file for files in self.other_kinds.values() for file in files}
        lines = [reason for file, reason in self.refused.items() if file not in of_other_kinds]
        for kind, files in self.other_kinds.items():
            others = [file for file in self.read if str(file) not in files]
            described = describe_kind(kind, [Path(file) for file in files], others)
            lines.append(f"  of another kind, {described}")
        return lines

    def left_out(self) -> dict[str, Any]:
        """Return what was left out, for the provenance of a store; see `resume`."""
        return {
            "records": self.skipped.n,
            "first": list(self.skipped.messages),
            "files": dict(self.refused),
            "not_finite": self.not_finite,
            "kinds": self.other_kinds,
        }

    def resume(self, left_out: dict[str, Any]) -> None:
        """Go on from what a stopped import had left out."""
        self.skipped = LeftOut(left_out["records"], list(left_out["first"]))
        self.refused |= left_out["files"]
        # a store of an earlier version has no kinds
        kinds = left_out.get("kinds", {})
        self.other_kinds = {kind: list(files) for kind, files in kinds.items()}
        self.not_finite = left_out["not_finite"]
