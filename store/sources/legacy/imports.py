"""Import of the older formats: files in, rows of one store out, one file in memory at a time.

The order of the rows is that of the files, sorted by name, and of the records in each. Every row
names its file in the column `source_file`, so an import that was stopped finds its place again in
what it has committed. A file or a record that cannot be read is left out and reported; the others
go on.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import CorruptError, NotFoundError, RefusedError, SchemaError, StoreError, closest
from store.format.schema import Column, Schema
from store.format.values import encode_value
from store.read.store import TraceStore
from store.reports import LeftOut, count, count_lines
from store.sources.answer_scores import SCORE_THRESHOLD
from store.sources.labels import UNLABELLED
from store.sources.legacy import records
from store.sources.legacy.files import describe_kind, short_names
from store.sources.legacy.records import GRAPHS, LSTM, NOTHING, Kind, RecordError, Row
from store.sources.pickles import MAX_BYTES, kind_of_file, read_pickle, read_torch
from store.sources.score_table import Judgement, ScoreTable
from store.sources.trace_ids import MAX_ID_BYTES, TraceNumbers
from store.write.source import REMARKS

__all__ = ["ImportReport", "ImportSource"]

SHOWN_REASONS = 3  # why no trace is in any file

_DAMAGE = (  # what NumPy, torch and Python raise over values that contradict each other
    SchemaError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    MemoryError,
    RuntimeError,
)


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
        Kind -> the refused files that are of it: they are whole, but belong into another store.
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
        """What the store holds, and what was left out, a line each."""
        counts = count_lines(
            (
                (self.unlabelled, "without a label"),
                (self.repeated, "of a question that had one before"),
                (self.not_finite, "with a NaN or an infinity (kept)"),
            )
        )
        things = (
            (self.scores_unused, "score", "of traces or questions that are not there"),
            (self.skipped.n, "record", "left out"),
            (len(self.refused), "file", "left out"),
        )
        counts += [f"  {count(n, noun)} {text}" for n, noun, text in things if n]
        misfit = [self.scores_misfit] if self.scores_misfit else []
        left_out = [*self.skipped.lines(), *self._refused_lines()]
        return "\n".join([f"{path}: {count(self.rows, 'trace')}", *counts, *misfit, *left_out])

    def _refused_lines(self) -> list[str]:
        """Why files were left out: a line each, and a line with a command for all files of another
        kind."""
        of_other_kinds = {file for files in self.other_kinds.values() for file in files}
        lines = [text for file, text in self.refused.items() if file not in of_other_kinds]
        for kind, files in self.other_kinds.items():
            others = [file for file in self.read if str(file) not in files]
            lines.append(
                f"  of another kind, {describe_kind(kind, list(map(Path, files)), others)}"
            )
        return lines


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
        self.scores = ScoreTable.of_questions(scores) if isinstance(scores, Mapping) else scores
        _check_part(self.scores, part)
        self.score_threshold = score_threshold
        self.begun, self.max_bytes = begun, max_bytes
        self._limits = records.Limits(keep_attention, max_bytes)
        self.report = ImportReport()
        self._names = dict(zip(files, short_names(files), strict=True))
        self._loaded: dict[str, tuple[Path, Kind, Any]] = {}
        # number of the file, and of the record in it, last told as left out
        self._place = self._known = (0, 0)
        preprocessed, raw, smallest = self._survey(files)
        self._files = (preprocessed or raw)[part[0] - 1 :: part[1]]
        if files and not self._files and not self.report.refused:
            raise NotFoundError(
                f"part {part[0]}/{part[1]}: expected files in it, found {len(files)} in all"
            )
        self.report.read = list(self._files)
        self.report.bytes_all = sum(file.stat().st_size for file in self._files)
        # all parts with the columns of the graphs
        self._kind, first = self._first_row(preprocessed or self._files)
        if attn_threshold is not None and self._kind is not GRAPHS:
            raise SchemaError(
                f"attn_threshold: expected graphs, found {self._kind.name} traces; leave it out"
            )
        known = records.schema_of(first)
        self.schema = Schema({name: known.columns[name] for name in _chosen(columns, known)})
        self.provenance = self._describe(
            files, smallest if attn_threshold is None else attn_threshold, part
        )

    def _survey(self, files: Sequence[Path]) -> tuple[list[Path], list[Path], float]:
        """Look into the torch files, which are mapped.

        Returns
        -------
        Preprocessed files, graphs first; raw files; the smallest edge. Pairs up graphs and
        sequences.
        """
        ids: dict[str, dict[Path, list[str]]] = {GRAPHS.name: {}, LSTM.name: {}}
        raw, smallest = [], 0.0
        for file in files:
            kind, content = self._open(file) if _is_torch(file) else (None, None)
            if kind in (GRAPHS, LSTM):
                try:
                    found = list(records.ids_and_labels(content, kind)[0])
                    smallest = (
                        max(smallest, records.smallest_edge(content))
                        if kind is GRAPHS
                        else smallest
                    )
                    ids[kind.name][file] = found
                except _DAMAGE as error:
                    self._refuse(file, error)
            elif str(file) not in self.report.refused:
                raw.append(file)
        preprocessed = [*ids[GRAPHS.name], *ids[LSTM.name]]
        if raw and preprocessed:
            both = (
                describe_kind("raw", raw, preprocessed),
                describe_kind("preprocessed", preprocessed, raw),
            )
            raise SchemaError(
                f"expected files of one kind, found {' and '.join(both)}; import the two kinds into two stores"
            )
        self._partners = _pair(ids[GRAPHS.name], ids[LSTM.name])
        self._joined = set(self._partners.values())
        return preprocessed, raw, smallest

    def _open(self, file: Path, slot: str = "file") -> tuple[Kind | None, Any]:
        """What a file is and its content, None and None if it is refused; the one in the same slot
        before is let go."""
        if str(file) in self.report.refused:
            return None, None
        if slot not in self._loaded or self._loaded[slot][0] != file:
            self._loaded.pop(slot, None)
            read = read_torch if _is_torch(file) else read_pickle
            try:
                content = read(file, self.max_bytes)
                self._loaded[slot] = (file, records.kind_of(content), content)
            except (RefusedError, CorruptError, *_DAMAGE) as error:
                self._refuse(file, error)
                return None, None
        return self._loaded[slot][1:]

    def _refuse(self, file: Path, error: Exception) -> None:
        """Leave a file out, and tell why in one line."""
        text = _one_line(error)
        self.report.refused[str(file)] = text if text.startswith(str(file)) else f"{file}: {text}"

    def _first_row(self, files: Sequence[Path]) -> tuple[Kind, Row]:
        """The kind of the first file that has a whole record, and that record's row."""
        damaged = LeftOut()
        for file in files:
            kind, content = self._open(file)
            if kind is None:
                continue
            # a copy: rows free their records
            head = list(content) if isinstance(content, list) else content
            for i, make in enumerate(kind.rows(head, self._limits)):
                try:
                    return kind, self._complete(make(), file, i)
                except _DAMAGE as error:  # if another is whole, this is told when its turn comes
                    damaged.add(f"{file}, record {i}: {_one_line(error)}")
        reasons = [*self.report.refused.values(), *damaged.messages]
        n_more = len(self.report.refused) + damaged.n - len(reasons[:SHOWN_REASONS])
        more = f"; and {n_more:,} more" if n_more else ""
        found = "; ".join(reasons[:SHOWN_REASONS]) or "no record is in them"
        raise SchemaError(
            f"expected traces in {count(len(self._names), 'file')}, found none: {found}{more}"
        )

    def rows(self, start: int = 0) -> Iterator[tuple[str, Row]]:
        """Yield `(trace_id, row)` of what is not in the store that was begun; see `Source`."""
        n_done = self._done(start)
        last = self.begun.read([start - 1], ["source_file"])["source_file"][0] if start else None
        names = [self._names[file] for file in self._files]
        n_passed = names.index(last) if last is not None else 0
        for i, file in enumerate(self._files):
            if i >= n_passed:
                self._place = (i, 0)
                begun = self.report.bytes_done
                yield from self._rows_of(file, n_done[names[i]])
                self.report.bytes_done = begun
            self.report.bytes_done += file.stat().st_size
        if self.scores is not None:
            self.report.scores_unused = self._count_unused(self.scores)
            if self.report.scores_unused == len(self.scores):
                self.report.scores_misfit = self._misfit(self.scores)

    @property
    def remarks(self) -> dict[str, Any]:
        """What was left out so far: committed with the rows, so that a resumed import tells of it,
        too."""
        report = self.report
        told = {
            "records": report.skipped.n,
            "first": list(report.skipped.messages),
            "files": dict(report.refused),
        }
        told |= {
            "not_finite": report.not_finite,
            "place": list(self._place),
            "kinds": report.other_kinds,
        }
        return {REMARKS: told} if any(told.values()) else {}

    def _done(self, start: int) -> Counter:
        """Take up the report and the numbers of a stopped import; its committed rows of each
        file."""
        self._numbers = TraceNumbers()
        self._place = self._known = (0, 0)
        if not start:
            return Counter()
        told = self.begun.provenance.get(REMARKS)
        if told:
            self.report.skipped = LeftOut(told["records"], list(told["first"]))
            self.report.refused |= told["files"]
            self.report.other_kinds = {
                kind: list(files) for kind, files in told.get("kinds", {}).items()
            }
            self.report.not_finite, self._known = told["not_finite"], tuple(told["place"])
        names = [
            name for name in ("source_file", "question_id", "label") if name in self.schema.columns
        ]
        batch = self.begun.read(range(start), names)
        for question_id, trace_id in zip(batch["question_id"], self.begun.ids[:start], strict=True):
            self._numbers.add(question_id, trace_id)
        self.report.rows, self.report.repeated = start, start - len(self._numbers.seen)
        self.report.unlabelled = int((batch["label"] < 0).sum()) if "label" in batch else 0
        return Counter(batch["source_file"])

    def _rows_of(self, file: Path, n_done: int) -> Iterator[tuple[str, Row]]:
        """The rows of one file but for the first `n_done`."""
        kind, content = self._open(file)
        if kind is None:
            return
        if kind not in (self._kind, NOTHING) and not {kind, self._kind} <= {GRAPHS, LSTM}:
            found = f"expected {self._kind.name} traces like the files before it, found {kind.name}"
            self.report.other_kinds.setdefault(kind.name, []).append(str(file))
            self._refuse(file, SchemaError(f"{found}; import it into another store"))
            return
        n_records = len(content if isinstance(content, list) else content["question_ids"])
        begun, size = self.report.bytes_done, file.stat().st_size
        for i, make in enumerate(kind.rows(content, self._limits)):
            self.report.bytes_done = begun + size * (i + 1) // max(1, n_records)
            if (file, i) in self._joined:
                continue
            row = self._row(make, file, i)
            if row is None:
                continue
            if n_done:
                n_done -= 1
                continue
            trace_id = self._numbers.give(row["question_id"])
            self._score_trace(row, trace_id)
            self._count(row, self._numbers.seen[row["question_id"]])
            yield trace_id, row

    def _tell(self, file: Path, i: int, error: Exception, more: str = "") -> None:
        """Count a record that is left out, unless the import that was stopped has."""
        self._place = (self._place[0], self._place[1] + 1)
        if self._place > self._known:
            self.report.skipped.add(f"{file}, record {i}: {_one_line(error)}{more}")

    def _row(self, make: Callable[[], Row], file: Path, i: int) -> Row | None:
        """A record's row; of damaged graphs what their sequence gives, None if it has none. Tells
        what is left out."""
        try:
            row = make()
        except _DAMAGE as error:
            return self._alone(file, i, error)
        try:
            return self._checked(self._complete(row, file, i))
        except _DAMAGE as error:
            self._tell(file, i, error)
            return None

    def _alone(self, file: Path, i: int, error: Exception) -> Row | None:
        """Tell of a record that is left out; if it is graphs that have a sequence, that one's
        row."""
        partner = self._partners.get((file, i))
        self._tell(
            file,
            i,
            error,
            f"; its sequence in {partner[0]} is kept without graphs" if partner else "",
        )
        if partner is None:
            return None
        kind, content = self._open(partner[0], "partner")
        try:
            alone = next(islice(kind.rows(content, self._limits), partner[1], None))()
            return self._checked(self._scored(alone, file))
        except _DAMAGE as error:
            self._tell(*partner, error)
            return None

    def _complete(self, row: Row, file: Path, i: int) -> Row:
        """Add what the record alone does not say."""
        if (file, i) in self._partners:
            partner, at = self._partners[file, i]
            states = records.sequence(self._open(partner, "partner")[1], at)
            if states.shape != row["hs_last"].shape or not np.allclose(
                states.astype(float),
                row["hs_last"].astype(float),
                rtol=2e-3,
                atol=1e-5,
                equal_nan=True,
            ):
                raise RecordError(
                    f"expected the states of the last token as in {partner}, record {at}, of the same question, found "
                    "others; import the two kinds into two stores"
                )
            row |= {"hs_last": states}
        return self._scored(row, file)

    def _scored(self, row: Row, file: Path) -> Row:
        """Add score, label and the file's name."""
        judged = Judgement(math.nan, UNLABELLED)
        if self.scores is not None:
            value = self.scores.by_question.get(row["question_id"])
            if value is not None:
                judged = self.scores.judge(value, self.score_threshold)
        if self.scores is not None or "label" not in row:
            row["label"] = np.int8(judged.label)
        return row | {"score": np.float32(judged.score), "source_file": self._names[file]}

    def _score_trace(self, row: Row, trace_id: str) -> None:
        """Give a row the score and label of its trace, which come before those of its question."""
        value = self.scores.by_trace.get(trace_id) if self.scores is not None else None
        if value is None:
            return
        score, label = self.scores.judge(value, self.score_threshold)
        given = {"score": np.float32(score), "label": np.int8(label)}
        row |= {name: number for name, number in given.items() if name in self.schema.columns}

    def _count_unused(self, scores: ScoreTable) -> int:
        """Scores of traces and questions that are not there."""
        n_traces = sum(trace_id not in self._numbers for trace_id in scores.by_trace)
        return n_traces + len(scores.by_question.keys() - self._numbers.seen.keys())

    def _checked(self, row: Row) -> Row:
        """The columns that are kept, each as the schema has it; a sequence without graphs has no
        tokens."""
        if not 0 < len(row["question_id"].encode()) <= MAX_ID_BYTES:
            raise RecordError(
                f"question_id: expected 1 to {MAX_ID_BYTES} bytes, found {row['question_id']!r:.100}"
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

    def _count(self, row: Row, n_seen: int) -> None:
        self.report.rows += 1
        self.report.repeated += n_seen > 1
        self.report.unlabelled += bool(row.get("label", 0) < 0)
        self.report.not_finite += any(_has_not_finite(v) for k, v in row.items() if k != "score")

    def _misfit(self, scores: ScoreTable) -> str:
        """What to do about scores of which none fits."""
        given = ", ".join(
            f"{name!r:.60}" for name in islice((*scores.by_trace, *scores.by_question), 3)
        )
        there = ", ".join(f"{name!r:.60}" for name in islice(self._numbers.seen, 3))
        return (
            f"{scores.source}: none of its ids ({given or 'none'}) is of a trace here (questions {there or 'none'}); "
            "mend the ids, then label the store: python -m store label"
        )

    def _describe(
        self, files: Sequence[Path], attn_threshold: float, part: tuple[int, int]
    ) -> dict[str, Any]:
        """Where the values come from; two imports with equal descriptions give the same rows."""
        stats = [(file, file.stat()) for file in files]
        sizes = "".join(
            f"{self._names[file]}\t{stat.st_size}\t{stat.st_mtime_ns}\n" for file, stat in stats
        )
        return {
            "source": "import",
            "format": self._kind.name,
            "files": len(files),
            "files_sha256": hashlib.sha256(sizes.encode()).hexdigest(),
            **self._describe_scores(),
            "attn_threshold": attn_threshold,
            "layer_convention": "as in the files: layers 1..L, the embedding output left out",
            "reductions": "of full attention maps in float32, then float16",
            "versions": {name: version(name) for name in ("numpy", "torch")},
            "part": list(part),
        }

    def _describe_scores(self) -> dict[str, Any]:
        """Which scores decide the labels, and how; an import stopped by an earlier version goes on
        with the same."""
        told = {"scores_sha256": None, "score_threshold": self.score_threshold}
        if self.scores is None:
            return told
        told["scores_sha256"] = self.scores.sha256
        if self.scores.kind == "label" or self.scores.lower_is_better:
            told["label_rule"] = self.scores.rule
            told["score_threshold"] = self.scores.stored_threshold(self.score_threshold)
        return told


def _check_part(scores: ScoreTable | None, part: tuple[int, int]) -> None:
    """Raise SchemaError for scores by trace id in a part, where traces have other ids than in the
    whole."""
    if scores is not None and scores.by_trace and part[1] > 1:
        raise SchemaError(
            f"{scores.source}: part {part[0]}/{part[1]} numbers the traces of a question by itself, so scores by "
            "trace_id could go to others; leave out --scores, merge the parts, then python -m store label"
        )


def _pair(
    graphs: Mapping[Path, list[str]], states: Mapping[Path, list[str]]
) -> dict[tuple[Path, int], tuple[Path, int]]:
    """The k-th graphs of each question -> its k-th sequence."""
    places: dict[str, list[tuple[Path, int]]] = {}
    for file, ids in states.items():
        for i, question_id in enumerate(ids):
            places.setdefault(question_id, []).append((file, i))
    pairs, n_seen = {}, Counter()
    for file, ids in graphs.items():
        for i, question_id in enumerate(ids):
            found = places.get(question_id, [])
            if n_seen[question_id] < len(found):
                pairs[file, i] = found[n_seen[question_id]]
            n_seen[question_id] += 1
    return pairs


def _chosen(columns: Sequence[str] | None, known: Schema) -> list[str]:
    """The columns to keep, with those that an import cannot do without."""
    for name in columns or ():
        if name not in known.columns:
            like = closest(name, known.columns)
            raise NotFoundError(
                f"columns: expected some of {list(known.columns)}, found {name!r:.200}{like}"
            )
    needed = {"question_id", "source_file"}
    return [name for name in known.columns if columns is None or name in needed or name in columns]


def _nothing(column: Column) -> np.ndarray | str | None:
    """What stands in a row for a value that its record need not have."""
    if column.is_text:
        return ""
    return np.empty((0, *column.item_shape), column.storage_dtype) if column.axis else None


def _one_line(error: Exception) -> str:
    """What is wrong, of an error of ours or of a library."""
    text = " ".join(str(error).split())[:300]
    return (
        text
        if isinstance(error, StoreError)
        else f"expected a whole trace, found {type(error).__name__}: {text}"
    )


def _has_not_finite(value: object) -> bool:
    """Whether an array holds a NaN or an infinity; looks at the exponents, which is fast in half
    precision too."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.size:
        return False
    exponent = {2: 0x7C00, 4: 0x7F800000}.get(value.itemsize)
    if exponent is None:
        return not np.isfinite(value).all()
    bits = np.ascontiguousarray(value).view(f"u{value.itemsize}")
    return bool(((bits & exponent) == exponent).any())


def _is_torch(file: Path) -> bool:
    try:
        return kind_of_file(file) == "torch"
    except CorruptError:  # said when it is read
        return False
