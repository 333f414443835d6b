"""A source of the traces in files of the older formats, which their contents tell, never names."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version

from store.errors import SchemaError
from store.format.schema import Column
from store.importers.arrays.mapping import Mapped, column_of
from store.importers.damage import DAMAGE
from store.importers.files import Given
from store.importers.legacy.fields import shown_keys
from store.importers.legacy.preprocessed import (
    GRAPHS,
    SEQUENCES,
    Partners,
    PreprocessedTraces,
    QuestionIds,
)
from store.importers.legacy.raw import UNCLEAR, WITHOUT_IDS, RawTraces
from store.importers.pickles import MAX_BYTES, read_content
from store.importers.source import FileSource, Options, Row, check_scores_of_part
from store.traces.columns import columns_of

__all__ = ["FileReader", "LegacySource"]

BY_STEP = ("raw A", "raw B", "raw C", "raw D")
COLUMNS = columns_of(command="import")

Traces = RawTraces | PreprocessedTraces  # of one file


class FileReader:
    """Reads files of at most `max_bytes`, of which it holds the last one."""

    def __init__(self, keep_attention: bool, max_bytes: int) -> None:
        self._keep_attention = keep_attention
        self._max_bytes = max_bytes
        self._last: tuple[Given, Traces] | None = None

    def read(self, item: Given) -> Traces:
        """Return the traces of a file, or raise what is wrong; the file before is let go first."""
        if self._last is None or self._last[0] != item:
            self._last = None
            content = read_content(item.path, item.kind, self._max_bytes)
            self._last = (item, self._understand(content))
        return self._last[1]

    @property
    def last_kind(self) -> str:
        return self._last[1].kind if self._last else ""

    def _understand(self, content: object) -> Traces:
        """Return the traces in a file's content; raise SchemaError with what it is not."""
        if isinstance(content, Mapping) and PreprocessedTraces.are_in(content):
            return PreprocessedTraces(content)
        # damaged records beside a raw one are named one by one
        if isinstance(content, list) and (not content or any(map(_is_raw, content))):
            return RawTraces(content, self._keep_attention)
        first = content[0] if isinstance(content, list) else content
        keys = f" with the keys {shown_keys(first)}" if isinstance(first, Mapping) else ""
        raise SchemaError(
            "expected a list of raw traces (hidden_states, attentions), or a dict of sequences or "
            f"graphs with labels and question_ids, found {'a list of ' * (first is not content)}"
            f"{type(first).__name__}{keys}; python -m store import --inspect shows a --map for "
            "other arrays"
        )


def _is_raw(record: object) -> bool:
    return isinstance(record, Mapping) and {"hidden_states", "attentions"} <= record.keys()


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
        self._question_ids: QuestionIds = {GRAPHS: {}, SEQUENCES: {}}  # of preprocessed files
        self._smallest_edge = 0.0  # a threshold that all graphs were built with or above
        self._ordered = self._survey(given)
        sequences = FileReader(keep_attention, max_bytes)
        self._partners = Partners(self._question_ids, lambda item, i: sequences.read(item).row(i))
        self._n_records: dict[Given, int] = {}  # of files whose records are known by position
        self._kind = ""  # not known until a record is whole
        self._attn_threshold = attn_threshold
        super().__init__(given, options, self._ordered)

    def _survey(self, given: Sequence[Given]) -> list[Given]:
        """Look into the torch files, which are mapped; damaged ones are reported as they are read.

        Returns the files to read: either all preprocessed ones, graphs first, or all raw ones.
        Raises SchemaError where there are both.
        """
        damaged, raw = [], []
        for item in given:
            try:
                traces = self._reader.read(item) if item.kind == "torch" else None
            except DAMAGE:
                damaged.append(item)
                continue
            if isinstance(traces, PreprocessedTraces):
                self._smallest_edge = max(self._smallest_edge, traces.smallest_edge())
                self._question_ids[traces.kind][item] = traces.question_ids
            else:
                raw.append(item)
        preprocessed = [*self._question_ids[GRAPHS], *self._question_ids[SEQUENCES]]
        if raw and preprocessed:
            raise SchemaError(
                f"expected files of one kind, found raw traces in {raw[0].path} and preprocessed "
                f"ones in {preprocessed[0].path}; import the two kinds into two stores"
            )
        return [*preprocessed, *damaged] if preprocessed else list(given)

    def _first_row(self, files: Sequence[Given]) -> Row:
        # every part of preprocessed files has the columns of the first graphs
        row = super()._first_row(self._ordered if any(self._question_ids.values()) else files)
        self._kind = self._reader.last_kind
        return row

    def _describe(self) -> dict[str, object]:
        threshold = self._attn_threshold
        if threshold is None:
            threshold = self._smallest_edge
        elif self._kind != GRAPHS:
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
        before = self._ordered[: self._ordered.index(item)]
        self._first_position = sum(map(self._count, before))

    def _count(self, item: Given) -> int:
        """Return the records of a file that go into this store; raises where nothing tells."""
        if item not in self._n_records:
            try:
                traces = self._reader.read(item)
            except DAMAGE as error:
                raise _not_known(item) from error
            if traces.kind == UNCLEAR:
                raise _not_known(item)
            self._n_records[item] = len(traces) if traces.kind == self._kind else 0
        return self._n_records[item]

    def _check_kind(self, traces: Traces) -> None:
        """Raise SchemaError unless a file belongs to those before it."""
        kind = traces.kind
        # the survey has refused preprocessed files beside raw ones
        if isinstance(traces, PreprocessedTraces) or kind in ("empty", UNCLEAR):
            return
        if kind != self._kind:
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
            row["question_id"] = str(self._first_position + i)
        if row["question_id"] is None:
            row["question_id"] = str(i)  # of the first record, of which only the types count
        return None, row


def _not_known(item: Given) -> SchemaError:
    return SchemaError(
        "expected ids, or positions after the records of the files before, found no ids, and "
        f"{item.path} before it cannot be read; restore that file"
    )


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
