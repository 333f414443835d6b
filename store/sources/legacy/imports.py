"""Import of the older formats: files in, rows of one store out, one file in memory at a time.

The order of the rows is that of the files, sorted by name, and of the records in each. Every row
names its file in the column `source_file`, so a stopped import finds its place again in what it has
committed. A file or a record that cannot be read is left out and reported; the others go on.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import NotFoundError, SchemaError, StoreError, closest
from store.format.schema import Column, Schema
from store.format.values import encode_value
from store.read.store import TraceStore
from store.reports import LeftOut, count
from store.sources.labels import SCORE_THRESHOLD
from store.sources.legacy.contents import FileReader, Traces, is_torch, schema_of
from store.sources.legacy.fields import RecordError, Row
from store.sources.legacy.files import describe_kind, short_names
from store.sources.legacy.preprocessed import GraphTraces, Place, SequenceTraces, pair
from store.sources.legacy.report import ImportReport
from store.sources.pickles import MAX_BYTES
from store.sources.questions import MAX_ID_BYTES, TraceNumbers
from store.sources.scores import ScoreTable
from store.write.source import REMARKS

__all__ = ["ImportReport", "ImportSource"]

SHOWN_REASONS = 3  # why no trace is in any file
UNLABELLED = -1

_DAMAGE = (  # what NumPy, torch and Python raise for values that contradict each other
    StoreError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    MemoryError,
    RuntimeError,
)


@dataclass(frozen=True)
class _Survey:
    """What the files are.

    Attributes
    ----------
    preprocessed
        Graphs first.
    raw
        The other files.
    partners
        Graphs -> the sequence of the same trace.
    smallest_edge
        A threshold that all graphs were built with or above.
    """

    preprocessed: list[Path]
    raw: list[Path]
    partners: dict[Place, Place]
    smallest_edge: float


class ImportSource:
    """The traces in files of the older formats.

    Where both preprocessed graphs and preprocessed sequences (lstm) are given, the k-th graphs of a
    question and its k-th sequence are one trace; sequences without graphs follow as traces without
    tokens.

    Parameters
    ----------
    files
        In the order in which they are read.
    scores
        A file of scores or labels as `read_scores` gives it, or question id -> score. If given, it
        alone decides the labels, whatever the traces' files say.
    score_threshold
        Scores from here on count as right.
    columns
        Names to keep; all if None.
    keep_attention
        Keep the full attention maps of raw traces, as the column `attentions`.
    attn_threshold
        The threshold that preprocessed graphs were built with; None finds one that is safe.
    part
        (k, n): only every n-th file, beginning with the k-th; sequences follow their graphs.
    begun
        What a stopped import of the same files has committed.
    max_bytes
        Most bytes of one file.

    Raises
    ------
    SchemaError
        The files are of kinds that do not belong together, no trace can be read from any, a
        threshold is given for traces with full maps, or scores of trace ids for a part.
    """

    def __init__(
        self,
        files: Sequence[Path],
        scores: ScoreTable | Mapping[str, float] | None = None,
        *,
        score_threshold: float = SCORE_THRESHOLD,
        columns: Sequence[str] | None = None,
        keep_attention: bool = False,
        attn_threshold: float | None = None,
        part: tuple[int, int] = (1, 1),
        begun: TraceStore | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if isinstance(scores, Mapping):
            scores = ScoreTable.of_questions(scores)
        _check_part(scores, part)
        self._scores = scores
        self._score_threshold = score_threshold
        self._begun = begun
        self._names = dict(zip(files, short_names(files), strict=True))
        self._reader = FileReader(keep_attention, max_bytes)
        self._partner_reader = FileReader(keep_attention, max_bytes)
        self.report = ImportReport()
        self._numbers = TraceNumbers()
        # number of the file, and of its records that were left out: now, and by a stopped import
        self._place = (0, 0)
        self._known_place = (0, 0)

        survey = self._survey(files)
        self._partners = survey.partners
        self._joined = set(survey.partners.values())
        chosen = survey.preprocessed or survey.raw
        self._files = chosen[part[0] - 1 :: part[1]]
        if files and not self._files and not self.report.refused:
            raise NotFoundError(
                f"part {part[0]}/{part[1]}: expected files in it, found {len(files)} in all"
            )
        self.report.read = list(self._files)
        self.report.bytes_all = sum(file.stat().st_size for file in self._files)
        # every part of preprocessed files has the columns of the first graphs
        self._kind, first_row = self._first_row(survey.preprocessed or self._files)
        if attn_threshold is None:
            attn_threshold = survey.smallest_edge
        elif self._kind != GraphTraces.kind:
            raise SchemaError(
                f"attn_threshold: expected graphs, found {self._kind} traces; leave it out"
            )
        self.schema = _chosen_columns(schema_of(first_row), columns)
        self.provenance = {
            "source": "import",
            "format": self._kind,
            "files": len(files),
            "files_sha256": _sha256_of(self._names),
            **_describe_scores(scores, score_threshold),
            "attn_threshold": attn_threshold,
            "layer_convention": "as in the files: layers 1..L, the embedding output left out",
            "reductions": "of full attention maps in float32, then float16",
            "versions": {name: version(name) for name in ("numpy", "torch")},
            "part": list(part),
        }

    def _survey(self, files: Sequence[Path]) -> _Survey:
        """Look into the torch files, which are mapped; raise SchemaError if raw ones are there too."""
        graph_ids: dict[Path, list[str]] = {}
        sequence_ids: dict[Path, list[str]] = {}
        raw = []
        smallest_edge = 0.0
        for file in files:
            traces = self._open(file) if is_torch(file) else None
            if isinstance(traces, SequenceTraces):
                sequence_ids[file] = traces.question_ids
            elif isinstance(traces, GraphTraces):
                try:
                    smallest_edge = max(smallest_edge, traces.smallest_edge())
                    graph_ids[file] = traces.question_ids
                except _DAMAGE as error:
                    self._refuse(file, error)
            elif str(file) not in self.report.refused:
                raw.append(file)
        preprocessed = [*graph_ids, *sequence_ids]
        if raw and preprocessed:
            raise SchemaError(
                f"expected files of one kind, found {describe_kind('raw', raw, preprocessed)} and "
                f"{describe_kind('preprocessed', preprocessed, raw)}; "
                "import the two kinds into two stores"
            )
        return _Survey(preprocessed, raw, pair(graph_ids, sequence_ids), smallest_edge)

    def _open(self, file: Path) -> Traces | None:
        """Return the traces of a file, None if it is refused."""
        if str(file) in self.report.refused:
            return None
        try:
            return self._reader.read(file)
        except _DAMAGE as error:
            self._refuse(file, error)
            return None

    def _refuse(self, file: Path, error: Exception) -> None:
        """Leave a file out, with the reason in one line."""
        reason = _one_line(error)
        if not reason.startswith(str(file)):
            reason = f"{file}: {reason}"
        self.report.refused[str(file)] = reason

    def _first_row(self, files: Sequence[Path]) -> tuple[str, Row]:
        """Return the kind of the first file that has a whole record, and that record's row."""
        damaged = LeftOut()
        for file in files:
            traces = self._open(file)
            for i in range(len(traces) if traces else 0):
                try:
                    return traces.kind, self._complete(traces.row(i), file, i)
                except _DAMAGE as error:
                    damaged.add(f"{file}, record {i}: {_one_line(error)}")
        reasons = [*self.report.refused.values(), *damaged.messages][:SHOWN_REASONS]
        n_more = len(self.report.refused) + damaged.n - len(reasons)
        more = f"; and {n_more:,} more" if n_more else ""
        raise SchemaError(
            f"expected traces in {count(len(self._names), 'file')}, found none: "
            f"{'; '.join(reasons) or 'no record is in them'}{more}"
        )

    def rows(self, start: int = 0) -> Iterator[tuple[str, Row]]:
        """Yield `(trace_id, row)` of what is not in the store that was begun; see `Source`."""
        committed = self._resume(start)
        n_committed = Counter(committed)
        names = [self._names[file] for file in self._files]
        first = names.index(committed[-1]) if committed else 0
        bytes_done = 0
        for i, file in enumerate(self._files):
            if i >= first:
                self._place = (i, 0)
                yield from self._rows_of(file, n_committed[names[i]])
            bytes_done += file.stat().st_size
            self.report.bytes_done = bytes_done
        if self._scores is not None:
            self._report_scores(self._scores)

    def _resume(self, start: int) -> list[str]:
        """Go on from the report and the numbers of a stopped import.

        Returns
        -------
        list of str
            The file of each committed row.
        """
        self._numbers = TraceNumbers()
        self._known_place = (0, 0)
        begun = self._begun
        if not start or begun is None:
            return []
        left_out = begun.provenance.get(REMARKS)
        if left_out:
            self.report.resume(left_out)
            n_files, n_records = left_out["place"]
            self._known_place = (n_files, n_records)
        names = [
            name for name in ("source_file", "question_id", "label") if name in self.schema.columns
        ]
        batch = begun.read(range(start), names)
        for question_id, trace_id in zip(
            batch.texts("question_id"), begun.ids[:start], strict=True
        ):
            self._numbers.add(question_id, trace_id)
        self.report.rows = start
        self.report.repeated = start - len(self._numbers.seen)
        if "label" in batch:
            self.report.unlabelled = int((batch.fixed("label") < 0).sum())
        return batch.texts("source_file")

    @property
    def remarks(self) -> dict[str, Any]:
        """What was left out so far; it is committed with the rows, for a resumed import."""
        left_out = self.report.left_out() | {"place": list(self._place)}
        return {REMARKS: left_out} if any(left_out.values()) else {}

    def _rows_of(self, file: Path, n_committed: int) -> Iterator[tuple[str, Row]]:
        """Yield the rows of one file except the first `n_committed`."""
        traces = self._open(file)
        if traces is None or not self._is_of_kind(traces, file):
            return
        bytes_before = self.report.bytes_done
        size = file.stat().st_size
        for i in range(len(traces)):
            self.report.bytes_done = bytes_before + size * (i + 1) // len(traces)
            if (file, i) in self._joined:
                continue
            row = self._row(traces, file, i)
            if row is None:
                continue
            if n_committed:
                n_committed -= 1
                continue
            trace_id = self._numbers.give(row["question_id"])
            self._label(row, trace_id)
            self._count(row)
            yield trace_id, row

    def _is_of_kind(self, traces: Traces, file: Path) -> bool:
        """Return whether a file belongs to those before it; refuse it if not."""
        preprocessed = {GraphTraces.kind, SequenceTraces.kind}
        if traces.kind in (self._kind, "empty") or {traces.kind, self._kind} <= preprocessed:
            return True
        self.report.other_kinds.setdefault(traces.kind, []).append(str(file))
        reason = f"expected {self._kind} traces like the files before it, found {traces.kind}"
        self._refuse(file, SchemaError(f"{reason}; import it into another store"))
        return False

    def _row(self, traces: Traces, file: Path, i: int) -> Row | None:
        """Return a record's row, None if it is left out; of damaged graphs that of their sequence."""
        try:
            row = traces.row(i)
        except _DAMAGE as error:
            if (file, i) not in self._partners:
                self._leave_out(file, i, error)
                return None
            partner, k = self._partners[file, i]
            self._leave_out(file, i, error, f"; its sequence in {partner} is kept without graphs")
            return self._sequence_row(partner, k, file)
        try:
            return self._checked(self._complete(row, file, i))
        except _DAMAGE as error:
            self._leave_out(file, i, error)
            return None

    def _sequence_row(self, partner: Path, k: int, file: Path) -> Row | None:
        """Return the row of a sequence whose graphs in `file` are damaged."""
        try:
            row = self._partner_reader.read(partner).row(k)
            return self._checked(self._with_file(row, file))
        except _DAMAGE as error:
            self._leave_out(partner, k, error)
            return None

    def _leave_out(self, file: Path, i: int, error: Exception, more: str = "") -> None:
        """Report a record that is left out, unless the stopped import has."""
        n_files, n_records = self._place
        self._place = (n_files, n_records + 1)
        if self._place > self._known_place:
            self.report.skipped.add(f"{file}, record {i}: {_one_line(error)}{more}")

    def _complete(self, row: Row, file: Path, i: int) -> Row:
        """Return a row with what its record alone does not say."""
        if (file, i) in self._partners:
            partner, k = self._partners[file, i]
            states = self._partner_reader.read(partner).row(k)["hs_last"]
            if not _are_close(states, row["hs_last"]):
                raise RecordError(
                    f"expected the states of the last token as in {partner}, record {k}, of the "
                    "same question, found others; import the two kinds into two stores"
                )
            row["hs_last"] = states
        return self._with_file(row, file)

    def _with_file(self, row: Row, file: Path) -> Row:
        """Return a row with the name of its file, and with score and label, which are still empty."""
        empty = {"score": np.float32(math.nan), "source_file": self._names[file]}
        if self._scores is not None or "label" not in row:
            empty["label"] = np.int8(UNLABELLED)
        return row | empty

    def _checked(self, row: Row) -> Row:
        """Return the columns that are kept; raise RecordError if one does not fit the schema."""
        question_id = row["question_id"]
        if not 0 < len(question_id.encode()) <= MAX_ID_BYTES:
            raise RecordError(
                f"question_id: expected 1 to {MAX_ID_BYTES} bytes, found {question_id!r:.100}"
            )
        checked = {}
        for name, column in self.schema.columns.items():
            value = row.get(name, _nothing(column))
            if value is None:
                raise RecordError(
                    f"expected a value for {name!r} as in the traces before, found none"
                )
            encode_value(value, column, f"column {name!r}")
            checked[name] = value
        return checked

    def _label(self, row: Row, trace_id: str) -> None:
        """Set the score and label of a trace; its own come before those of its question."""
        if self._scores is None:
            return
        value = self._scores.value_of(trace_id, row["question_id"])
        if value is None:
            return
        score, label = self._scores.judge(value, self._score_threshold)
        if "score" in row:
            row["score"] = np.float32(score)
        if "label" in row:
            row["label"] = np.int8(label)

    def _count(self, row: Row) -> None:
        self.report.rows += 1
        self.report.repeated += self._numbers.seen[row["question_id"]] > 1
        self.report.unlabelled += bool(row.get("label", 0) < 0)
        arrays = [value for name, value in row.items() if name != "score"]
        self.report.not_finite += any(map(_has_not_finite, arrays))

    def _report_scores(self, scores: ScoreTable) -> None:
        """Count the scores of traces and questions that are not there; say it if these are all."""
        questions = self._numbers.seen
        n_traces = sum(trace_id not in self._numbers for trace_id in scores.by_trace)
        self.report.scores_unused = n_traces + len(scores.by_question.keys() - questions.keys())
        if self.report.scores_unused == len(scores):
            given = _first_ids([*scores.by_trace, *scores.by_question])
            self.report.scores_misfit = (
                f"{scores.source}: none of its ids ({given}) is of a trace here (questions "
                f"{_first_ids(questions)}); "
                "mend the ids, then label the store: python -m store label"
            )


def _check_part(scores: ScoreTable | None, part: tuple[int, int]) -> None:
    """Raise SchemaError for scores by trace id in a part, which numbers its traces by itself."""
    if scores is not None and scores.by_trace and part[1] > 1:
        raise SchemaError(
            f"{scores.source}: part {part[0]}/{part[1]} numbers the traces of a question by "
            "itself, so scores by trace_id could go to others; leave out --scores, merge the "
            "parts, then python -m store label"
        )


def _chosen_columns(schema: Schema, columns: Sequence[str] | None) -> Schema:
    """Return the columns to keep, with those that an import cannot do without."""
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.columns:
            like = closest(name, schema.columns)
            raise NotFoundError(
                f"columns: expected some of {list(schema.columns)}, found {name!r:.200}{like}"
            )
    kept = {"question_id", "source_file", *columns}
    return Schema({name: column for name, column in schema.columns.items() if name in kept})


def _sha256_of(names: Mapping[Path, str]) -> str:
    """Return a checksum of the files' names, sizes and times, not of their contents."""
    lines = []
    for file, name in names.items():
        stat = file.stat()
        lines.append(f"{name}\t{stat.st_size}\t{stat.st_mtime_ns}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _describe_scores(scores: ScoreTable | None, threshold: float) -> dict[str, Any]:
    """Return which scores decide the labels, and how, for the provenance."""
    if scores is None:
        return {"scores_sha256": None, "score_threshold": threshold}
    described: dict[str, Any] = {"scores_sha256": scores.sha256, "score_threshold": threshold}
    # of other scores an earlier version wrote no rule, and its stopped imports go on
    if scores.kind == "label" or scores.lower_is_better:
        described["label_rule"] = scores.rule
        described["score_threshold"] = scores.stored_threshold(threshold)
    return described


def _first_ids(ids: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(f"{name!r:.60}" for name in islice(ids, 3)) or "none"


def _nothing(column: Column) -> np.ndarray | str | None:
    """Return what a row has for a value that its record need not have."""
    if column.is_text:
        return ""
    return np.empty((0, *column.item_shape), column.storage_dtype) if column.axis else None


def _one_line(error: Exception) -> str:
    """Return what is wrong, from an error of this package or of a library."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, StoreError):
        return text
    return f"expected a whole trace, found {type(error).__name__}: {text}"


def _are_close(states: np.ndarray, others: np.ndarray) -> bool:
    """Return whether states are the same but for rounding to half precision."""
    return states.shape == others.shape and np.allclose(
        states.astype(float), others.astype(float), rtol=2e-3, atol=1e-5, equal_nan=True
    )


def _has_not_finite(value: object) -> bool:
    """Return whether an array holds a NaN or an infinity."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.size:
        return False
    exponent = {2: 0x7C00, 4: 0x7F800000}.get(value.itemsize)
    if exponent is None:
        return not np.isfinite(value).all()
    # of NumPy's isfinite half precision is slow: all bits of the exponent are set in such values
    bits = np.ascontiguousarray(value).view(f"u{value.itemsize}")
    return bool(((bits & exponent) == exponent).any())
