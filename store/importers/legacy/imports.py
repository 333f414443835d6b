"""Import of the older formats: files in, rows of one store out, one file in memory at a time.

The order of the rows is that of the files, sorted by name, and of the records in each. Every row
names its file in the column `source_file`, so a stopped import finds its place again in what it has
committed. A file or a record that cannot be read is left out and reported; the others go on.
"""

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import NotFoundError, SchemaError
from store.importers.file_imports import (
    check_scores_of_part,
    digest_files,
    no_traces,
    read_committed,
)
from store.importers.legacy.columns import check_row, choose_columns, schema_of
from store.importers.legacy.contents import FileReader, Traces
from store.importers.legacy.fields import DAMAGE, Row, one_line
from store.importers.legacy.files import short_names
from store.importers.legacy.generations import UNCLEAR, WITHOUT_IDS, belongs_to, stored_name
from store.importers.legacy.partners import Partners, Place
from store.importers.legacy.positions import Positions
from store.importers.legacy.preprocessed import GraphTraces, PreprocessedTraces
from store.importers.legacy.report import ImportReport
from store.importers.legacy.resume import Done, find_place
from store.importers.legacy.survey import survey_files
from store.importers.pickles import MAX_BYTES
from store.labels.answer_scores import SCORE_THRESHOLD
from store.labels.rule import UNLABELLED
from store.labels.score_table import ScoreTable
from store.read.store import TraceStore
from store.reports import LeftOut
from store.traces.trace_ids import TraceNumbers
from store.write.source import REMARKS

__all__ = ["ImportReport", "ImportSource"]

BY_STEP = ("raw A", "raw B", "raw C", "raw D")


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
        Of a file of scores or labels. If given, it alone decides the labels; those in the traces'
        files do not count.
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
        scores: ScoreTable | None = None,
        *,
        score_threshold: float = SCORE_THRESHOLD,
        columns: Sequence[str] | None = None,
        keep_attention: bool = False,
        attn_threshold: float | None = None,
        part: tuple[int, int] = (1, 1),
        begun: TraceStore | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        check_scores_of_part(scores, part, "leave out --scores")
        self._scores = scores
        self._score_threshold = score_threshold
        self._begun = begun
        self._names = dict(zip(files, short_names(files), strict=True))
        self.report = ImportReport()
        self._reader = FileReader(keep_attention, max_bytes, self.report.refused)

        survey = survey_files(files, self._reader)
        partner_reader = FileReader(keep_attention, max_bytes, self.report.refused)
        self._partners = Partners(survey.question_ids, partner_reader)
        self._files = survey.files[part[0] - 1 :: part[1]]
        if files and not self._files and not self.report.refused:
            raise NotFoundError(
                f"part {part[0]}/{part[1]}: expected files in it, found {len(files)} in all"
            )
        self.report.read = self._files
        self.report.bytes_all = sum(file.stat().st_size for file in self._files)
        # every part of preprocessed files has the columns of the first graphs
        first_files = survey.files if survey.is_preprocessed else self._files
        self._kind, first_row = self._first_row(first_files)
        self.report.kind = self._kind
        self._positions = Positions(survey.files, self._kind, self._reader)
        self._first_position = 0  # of the file that is read
        self.schema = choose_columns(schema_of(first_row), columns)
        if attn_threshold is None:
            attn_threshold = survey.smallest_edge
        elif self._kind != GraphTraces.kind:
            raise SchemaError(
                f"attn_threshold: expected graphs, found {self._kind} traces; leave it out"
            )
        self.provenance = {
            "source": "import",
            "format": stored_name(self._kind),
            "files": len(files),
            "files_sha256": digest_files((name, file) for file, name in self._names.items()),
            **_describe_scores(scores, score_threshold),
            "attn_threshold": attn_threshold,
            "layer_convention": "as in the files: layers 1..L, the embedding output left out",
            "reductions": "of full attention maps in float32, then float16",
            "versions": {name: version(name) for name in ("numpy", "torch")},
            "part": list(part),
            **_describe_kind(self._kind),
        }

    def _first_row(self, files: Sequence[Path]) -> tuple[str, Row]:
        """Return the kind of the first file that has a whole record, and that record's row."""
        damaged = LeftOut()
        for file in files:
            traces = self._reader.open(file)
            row = self._first_whole(traces, file, damaged)
            if row is not None:
                return traces.kind, row
        refused = self.report.refused
        reasons = [*refused.values(), *damaged.messages]
        raise no_traces(len(self._names), reasons, len(refused) + damaged.n)

    def _first_whole(self, traces: Traces, file: Path, damaged: LeftOut) -> Row | None:
        """Return the row of a file's first whole record; note those before it."""
        for i in traces.typical_first:
            try:
                row = self._partners.join(traces.row(i), (file, i))
            except DAMAGE as error:
                damaged.add(_left_out((file, i), error))
                continue
            if row["question_id"] is None:
                row["question_id"] = str(i)  # any text: only its type counts
            return self._with_file(row, file)
        return None

    def rows(self, start: int = 0) -> Iterator[tuple[str, Row]]:
        """Yield `(trace_id, row)` of what is not in the store that was begun; see `Source`."""
        report = self.report
        done = self._resume(start)
        bytes_done = 0
        for i, file in enumerate(self._files):
            report.bytes_done = bytes_done
            bytes_done += file.stat().st_size
            if i == done.file:
                self._place = (i, done.left_out)
                yield from self._rows_of(file, done)
            elif i > done.file:
                self._place = (i, 0)
                yield from self._rows_of(file, Done())
        report.bytes_done = bytes_done
        if self._scores is not None:
            report.add_scores(self._scores, self._numbers)

    def _resume(self, start: int) -> Done:
        """Go on from the report and the numbers of a stopped import; return where it stopped."""
        report = self.report
        numbers = TraceNumbers()
        self._numbers = numbers
        # number of the file, and of its records that were left out: now, and by a stopped import
        self._place = (0, 0)
        self._known_place: tuple[int, ...] = ()
        if not start:
            return Done()
        committed = read_committed(self._begun, start, labels="label" in self.schema.columns)
        if committed.left_out:
            report.resume(committed.left_out)
            self._known_place = tuple(committed.left_out["place"])
        for question_id, trace_id in zip(committed.question_ids, committed.trace_ids, strict=True):
            numbers.add(question_id, trace_id)
        report.rows = start
        report.repeated = start - len(numbers.seen)
        report.unlabelled = committed.n_unlabelled
        names = [self._names[file] for file in self._files]
        is_raw = self._kind.startswith("raw")
        return find_place(names, committed.files, self._known_place, is_raw)

    @property
    def remarks(self) -> dict[str, Any]:
        """What was left out so far; it is committed with the rows, for a resumed import."""
        return {REMARKS: self.report.left_out(self._place)}

    def _rows_of(self, file: Path, done: Done) -> Iterator[tuple[str, Row]]:
        """Yield the rows of one file except those that are done."""
        n_committed = done.n_rows
        if self._kind.endswith(WITHOUT_IDS):
            self._find_position(file)
        traces = self._reader.open(file)
        if not self._is_of_kind(traces, file):
            return
        report = self.report
        bytes_before = report.bytes_done
        size = file.stat().st_size
        for i in range(done.n_records, len(traces)):
            report.bytes_done = bytes_before + size * (i + 1) // len(traces)
            if (file, i) in self._partners.joined:
                continue
            row = self._row(traces, (file, i))
            if row is None:
                continue
            if n_committed:
                n_committed -= 1
                continue
            question_id = row["question_id"]
            trace_id = self._numbers.give(question_id)
            if self._scores is not None:
                _set_label(row, trace_id, self._scores, self._score_threshold)
            report.add(row, self._numbers.seen[question_id])
            yield trace_id, row

    def _is_of_kind(self, traces: Traces, file: Path) -> bool:
        """Return whether a file belongs to those before it; refuse it if not."""
        kind = traces.kind
        # the survey has refused preprocessed files beside raw ones
        if isinstance(traces, PreprocessedTraces) or kind in ("empty", UNCLEAR):
            return True
        if belongs_to(kind, self._kind):
            return True
        files = self.report.other_kinds.setdefault(kind, [])
        files.append(str(file))
        error = SchemaError(
            f"expected {self._kind} traces like the files before it, found {kind}; "
            "import it into another store"
        )
        self._reader.refuse(file, error)
        return False

    def _find_position(self, file: Path) -> None:
        """Find the position of a file's first record; refuse the file if it is not known."""
        try:
            self._first_position = self._positions.first_of(file)
        except SchemaError as error:
            self._reader.refuse(file, error)

    def _row(self, traces: Traces, place: Place) -> Row | None:
        """Return the row of a record, of its sequence if graphs are damaged, None if left out."""
        file, i = place
        source = place  # of most of the row
        try:
            row = traces.row(i)
            if self._kind.endswith(WITHOUT_IDS):
                _set_position(row, self._first_position + i)
        except DAMAGE as error:
            if place not in self._partners.sequence_of:
                self._leave_out(place, error)
                return None
            row = {}
            source = self._partners.sequence_of[place]
            self._leave_out(place, error, f"; its sequence in {source[0]} is kept without graphs")
        try:
            row = self._partners.join(row, place)
            return check_row(self._with_file(row, file), self.schema)
        except DAMAGE as error:
            self._leave_out(source, error)
            return None

    def _leave_out(self, place: Place, error: Exception, more: str = "") -> None:
        """Report a record that is left out, unless the stopped import has."""
        n_files, n_records = self._place
        self._place = (n_files, n_records + 1)
        if self._place > self._known_place:
            self.report.skipped.add(_left_out(place, error) + more)

    def _with_file(self, row: Row, file: Path) -> Row:
        """Return a row with the name of its file, and with score and label, still empty."""
        row["source_file"] = self._names[file]
        row["score"] = np.float32(np.nan)
        if self._scores is not None or "label" not in row:
            row["label"] = np.int8(UNLABELLED)
        return row


def _left_out(place: Place, error: Exception) -> str:
    file, i = place
    return f"{file}, record {i}: {one_line(error)}"


def _set_position(row: Row, position: int) -> None:
    """Give a row without an id its position; an id that it has must be the same."""
    question_id = str(position)
    if row["question_id"] not in (None, question_id):
        raise SchemaError(
            f"expected {question_id} as id, its position, by which the files without ids are "
            f"numbered, found {row['question_id']!r:.100}; import it into another store"
        )
    row["question_id"] = question_id


def _set_label(row: Row, trace_id: str, scores: ScoreTable, threshold: float) -> None:
    """Set the score and label of a trace; its own come before those of its question."""
    value = scores.value_of(trace_id, row["question_id"])
    if value is None:
        return
    score, label = scores.judge(value, threshold)
    judged = {"score": np.float32(score), "label": np.int8(label)}
    row.update({name: judged[name] for name in judged.keys() & row.keys()})


def _describe_kind(kind: str) -> dict[str, str]:
    """Return what only some kinds need to say."""
    described = {}
    if kind.startswith(BY_STEP):
        described["beam"] = (
            "the first of each step; where the generation reordered its beams between steps, "
            "states and attention may be of several"
        )
    if kind.endswith(WITHOUT_IDS):
        described["question_ids"] = "positions over the records of the files, sorted by name"
    return described


def _describe_scores(scores: ScoreTable | None, threshold: float) -> dict[str, Any]:
    if scores is None:
        return {"scores_sha256": None, "score_threshold": threshold}
    stored = scores.stored_threshold(threshold)
    described = {"scores_sha256": scores.sha256, "score_threshold": stored}
    # of other scores an earlier version wrote no rule, and its stopped imports go on
    if scores.kind == "label" or scores.lower_is_better:
        described["label_rule"] = scores.rule
    return described
