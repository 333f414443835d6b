"""A source of the traces in files of the older formats."""

from collections.abc import Iterator, Sequence
from importlib.metadata import version

from store.errors import SchemaError
from store.format.schema import Column
from store.importers.arrays.mapping import Mapped, column_of
from store.importers.damage import DAMAGE
from store.importers.files import Given
from store.importers.legacy.contents import FileReader, Traces, survey_files
from store.importers.legacy.preprocessed import GraphTraces, Partners, PreprocessedTraces
from store.importers.legacy.raw import UNCLEAR, WITHOUT_IDS, belongs_to
from store.importers.pickles import MAX_BYTES
from store.importers.source import FileSource, Options, Row, check_scores_of_part
from store.traces.columns import columns_of

__all__ = ["LegacySource"]

BY_STEP = ("raw A", "raw B", "raw C", "raw D")
COLUMNS = columns_of(command="import")


class LegacySource(FileSource):
    """The traces in files of the older formats.

    Where both preprocessed graphs and preprocessed sequences (lstm) are given, the k-th graphs of a
    question and its k-th sequence are one trace; sequences without graphs follow as traces without
    tokens. Of a part, sequences follow their graphs.

    `keep_attention` keeps the full attention maps of raw traces, as the column `attentions`.
    Preprocessed graphs were built with `attn_threshold`; None finds one that is safe. A file has at
    most `max_bytes`. Raises SchemaError: no trace can be read from any file, or files, threshold
    and scores do not belong together.
    """

    def __init__(
        self,
        given: Sequence[Given],
        options: Options,
        *,
        keep_attention: bool = False,
        attn_threshold: float | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        check_scores_of_part(options, "leave out --scores")
        self._reader = FileReader(keep_attention, max_bytes)
        self._survey = survey_files(given, self._reader)
        sequences = FileReader(keep_attention, max_bytes)
        self._partners = Partners(
            self._survey.question_ids, lambda item, i: sequences.read(item).row(i)
        )
        self._n_records: dict[Given, int] = {}  # of files whose records are known by position
        self._kind = ""  # not known until a record is whole
        self._attn_threshold = attn_threshold
        super().__init__(given, options, self._survey.files)

    def _first_row(self, files: Sequence[Given]) -> Row:
        # every part of preprocessed files has the columns of the first graphs
        row = super()._first_row(self._survey.files if self._survey.is_preprocessed else files)
        self._kind = self._reader.last_kind
        return row

    def _describe(self) -> dict[str, object]:
        threshold = self._attn_threshold
        if threshold is None:
            threshold = self._survey.smallest_edge
        elif self._kind != GraphTraces.kind:
            raise SchemaError(
                f"attn_threshold: expected graphs, found {self._kind} traces; leave it out"
            )
        return {
            "format": self._kind,
            "attn_threshold": threshold,
            "layer_convention": "as in the files: layers 1..L, the embedding output left out",
            "reductions": "of full attention maps in float32, then float16",
            "versions": {"numpy": version("numpy")},
            **_describe_kind(self._kind),
        }

    def _columns(self, row: Row) -> dict[str, Column]:
        return {name: column_of(Mapped(name, name), row[name]) for name in COLUMNS if name in row}

    def _typical(self, item: Given) -> Iterator[tuple[int, Traces]]:
        traces = self._reader.read(item)
        return ((i, traces) for i in traces.typical_first)

    def _records(self, item: Given) -> Iterator[tuple[int, Traces]]:
        if self._kind.endswith(WITHOUT_IDS):
            self._find_position(item)
        traces = self._reader.read(item)
        self._check_kind(traces)
        bytes_before = self.report.bytes_done
        n_bytes = item.n_bytes
        for i in range(len(traces)):
            self.report.bytes_done = bytes_before + n_bytes * (i + 1) // len(traces)
            yield i, traces

    def _find_position(self, item: Given) -> None:
        """Find the position of a file's first record; raise SchemaError if it is not known.

        It counts the records of all files before, in the order of the whole import: it is the same
        in every part, and in an import that goes on. None is guessed.
        """
        files = self._survey.files
        self._first_position = sum(map(self._count, files[: files.index(item)]))

    def _count(self, item: Given) -> int:
        """Return the records of a file that go into this store; raises where nothing tells."""
        if item not in self._n_records:
            try:
                traces = self._reader.read(item)
            except DAMAGE as error:
                raise _not_known(item) from error
            if traces.kind == UNCLEAR:
                raise _not_known(item)
            is_own = belongs_to(traces.kind, self._kind)
            self._n_records[item] = len(traces) if is_own else 0
        return self._n_records[item]

    def _check_kind(self, traces: Traces) -> None:
        """Raise SchemaError unless a file belongs to those before it."""
        kind = traces.kind
        # the survey has refused preprocessed files beside raw ones
        if isinstance(traces, PreprocessedTraces) or kind in ("empty", UNCLEAR):
            return
        if not belongs_to(kind, self._kind):
            raise SchemaError(
                f"expected {self._kind} traces like the files before it, found {kind}; import it "
                "into another store"
            )

    def _row(self, item: Given, traces: Traces, i: int) -> tuple[None, Row] | None:
        """Return the row of a record, with the states of its sequence if it has one.

        None for a sequence that is in the row of its graphs; but while the first whole record is
        looked for, before the kind is known, it is a row as well.
        """
        place = (item, i)
        if place in self._partners.joined and self._kind:
            return None
        row = self._partners.join(traces.row(i), place)
        if self._kind.endswith(WITHOUT_IDS):
            _set_position(row, self._first_position + i)
        if row["question_id"] is None:
            row["question_id"] = str(i)  # of the first record, of which only the types count
        return None, row


def _not_known(item: Given) -> SchemaError:
    return SchemaError(
        "expected ids, or positions after the records of the files before, found no ids, and "
        f"{item.path} before it cannot be read; restore that file"
    )


def _set_position(row: Row, position: int) -> None:
    """Give a row without an id its position; an id that it has must be the same."""
    question_id = str(position)
    if row["question_id"] not in (None, question_id):
        raise SchemaError(
            f"expected {question_id} as id, its position, by which the files without ids are "
            f"numbered, found {row['question_id']!r:.100}; import it into another store"
        )
    row["question_id"] = question_id


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
