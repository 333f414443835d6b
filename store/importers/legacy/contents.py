"""What files of the older formats hold, decided by their content, never by their names."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from store.errors import SchemaError
from store.importers.damage import DAMAGE
from store.importers.files import Given
from store.importers.legacy.fields import shown_keys
from store.importers.legacy.preprocessed import (
    GraphTraces,
    PreprocessedTraces,
    QuestionIds,
    SequenceTraces,
)
from store.importers.legacy.raw import RawTraces
from store.importers.pickles import read_content

__all__ = ["FileReader", "Traces", "survey_files"]

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
        if isinstance(content, Mapping):
            for kind in (SequenceTraces, GraphTraces):
                if {kind.key, "labels", "question_ids"} <= content.keys():
                    return kind(content)
            found = f"a dict with the keys {shown_keys(content)}"
        elif not isinstance(content, list):
            found = type(content).__name__
        elif not content or any(  # damaged records beside it are named one by one
            isinstance(record, Mapping) and {"hidden_states", "attentions"} <= record.keys()
            for record in content
        ):
            return RawTraces(content, self._keep_attention)
        elif isinstance(content[0], Mapping):
            found = f"a list of {shown_keys(content[0])}"
        else:
            found = f"a list of {type(content[0]).__name__}"
        raise SchemaError(
            "expected a list of raw traces (hidden_states, attentions), or a dict of sequences or "
            f"graphs with labels and question_ids, found {found}; python -m store import --inspect "
            "shows a --map for other arrays"
        )


class Survey(NamedTuple):
    """What the files are."""

    files: list[Given]  # to read: either all preprocessed ones, graphs first, or all raw ones
    question_ids: QuestionIds  # of the preprocessed ones
    smallest_edge: float  # a threshold that all graphs were built with or above

    @property
    def is_preprocessed(self) -> bool:
        return any(self.question_ids.values())


def survey_files(files: Sequence[Given], reader: FileReader) -> Survey:
    """Look into the torch files, which are mapped; damaged ones are reported as they are read.

    Raises SchemaError where there are raw and preprocessed files.
    """
    question_ids: QuestionIds = {GraphTraces.kind: {}, SequenceTraces.kind: {}}
    damaged, raw = [], []
    smallest_edge = 0.0
    for item in files:
        try:
            traces = reader.read(item) if item.kind == "torch" else None
        except DAMAGE:
            damaged.append(item)
            continue
        if isinstance(traces, GraphTraces):
            smallest_edge = max(smallest_edge, traces.smallest_edge())
        if isinstance(traces, PreprocessedTraces):
            question_ids[traces.kind][item] = traces.question_ids
        else:
            raw.append(item)
    preprocessed = list(chain.from_iterable(question_ids.values()))
    if raw and preprocessed:
        raise SchemaError(
            f"expected files of one kind, found raw traces in {raw[0].path} and preprocessed ones "
            f"in {preprocessed[0].path}; import the two kinds into two stores"
        )
    in_order = [*preprocessed, *damaged] if preprocessed else list(files)
    return Survey(in_order, question_ids, smallest_edge)
