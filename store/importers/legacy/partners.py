"""Graphs and sequences of the same traces, which lie in different files."""

from collections import defaultdict

import numpy as np

from store.errors import SchemaError
from store.importers.files import Given
from store.importers.legacy.contents import FileReader
from store.importers.legacy.preprocessed import GraphTraces, SequenceTraces
from store.importers.source import Row

__all__ = ["Partners", "Place", "QuestionIds"]

Place = tuple[Given, int]  # file, number of the record in it
QuestionIds = dict[str, dict[Given, list[str]]]  # kind -> file -> question of each trace


class Partners:
    """The k-th graphs of each question, with the k-th sequence of that question.

    Parameters
    ----------
    question_ids
        Kind -> file -> question of each of its traces.
    reader
        For the files of sequences.

    Attributes
    ----------
    sequence_of
        Place of graphs -> place of their sequence.
    joined
        The places of these sequences.
    """

    def __init__(self, question_ids: QuestionIds, reader: FileReader) -> None:
        self._reader = reader
        self.sequence_of: dict[Place, Place] = {}
        sequences = _places(question_ids[SequenceTraces.kind])
        for question_id, graphs in _places(question_ids[GraphTraces.kind]).items():
            self.sequence_of.update(zip(graphs, sequences[question_id], strict=False))
        self.joined = set(self.sequence_of.values())

    def join(self, row: Row, place: Place) -> Row:
        """Return a row with the states of its sequence, if it has one.

        Parameters
        ----------
        row
            Of the graphs at `place`; empty if they are damaged.
        """
        if place not in self.sequence_of:
            return row
        item, i = self.sequence_of[place]
        sequence = self._reader.read(item).row(i)
        states = sequence["hs_last"]
        if row and not _are_close(states, row["hs_last"]):
            raise SchemaError(
                f"expected the states of the last token as in {item.path}, record {i}, of the same "
                "question, found others; import the two kinds into two stores"
            )
        return sequence | row | {"hs_last": states}


def _places(ids: dict[Given, list[str]]) -> defaultdict[str, list[Place]]:
    places: defaultdict[str, list[Place]] = defaultdict(list)
    for item, question_ids in ids.items():
        for i, question_id in enumerate(question_ids):
            places[question_id].append((item, i))
    return places


def _are_close(states: np.ndarray, others: np.ndarray) -> bool:
    """Return whether states are the same but for rounding to half precision."""
    return states.shape == others.shape and np.allclose(
        states.astype(float), others.astype(float), rtol=2e-3, atol=1e-5, equal_nan=True
    )
