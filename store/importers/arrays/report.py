"""What became of an import: counts, and what was left out with the reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store.importers.file_imports import is_finite
from store.labels.score_table import ScoreTable
from store.reports import LeftOut, count, count_lines, first_ids
from store.traces.trace_ids import TraceNumbers

__all__ = ["ArrayReport"]


@dataclass
class ArrayReport:
    """What became of an import.

    Attributes
    ----------
    rows, unlabelled, not_finite
        Traces written, those of them without a label, and those with a NaN or an infinity in an
        array.
    """

    rows: int = 0
    unlabelled: int = 0
    not_finite: int = 0
    skipped: LeftOut = field(default_factory=LeftOut)
    bytes_done: int = 0
    bytes_all: int = 0
    scores_unused: int = 0
    scores_misfit: str = ""

    @property
    def whole(self) -> bool:
        """Whether everything was read, and scores, if given, fitted."""
        return not self.skipped.n and not self.scores_misfit

    @property
    def n_left_out(self) -> int:
        """Files, records and requests that are in no row."""
        return self.skipped.n

    def summary(self, path: Path) -> str:
        """Return what the store holds, and what was left out, a line each."""
        counts = [
            (self.unlabelled, "without a label"),
            (self.not_finite, "with a NaN or an infinity (kept)"),
        ]
        lines = [f"{path}: {count(self.rows, 'trace')}", *count_lines(counts)]
        lines += self.score_lines()
        if self.skipped.n:
            left_out = count(self.skipped.n, "file or record", "files or records")
            lines.append(f"  {left_out} left out")
        return "\n".join([*lines, *self.skipped.lines()])

    def score_lines(self) -> list[str]:
        """Return which scores were of no trace, and that none was of any."""
        unused = count(self.scores_unused, "score")
        lines = [f"  {unused} of traces or questions that are not there"]
        return [*(lines if self.scores_unused else []), *filter(None, [self.scores_misfit])]

    def count_row(self, row: Mapping[str, Any]) -> None:
        """Count a trace."""
        self.rows += 1
        self.unlabelled += bool(row.get("label", 0) < 0)
        # nothing predicted the first token: its log-probability is NaN
        numbers = [value[1:] if name == "logprob" else value for name, value in row.items()]
        self.not_finite += not all(map(is_finite, numbers))

    def add_scores(self, scores: ScoreTable, numbers: TraceNumbers) -> None:
        """Count the scores of traces and questions that are not there."""
        n_traces = sum(trace_id not in numbers for trace_id in scores.by_trace)
        n_questions = len(scores.by_question.keys() - numbers.seen.keys())
        self.scores_unused = n_traces + n_questions
        if self.scores_unused == len(scores):
            given = first_ids([*scores.by_trace, *scores.by_question])
            there = first_ids(numbers.seen)
            self.scores_misfit = (
                f"{scores.source}: none of its ids ({given}) is of a trace here "
                f"(questions {there}); mend the ids, then label the store: python -m store label"
            )

    def left_out(self, place: Sequence[int]) -> dict[str, Any]:
        """Return what was left out up to a place, for the provenance of a store; see `resume`."""
        return {
            "records": self.skipped.n,
            "first": list(self.skipped.messages),
            "not_finite": self.not_finite,
            "place": list(place),
        }

    def resume(self, left_out: dict[str, Any]) -> None:
        """Go on from what a stopped import had left out."""
        self.skipped = LeftOut(left_out["records"], list(left_out["first"]))
        self.not_finite = left_out["not_finite"]
