"""Graphs and sequences of the same traces, which lie in different files."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from store.sources.legacy.contents import FileReader
from store.sources.legacy.fields import RecordError, Row

__all__ = ["Partners", "Place"]

Place = tuple[Path, int]  # file, number of the record in it


class Partners:
    """The k-th graphs of each question, with the k-th sequence of that question.

    Parameters
    ----------
    graph_ids, sequence_ids
        File -> question of each of its traces.
    reader
        For the files of sequences.

    Attributes
    ----------
    sequence_of
        Place of graphs -> place of their sequence.
    joined
        The places of these sequences.
    """

    def __init__(
        self,
        graph_ids: Mapping[Path, Sequence[str]],
        sequence_ids: Mapping[Path, Sequence[str]],
        reader: FileReader,
    ) -> None:
        self._reader = reader
        self.sequence_of: dict[Place, Place] = {}
        sequences = _places(sequence_ids)
        for question_id, graphs in _places(graph_ids).items():
            partners = sequences[question_id]
            pairs = zip(graphs, partners, strict=False)
            self.sequence_of.update(pairs)
        self.joined = set(self.sequence_of.values())

    def sequence_row(self, place: Place) -> Row:
        """Return the columns of a sequence."""
        file, i = place
        return self._reader.read(file).row(i)

    def join(self, row: Row, place: Place) -> None:
        """Put the states of the sequence into the row of the graphs at a place, if it has one."""
        if place not in self.sequence_of:
            return
        sequence = self.sequence_of[place]
        states = self.sequence_row(sequence)["hs_last"]
        if not _are_close(states, row["hs_last"]):
            file, i = sequence
            raise RecordError(
                f"expected the states of the last token as in {file}, record {i}, of the same "
                "question, found others; import the two kinds into two stores"
            )
        row["hs_last"] = states


def _places(ids: Mapping[Path, Sequence[str]]) -> defaultdict[str, list[Place]]:
    """Return question -> places of its traces, in their order."""
    places: defaultdict[str, list[Place]] = defaultdict(list)
    for file, question_ids in ids.items():
        for i, question_id in enumerate(question_ids):
            places[question_id].append((file, i))
    return places


def _are_close(states: np.ndarray, others: np.ndarray) -> bool:
    """Return whether states are the same but for rounding to half precision."""
    if states.shape != others.shape:
        return False
    return np.allclose(
        states.astype(float), others.astype(float), rtol=2e-3, atol=1e-5, equal_nan=True
    )
