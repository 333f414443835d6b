"""What became of an import of files: counts, and what was left out with the reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from store.labels.rule import ScoreTable
from store.reports import LeftOut, count, count_lines, first_ids
from store.traces.trace_ids import TraceNumbers

__all__ = ["FileReport"]

EXPONENTS = {"float16": 0x7C00, "bfloat16": 0x7F80}  # their bits


@dataclass
class FileReport:
    """What became of an import."""

    rows: int = 0  # traces written
    not_finite: int = 0  # of them, with a NaN or an infinity in an array
    repeated: int = 0  # of them, of a question that had one before
    skipped: LeftOut = field(default_factory=LeftOut)  # files, records and requests in no row
    bytes_done: int = 0
    bytes_all: int = 0
    scores_unused: int = 0  # of traces and questions that are not there
    scores_misfit: str = ""  # what to do if no score at all is of a trace that is there

    @property
    def whole(self) -> bool:
        """Whether everything was read, and scores, if given, fitted."""
        return not self.skipped.n and not self.scores_misfit

    def summary(self, path: Path) -> str:
        """Return what the store holds, and what was left out, a line each."""
        numbers = [
            (self.repeated, "of a question that had one before"),
            (self.not_finite, "with a NaN or an infinity (kept)"),
        ]
        lines = [f"{path}: {count(self.rows, 'trace')}", *count_lines(numbers)]
        if self.scores_unused:
            unused = count(self.scores_unused, "score")
            lines.append(f"  {unused} of traces or questions that are not there")
        lines += filter(None, [self.scores_misfit])
        if self.skipped.n:
            lines.append(
                f"  {count(self.skipped.n, 'file or record', 'files or records')} left out"
            )
        return "\n".join([*lines, *self.skipped.lines()])

    def count_row(self, row: Mapping[str, Any]) -> None:
        self.rows += 1
        # nothing predicted the first token: its log-probability is NaN
        numbers = [value[1:] if name == "logprob" else value for name, value in row.items()]
        self.not_finite += not all(map(_is_finite, numbers))

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

    def restart(self, n_rows: int) -> None:
        """Count again, from so many rows on that are there."""
        self.rows = n_rows
        self.skipped = LeftOut()
        self.bytes_done = self.not_finite = 0

    def resume(self, left_out: dict[str, Any]) -> None:
        """Go on from what a stopped import had left out."""
        self.skipped = LeftOut(left_out["records"], list(left_out["first"]))
        self.not_finite = left_out["not_finite"]


def _is_finite(value: object) -> bool:
    """Return whether a value is no array with a NaN or an infinity.

    NumPy's isfinite is slow for half precision: there such values have all bits of the exponent
    set.
    """
    if not isinstance(value, np.ndarray):
        return True
    if value.dtype.name not in EXPONENTS:
        return value.dtype.kind != "f" or bool(np.isfinite(value).all())
    exponent = np.uint16(EXPONENTS[value.dtype.name])
    bits = np.ascontiguousarray(value).view(np.uint16)
    return not ((bits & exponent) == exponent).any()
