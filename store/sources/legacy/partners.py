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
        file, i = self.sequence_of[place]
        sequence = self._reader.read(file).row(i)
        states = sequence["hs_last"]
        if row and not _are_close(states, row["hs_last"]):
            raise RecordError(
                f"expected the states of the last token as in {file}, record {i}, of the same "
                "question, found others; import the two kinds into two stores"
            )
        return sequence | row | {"hs_last": states}


def _places(ids: Mapping[Path, Sequence[str]]) -> defaultdict[str, list[Place]]:
    """Return question -> places of its traces, in their order."""
    places: defaultdict[str, list[Place]] = defaultdict(list)
    for file, question_ids in ids.items():
        for i, question_id in enumerate(question_ids):
            places[question_id].append((file, i))
    return places


def _are_close(states: np.ndarray, others: np.ndarray) -> bool:
    """Return whether states are the same but for rounding to half precision."""
    return states.shape == others.shape and np.allclose(
        states.astype(float), others.astype(float), rtol=2e-3, atol=1e-5, equal_nan=True
    )
