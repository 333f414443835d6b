"""A first look into the files: which are preprocessed, and what they say together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from store.errors import SchemaError
from store.importers.damage import DAMAGE
from store.importers.files import Given
from store.importers.legacy.contents import FileReader
from store.importers.legacy.kinds import describe_kind
from store.importers.legacy.partners import QuestionIds
from store.importers.legacy.preprocessed import GraphTraces, SequenceTraces
from store.importers.legacy.raw import RawTraces

__all__ = ["Survey", "survey_files"]


@dataclass(frozen=True)
class Survey:
    """What the files are.

    Attributes
    ----------
    files
        Those to read: either all preprocessed ones, graphs first, or all raw ones.
    is_preprocessed
        Whether they are preprocessed.
    question_ids
        Kind -> file -> question of each of its traces, for the preprocessed ones.
    smallest_edge
        A threshold that all graphs were built with or above.
    """

    files: list[Given]
    is_preprocessed: bool
    question_ids: QuestionIds
    smallest_edge: float


def survey_files(files: Sequence[Given], reader: FileReader) -> Survey:
    """Look into the torch files, which are mapped; damaged ones are refused.

    Raises
    ------
    SchemaError
        There are raw and preprocessed files.
    """
    question_ids: QuestionIds = {GraphTraces.kind: {}, SequenceTraces.kind: {}}
    raw = []
    smallest_edge = 0.0
    for item in files:
        if item.kind != "torch":
            raw.append(item)
            continue
        try:
            traces = reader.read(item)
            if isinstance(traces, GraphTraces):
                smallest_edge = max(smallest_edge, traces.smallest_edge())
        except DAMAGE as error:
            reader.refuse(item, error)
            continue
        if isinstance(traces, RawTraces):
            raw.append(item)
        else:
            question_ids[traces.kind][item] = traces.question_ids
    preprocessed = list(chain.from_iterable(question_ids.values()))
    if raw and preprocessed:
        paths = [item.path for item in raw]
        others = [item.path for item in preprocessed]
        raise SchemaError(
            f"expected files of one kind, found {describe_kind('raw', paths, others)} and "
            f"{describe_kind('preprocessed', others, paths)}; "
            "import the two kinds into two stores"
        )
    return Survey(preprocessed or raw, bool(preprocessed), question_ids, smallest_edge)
