"""A source of rows from files of arrays, one file after the other: the part that all kinds share.

The order of the rows is that of the files, sorted, and of the records in each. Every row names its
file in the column `source_file`, so a stopped import finds its place again in what it has
committed. A file or a record that cannot be read is left out and reported; the others go on. One
file is in memory at a time.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from store.errors import NotFoundError, SchemaError
from store.format.schema import Column, Schema
from store.importers.arrays.find import Given
from store.importers.arrays.report import ArrayReport
from store.importers.file_imports import digest_files, no_traces, read_committed
from store.importers.legacy.fields import DAMAGE, Row, one_line
from store.importers.legacy.files import short_names
from store.labels.rule import UNLABELLED, label_scores
from store.labels.score_table import ScoreTable
from store.read.store import TraceStore
from store.traces.layers import LAYERS_AXIS
from store.traces.trace_ids import MAX_ID_BYTES, TraceNumbers
from store.write.rows import axis_lengths, encode_row
from store.write.source import REMARKS, Source

__all__ = ["FileSource", "Labels", "Options"]

OWN_COLUMNS = ("question_id", "source_file")  # columns that an import cannot do without


class Labels(NamedTuple):
    """How traces are labelled: by a file of scores alone, else by what the record itself says."""

    scores: ScoreTable | None
    threshold: float  # scores from here on count as right

    def set(self, row: Row, trace_id: str) -> None:
        """Set score and label of a row."""
        score = np.float32(row.get("score", np.nan))
        label = int(row.get("label", UNLABELLED))
        if self.scores is not None:
            score, label = np.float32(np.nan), UNLABELLED
            value = self.scores.value_of(trace_id, row["question_id"])
            if value is not None:
                given, label = self.scores.judge(value, self.threshold)
                score = np.float32(given)
        elif "label" not in row:
            label = int(label_scores([score], self.threshold)[0])
        if label not in (-1, 0, 1):
            raise SchemaError(
                f"label: expected 1 (hallucination), 0 (right) or -1 (none), found {label}"
            )
        row["score"] = score
        row["label"] = np.int8(label)

    @property
    def provenance(self) -> dict[str, Any]:
        """What of this decides the rows."""
        if self.scores is None:
            return {"scores_sha256": None, "score_threshold": self.threshold}
        return {
            "scores_sha256": self.scores.sha256,
            "score_threshold": self.scores.stored_threshold(self.threshold),
            "label_rule": self.scores.rule,
        }


class Options(NamedTuple):
    """What an import makes of files of any kind.

    Attributes
    ----------
    layers
        Numbers of the layers in the files, as the model numbers them, ascending; None if unknown.
    columns
        Names to keep; all if None.
    part
        (k, n): only every n-th file, beginning with the k-th.
    begun
        What a stopped import of the same files has committed.
    """

    labels: Labels
    layers: Sequence[int] | None
    columns: Sequence[str] | None
    part: tuple[int, int]
    begun: TraceStore | None


class FileSource(Source):
    """Rows from files, in their order; a subclass says what the records of a file are.

    Parameters
    ----------
    provenance
        What decides the rows apart from the options.

    Raises
    ------
    SchemaError
        No trace can be read from any file.
    """

    def __init__(
        self, given: Sequence[Given], options: Options, provenance: Mapping[str, Any]
    ) -> None:
        self._labels, layers, columns, part, self._begun = options
        self.report = ArrayReport()
        all_names = short_names([item.path for item in given])
        named = list(zip(given, all_names, strict=True))
        self._named = named[part[0] - 1 :: part[1]]
        if given and not self._named:
            raise NotFoundError(
                f"part {part[0]}/{part[1]}: expected files in it, found {len(given)} in all"
            )
        self._sizes = [_bytes_of(item) for item, _ in self._named]
        self.report.bytes_all = sum(self._sizes)
        self.schema = self._choose(self._find_schema(), columns)
        _check_layers(self.schema, layers)
        self.provenance = {
            "source": "import",
            **provenance,
            **({} if layers is None else {"layers": list(layers)}),
            "files": len(given),
            "files_sha256": digest_given(given),
            **self._labels.provenance,
            "part": list(part),
        }

    @abstractmethod
    def _records(self, item: Given, name: str) -> Iterator[Any]:
        """Yield the raw records of one file; raises what is wrong with the file."""

    @abstractmethod
    def _row(self, record: Any, name: str, i: int) -> tuple[str | None, Row]:
        """Return the trace's own id, if it has one, and its row; raises what is wrong with it."""

    @abstractmethod
    def _columns(self, row: Row) -> dict[str, Column]:
        """Return the columns of the first row that can be made."""

    def _missing(self) -> Iterable[str]:
        """Yield a line for each record that was expected and that no file has."""
        return ()

    def _find_schema(self) -> Schema:
        reasons = []
        for item, name in self._named:
            try:
                schema = self._schema_of(item, name)
            except DAMAGE as error:
                reasons.append(f"{item.path}: {one_line(error)}")
                continue
            if schema is not None:
                return schema
        raise no_traces(len(self._named), reasons, len(reasons))

    def _schema_of(self, item: Given, name: str) -> Schema | None:
        """Return the columns of the first record of a file that can be read; None without any."""
        problem: Exception | None = None
        for i, record in enumerate(self._records(item, name)):
            try:
                _, row = self._row(record, name, i)
                self._complete(row, "", name)
                return Schema(self._columns(row))
            except DAMAGE as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return None

    def _choose(self, schema: Schema, columns: Sequence[str] | None) -> Schema:
        if columns is None:
            return schema
        for name in columns:
            schema.column(name, "columns")
        kept = {*OWN_COLUMNS, *columns}
        return Schema({name: schema.columns[name] for name in schema.columns if name in kept})

    def _complete(self, row: Row, trace_id: str, name: str) -> None:
        """Add the label and the name of the file to a row."""
        self._labels.set(row, trace_id)
        row["source_file"] = name

    @property
    def remarks(self) -> dict[str, Any]:
        """What was left out so far; it is committed with the rows, for a resumed import."""
        return {REMARKS: self.report.left_out(self._place)}

    def rows(self, start: int = 0) -> Iterator[tuple[str, Row]]:
        """Yield `(trace_id, row)` of what is not in the store that was begun; see `Source`."""
        committed = self._resume(start)
        n_committed = Counter(committed)
        names = [name for _, name in self._named]
        first = names.index(committed[-1]) if committed else 0
        for i, name in enumerate(names):
            if i >= first:
                yield from self._rows_of(i, n_committed[name])
            self.report.bytes_done += self._sizes[i]
        self._place = (len(names), 0)
        for message in self._missing():
            self._leave_out(message)
        if self._labels.scores is not None:
            self.report.add_scores(self._labels.scores, self._numbers)

    def _resume(self, start: int) -> list[str]:
        """Go on from a stopped import; return the file of each committed row."""
        self._numbers = TraceNumbers()
        # number of the file, and of what was left out of it: now, and by a stopped import
        self._place = (0, 0)
        self._known_place: tuple[int, ...] = (0, 0)
        self.report.skipped = ArrayReport().skipped
        self.report.rows = start
        self.report.bytes_done = 0
        self.report.unlabelled = 0
        self.report.not_finite = 0
        if not start:
            return []
        committed = read_committed(self._begun, start, labels="label" in self.schema.columns)
        if committed.left_out:
            self.report.resume(committed.left_out)
            self._known_place = tuple(committed.left_out["place"])
        names = committed.files
        ids = zip(names, committed.question_ids, committed.trace_ids, strict=True)
        for name, question_id, trace_id in ids:
            if name != names[-1]:  # the last file is read again, and gives its ids again
                self._numbers.add(question_id, trace_id)
        self.report.unlabelled = committed.n_unlabelled
        return names

    def _rows_of(self, i_file: int, n_committed: int) -> Iterator[tuple[str, Row]]:
        """Yield the rows of one file except the first `n_committed`."""
        item, name = self._named[i_file]
        self._place = (i_file, 0)
        for i, record in enumerate(self._whole_records(i_file)):
            try:
                trace_id, row = self._make(record, name, i)
            except DAMAGE as error:
                self._leave_out(f"{item.path}, record {i}: {one_line(error)}")
                continue
            if n_committed:
                n_committed -= 1
                continue
            self.report.count_row(row)
            yield trace_id, row

    def _whole_records(self, i_file: int) -> Iterator[Any]:
        """Yield the raw records of a file until its end, or until it is damaged."""
        item, name = self._named[i_file]
        n_records = 0
        try:
            for record in self._records(item, name):
                yield record
                n_records += 1
        except DAMAGE as error:
            rest = f", from record {n_records} on" if n_records else ""
            self._leave_out(f"{item.path}{rest}: {one_line(error)}")

    def _make(self, record: Any, name: str, i: int) -> tuple[str, Row]:
        """Return the id and the row of a raw record; raises what is wrong with it."""
        own_id, row = self._row(record, name, i)
        question_id = row["question_id"]
        _check_id(question_id, "question_id")
        if own_id is not None:
            _check_id(own_id, "trace_id")
            if own_id in self._numbers:
                raise SchemaError(f"trace_id: expected a new id, found {own_id!r:.100} again")
        number = self._numbers.next_of(question_id) if own_id is None else own_id
        self._complete(row, number, name)
        row = {column: row[column] for column in self.schema.columns if column in row}
        axis_lengths(encode_row(row, self.schema.columns, "trace"), self.schema, "trace")
        self._numbers.add(question_id, number)
        return number, row

    def _leave_out(self, message: str) -> None:
        """Report something that is left out, unless the stopped import has."""
        n_files, n_records = self._place
        self._place = (n_files, n_records + 1)
        if self._place > self._known_place:
            self.report.skipped.add(message)


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


def _bytes_of(item: Given) -> int:
    return sum(file.stat().st_size for file in item.files)


def digest_given(given: Sequence[Given]) -> str:
    """Return a checksum of the files' names, sizes and times; that of an import's provenance."""
    names = short_names([item.path for item in given])
    return digest_files(_named_files(zip(given, names, strict=True)))


def _named_files(named: Iterable[tuple[Given, str]]) -> Iterator[tuple[str, Path]]:
    """Yield the files of all that is given, each under the name of what it belongs to."""
    for item, name in named:
        for file in item.files:
            yield f"{name}\t{file.name}", file
