"""Preprocessed traces: files that torch saved for the training of the older detectors.

- **lstm**: `{"sequences", "labels", "question_ids"}`, the last token's states of every layer.
- **graphs**: `{"graphs", "labels", "question_ids"}`, a graph for each layer of each trace.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.importers.files import Given
from store.importers.legacy import fields
from store.importers.legacy.states import state_columns
from store.importers.source import Row
from store.labels.rule import UNLABELLED

__all__ = ["GRAPHS", "SEQUENCES", "Partners", "PreprocessedTraces", "QuestionIds"]

Place = tuple[Given, int]  # file, number of the record in it
QuestionIds = dict[str, dict[Given, list[str]]]  # kind -> file -> question of each trace
GRAPHS, SEQUENCES = "graphs", "lstm"  # kinds, as messages call them
KEYS = {"sequences": SEQUENCES, "graphs": GRAPHS}  # of the values of the traces -> kind


class PreprocessedTraces:
    """The traces of one file; raises SchemaError if the parts of its content do not fit together.

    `question_ids` is the question of each trace.
    """

    def __init__(self, content: Mapping) -> None:
        key, self.kind = next((key, kind) for key, kind in KEYS.items() if key in content)
        self._values = content[key]
        self.question_ids = fields.texts(content, "question_ids")
        labels = fields.array(content["labels"]).astype(np.float64).ravel()
        self._labels = np.where(np.isin(labels, (0, 1)), labels, UNLABELLED).astype(np.int8)
        for name, values in ((key, self._values), ("labels", labels)):
            if len(values) != len(self):
                raise SchemaError(
                    f"{name}: expected {len(self)} of them as question_ids has, found {len(values)}"
                )

    @staticmethod
    def are_in(content: Mapping) -> bool:
        """Return whether a dict has the keys of such a file."""
        return {"labels", "question_ids"} <= content.keys() and not content.keys().isdisjoint(KEYS)

    def __len__(self) -> int:
        return len(self.question_ids)

    @property
    def typical_first(self) -> Sequence[int]:
        """The numbers of all traces: a file of one tensor has none of other sizes."""
        return range(len(self))

    def row(self, i: int) -> Row:
        """Return the columns of trace i; raise SchemaError if it contradicts itself."""
        value = self._values[i]
        if self.kind == SEQUENCES:
            states = {"hs_last": fields.floats(value, "sequences", 2)}
        else:
            states = _graph_columns(value)
        return {"question_id": self.question_ids[i], "label": self._labels[i], **states}

    def smallest_edge(self) -> float:
        """Return a threshold that the graphs were built with or above; 0 if all are complete.

        The file does not say it. Graphs of a higher threshold than the smallest attention kept
        anywhere are the same, built from these edges or from the full maps.
        """
        smallest = math.inf
        complete = True
        for graphs in self._values if self.kind == GRAPHS else ():
            # a damaged trace is reported in its turn
            with suppress(SchemaError, TypeError, ValueError):
                for graph in graphs:
                    n_pairs = _n_pairs(len(_part(graph, "x")))
                    values = fields.array(_part(graph, "edge_attr"))
                    complete &= values.size == n_pairs
                    smallest = min(smallest, float(values.min(initial=np.inf)))
        if smallest == math.inf and not complete:
            raise SchemaError(
                "graphs: expected an edge in some graph, found none; --attn-threshold is not known"
            )
        return 0.0 if complete else smallest


def _graph_columns(value: object) -> Row:
    """Return hidden_states, hs_last and attn_mean; an edge that is not there is 0."""
    graphs = fields.parts(value, "graphs", "a graph for each layer")
    states = [fields.floats(_part(graph, "x"), "x", 2) for graph in graphs]
    columns = state_columns(states)
    n_tokens = len(states[0])
    edges = [_edges(graph, n_tokens) for graph in graphs]
    _, first_values = edges[0]
    mean = np.zeros((_n_pairs(n_tokens), len(graphs)), first_values.dtype)
    for layer, (pairs, values) in enumerate(edges):
        mean[pairs, layer] = values
    return columns | {"attn_mean": mean}


def _n_pairs(n_tokens: int) -> int:
    return n_tokens * (n_tokens + 1) // 2


def _part(graph: Any, name: str) -> Any:
    try:
        return graph[name]
    except (KeyError, TypeError, AttributeError) as error:
        raise SchemaError(
            f"graphs: expected graphs with x, edge_index and edge_attr, found none with {name}"
        ) from error


def _edges(graph: object, n_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pair number and attention of every edge, from token j to token i, j <= i."""
    index = fields.array(_part(graph, "edge_index"))
    source, target = index.astype(np.int64).reshape(2, -1)
    weights = fields.array(_part(graph, "edge_attr"))
    values = fields.floats(weights.reshape(-1), "edge_attr", 1)
    n_edges = len(source)
    if len(values) != n_edges:
        raise SchemaError(f"edge_attr: expected {n_edges} values, one an edge, found {len(values)}")
    is_wrong = (source < 0) | (source > target) | (target >= n_tokens)
    if is_wrong.any():
        raise SchemaError(
            "edge_index: expected edges from a token to itself or a later one "
            f"of {n_tokens}, found others"
        )
    pairs = target * (target + 1) // 2 + source
    if len(np.unique(pairs)) != n_edges:
        raise SchemaError("edge_index: expected every edge once, found one twice")
    return pairs, values


class Partners:
    """The k-th graphs of each question, with the k-th sequence of that question."""

    def __init__(self, question_ids: QuestionIds, row_of: Callable[[Given, int], Row]) -> None:
        self._row_of = row_of
        self.sequence_of: dict[Place, Place] = {}  # by the place of graphs
        sequences = _places(question_ids[SEQUENCES])
        for question_id, graphs in _places(question_ids[GRAPHS]).items():
            self.sequence_of.update(zip(graphs, sequences[question_id], strict=False))
        self.joined = set(self.sequence_of.values())

    def join(self, row: Row, place: Place) -> Row:
        """Return the row of the graphs at a place with that of their sequence.

        Raises SchemaError if the two have other states.
        """
        if place not in self.sequence_of:
            return row
        item, i = self.sequence_of[place]
        sequence = self._row_of(item, i)
        states = sequence["hs_last"]
        if not _are_close(states, row["hs_last"]):
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
