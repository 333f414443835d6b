"""A source of rows from files, one after the other: all that does not depend on the format.

A subclass yields the records of a file and makes a row of each. Here rows are labelled, checked,
numbered and counted, and what is left out is named; one file is in memory at a time.

The order of the rows is that of the files, and of the records in each. Every row names its file in
the column `source_file`, so a stopped import finds its place again in what it has committed. A file
or a record that cannot be read is left out and reported; the others go on.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from store.errors import LockedError, NotFoundError, SchemaError
from store.format.schema import Column, Schema
from store.importers.arrays.mapping import Mapped, column_of
from store.importers.damage import DAMAGE, one_line
from store.importers.files import Given, digest_given, relative_names
from store.importers.report import FileReport
from store.labels.answer_scores import SCORE_THRESHOLD
from store.labels.rule import UNLABELLED, ScoreTable, label_scores
from store.read.store import TraceStore
from store.reports import LeftOut, count
from store.traces.fields import NO_FIELDS, Fields
from store.traces.identity import REMARKS
from store.traces.layers import LAYERS_AXIS
from store.traces.trace_ids import MAX_ID_BYTES, TraceNumbers
from store.write.rows import axis_lengths, encode_row
from store.write.source import Source

__all__ = ["SINGLE", "FileSource", "Options", "Row", "check_scores_of_part"]

Row = dict[str, Any]  # column -> value
Made = TypeVar("Made")
SINGLE = {  # columns of one value that every import makes
    "question_id": Column("utf8"),
    "score": Column("float32"),
    "label": Column("int8"),
    "source_file": Column("utf8"),
}
OWN_COLUMNS = ("question_id", "source_file")  # columns that an import cannot do without
SHOWN_REASONS = 3  # why no trace is in any file


class Options(NamedTuple):
    """What an import makes of files of any kind."""

    scores: ScoreTable | None = None  # they alone decide the labels; those in the records do not
    score_threshold: float = SCORE_THRESHOLD  # scores in the records from here on count as right
    # numbers of the layers in the files, as the model numbers them, ascending; None if unknown
    layers: Sequence[int] | None = None
    columns: Sequence[str] | None = None  # to keep, besides fields; all if None
    fields: Sequence[str] | None = None  # to keep, as `store.traces.fields` has them; all if None
    part: tuple[int, int] = (1, 1)  # (k, n): only every n-th file, beginning with the k-th
    begun: TraceStore | None = None  # what a stopped import of the same files has committed

    @property
    def part_text(self) -> str:
        """As a message has it: '1/4'."""
        return "/".join(map(str, self.part))

    @property
    def described_scores(self) -> dict[str, object]:
        """What of the scores decides the rows."""
        if self.scores is None:
            return {"scores_sha256": None, "score_threshold": self.score_threshold}
        return {
            "scores_sha256": self.scores.sha256,
            "score_threshold": self.scores.stored_threshold,
            "label_rule": self.scores.rule,
        }


class FileSource(Source):
    """Rows from files; raises SchemaError where no trace can be read from any.

    All that are given make the names and the digest; those that are `ordered` are read, all if
    None. `fields` are columns of what else the records know; a subclass finds them before.
    """

    fields: Fields = NO_FIELDS

    def __init__(
        self,
        given: Sequence[Given],
        options: Options,
        ordered: Sequence[Given] | None = None,
    ) -> None:
        self._options = options
        self.report = FileReport()
        self._names = dict(zip(given, relative_names([item.path for item in given]), strict=True))
        readable = given if ordered is None else ordered
        self._files = readable[options.part[0] - 1 :: options.part[1]]
        if given and not self._files:
            raise NotFoundError(
                f"part {options.part_text}: expected files in it, found {len(given)} in all"
            )
        self.report.bytes_all = sum(item.n_bytes for item in self._files)
        # a part without a whole record has the columns of the others, with which it is merged
        looked_at = list(dict.fromkeys([*self._files, *readable]))
        chosen = self._choose(Schema(self._columns(self._first_row(looked_at))))
        self.schema = Schema({**chosen.columns, **self.fields.columns})
        _check_layers(self.schema, options.layers)
        self.provenance = {
            "source": "import",
            **self._describe(),
            **({} if options.layers is None else {"layers": list(options.layers)}),
            "files": len(given),
            "files_sha256": digest_given(given),
            **options.described_scores,
            "part": list(options.part),
        }

    @abstractmethod
    def _describe(self) -> dict[str, object]:
        """Return what decides the rows apart from the options; the schema is known."""

    @abstractmethod
    def _records(self, item: Given) -> Iterator[tuple[int, Any]]:
        """Yield the records of one file with their numbers; raises what is wrong with the file."""

    @abstractmethod
    def _row(self, item: Given, record: Any, i: int) -> tuple[str | None, Row] | None:
        """Return the trace's own id, if it has one, and its row; raises what is wrong with it.

        None for a record that is in the row of another.
        """

    def _columns(self, row: Row) -> dict[str, Column]:
        """Return the columns of the first row that can be made; not those of `fields`."""
        names = [name for name in row if name not in (*SINGLE, *self.fields.columns)]
        return SINGLE | {name: column_of(Mapped(name, name), row[name]) for name in names}

    def _typical(self, item: Given) -> Iterator[tuple[int, Any]]:
        """Yield the records of a file in the order in which one is looked for to get columns."""
        return self._records(item)

    def _missing(self) -> Iterable[str]:
        """Yield a line for each record that was expected and that no file has.

        The first part is asked, for all.
        """
        return ()

    def _first_row(self, files: Sequence[Given]) -> Row:
        """Return the row of the first whole record."""
        reasons = LeftOut()
        for item in files:
            for row in self._made(item, self._typical, self._labelled, reasons.add):
                return row
        shown = "; ".join(reasons.messages[:SHOWN_REASONS])
        n_more = reasons.n - SHOWN_REASONS
        raise SchemaError(
            f"expected traces in {count(len(files), 'file')}, found none: "
            f"{shown or 'no record is in them'}{f'; and {n_more:,} more' if n_more > 0 else ''}"
        )

    def _labelled(self, item: Given, record: object, i: int) -> Row | None:
        """Return the row of a record that has no id yet; raises what is wrong with it."""
        made = self._row(item, record, i)
        if made is not None:
            self._complete(made[1], "", item)
        return made and made[1]

    def _choose(self, schema: Schema) -> Schema:
        columns = self._options.columns
        if columns is None:
            return schema
        for name in columns:
            schema.column(name, "columns")
        kept = {*OWN_COLUMNS, *columns}
        return Schema({name: schema.columns[name] for name in schema.columns if name in kept})

    def _made(
        self,
        item: Given,
        records: Callable[[Given], Iterable[tuple[int, Any]]],
        make: Callable[[Given, Any, int], Made | None],
        leave_out: Callable[[str], None],
    ) -> Iterator[Made]:
        """Yield what is made of each record of a file until its end, or until it is damaged."""
        n_read = 0
        try:
            for i, record in records(item):
                n_read = i + 1
                try:
                    made = make(item, record, i)
                except DAMAGE as error:
                    leave_out(f"{item.path}, record {i}: {one_line(error)}")
                    continue
                if made is not None:
                    yield made
        except DAMAGE as error:
            rest = f", from record {n_read} on" if n_read else ""
            leave_out(f"{item.path}{rest}: {one_line(error)}")

    def _complete(self, row: Row, trace_id: str, item: Given) -> None:
        """Add score and label, and the name of the file, to a row."""
        score, label = self._label_of(row, trace_id)
        if label not in (-1, 0, 1):
            raise SchemaError(
                f"label: expected 1 (hallucination), 0 (right) or -1 (none), found {label}"
            )
        row["score"] = np.float32(score)
        row["label"] = np.int8(label)
        row["source_file"] = self._names[item]

    def _label_of(self, row: Row, trace_id: str) -> tuple[float | np.float32, int]:
        """Return score and label by the file of scores, else those that the record has.

        There a score alone decides the label.
        """
        scores = self._options.scores
        if scores is not None:
            value = scores.value_of(trace_id, row["question_id"])
            if value is None:
                return np.nan, UNLABELLED
            [score], [label] = scores.label([value])
            return float(score), int(label)
        score = np.float32(row.get("score", np.nan))
        if "label" in row:
            return score, int(row["label"])
        return score, int(label_scores([score], self._options.score_threshold)[0])

    @property
    def remarks(self) -> dict[str, object]:
        """What was left out so far; it is committed with the rows, for a resumed import."""
        return {REMARKS: self.report.left_out(self._place)}

    def rows(self, start: int = 0) -> Iterator[tuple[str, Row]]:
        """Yield `(trace_id, row)` of what is not in the store that was begun; see `Source`."""
        committed = self._resume(start)
        n_committed = Counter(committed)
        names = [self._names[item] for item in self._files]
        first = names.index(committed[-1]) if committed else 0
        bytes_done = 0
        for i, item in enumerate(self._files):
            if i >= first:
                self._place = (i, 0)
                yield from self._rows_of(item, n_committed[names[i]])
            bytes_done += item.n_bytes
            self.report.bytes_done = bytes_done
        self._place = (len(names), 0)
        for message in self._missing() if self._options.part[0] == 1 else ():
            self._leave_out(message)
        self.report.repeated = self.report.rows - len(self._numbers.seen)
        if self._options.scores is not None:
            self.report.add_scores(self._options.scores, self._numbers)

    def _resume(self, start: int) -> list[str]:
        """Go on from a stopped import; return the file of each committed row."""
        self._numbers = TraceNumbers()
        # number of the file, and of what was left out of it: now, and by a stopped import
        self._place = (0, 0)
        self._known_place: tuple[int, ...] = (0, 0)
        begun = self._options.begun
        self.report.restart(start)
        if not start:
            return []
        if begun is None:
            raise LockedError(f"expected no trace, found {start} of another process; run it again")
        if REMARKS in begun.provenance:
            self.report.resume(begun.provenance[REMARKS])
            self._known_place = tuple(begun.provenance[REMARKS]["place"])
        batch = begun.read_arrays(range(start), ["source_file", "question_id"])
        names = batch.texts("source_file")
        ids = zip(names, batch.texts("question_id"), begun.ids[:start], strict=True)
        for name, question_id, trace_id in ids:
            if name != names[-1]:  # the last file is read again, and gives its ids again
                self._numbers.add(question_id, trace_id)
        return names

    def _rows_of(self, item: Given, n_committed: int) -> Iterator[tuple[str, Row]]:
        """Yield the rows of one file except the first `n_committed`."""
        for trace_id, row in self._made(item, self._records, self._numbered, self._leave_out):
            if n_committed:
                n_committed -= 1
                continue
            self.report.count_row(row)
            yield trace_id, row

    def _numbered(self, item: Given, record: object, i: int) -> tuple[str, Row] | None:
        """Return the id and the row of a record; raises what is wrong with it."""
        made = self._row(item, record, i)
        if made is None:
            return None
        own_id, row = made
        question_id = row["question_id"]
        if own_id is not None:
            _check_id(own_id, "trace_id")
            if own_id in self._numbers:
                raise SchemaError(f"trace_id: expected a new id, found {own_id!r:.100} again")
        _check_id(question_id, "question_id")
        trace_id = self._numbers.next_of(question_id) if own_id is None else own_id
        self._complete(row, trace_id, item)
        row = {name: _value(row, name, self.schema.columns[name]) for name in self.schema.columns}
        axis_lengths(encode_row(row, self.schema.columns, "trace"), self.schema, "trace")
        self._numbers.add(question_id, trace_id)
        return trace_id, row

    def _leave_out(self, message: str) -> None:
        """Report something that is left out, unless the stopped import has."""
        n_files, n_records = self._place
        self._place = (n_files, n_records + 1)
        if self._place > self._known_place:
            self.report.skipped.add(message)


def _value(row: Row, name: str, column: Column) -> object:
    """Return a value of a row; texts and ragged ones that its record need not have are empty."""
    if name in row:
        return row[name]
    if column.is_text:
        return ""
    if column.axis is None:
        raise SchemaError(f"expected a value for {name!r} as in the traces before, found none")
    return np.empty((0, *column.item_shape), column.storage_dtype)


def _check_layers(schema: Schema, layers: Sequence[int] | None) -> None:
    """Raise SchemaError unless every column has as many layers as there are numbers."""
    for name, column in schema.columns.items():
        if layers is None or LAYERS_AXIS not in column.axis_names:
            continue
        n_layers = column.item_shape[column.axis_names.index(LAYERS_AXIS)]
        if n_layers != len(layers):
            raise SchemaError(
                f"--layers: expected {n_layers} numbers, one for each layer of {name!r} in the "
                f"files, found {len(layers)}"
            )


def _check_id(text: str, what: str) -> None:
    if not 0 < len(text.encode(errors="replace")) <= MAX_ID_BYTES:
        raise SchemaError(f"{what}: expected 1 to {MAX_ID_BYTES} bytes, found {text!r:.100}")


def check_scores_of_part(options: Options, advice: str) -> None:
    """Raise SchemaError for scores by trace id in a part, which numbers its traces by itself."""
    scores = options.scores
    if scores is not None and scores.by_trace and options.part[1] > 1:
        raise SchemaError(
            f"{scores.source}: part {options.part_text} numbers the traces of a question by "
            f"itself, so scores by trace_id could go to others; {advice}, merge the parts, then "
            "python -m store label"
        )
