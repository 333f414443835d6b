"""Preprocessed traces: files that torch saved for the training of the older detectors.

- **lstm**: `{"sequences", "labels", "question_ids"}`, the last token's states of every layer.
- **graphs**: `{"graphs", "labels", "question_ids"}`, a graph for each layer of each trace.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

from store.errors import SchemaError
from store.importers.legacy import fields
from store.importers.legacy.layers import state_columns
from store.importers.source import Row
from store.labels.rule import UNLABELLED

__all__ = ["GraphTraces", "PreprocessedTraces", "SequenceTraces"]


class PreprocessedTraces:
    """The traces of one file; raises SchemaError if the parts of its content do not fit together.

    Attributes
    ----------
    values
        What it holds of each trace.
    question_ids
        The question of each trace.
    """

    key: ClassVar[str]  # of `values` in the content
    kind: ClassVar[str]  # as messages call the format

    def __init__(self, content: Mapping) -> None:
        self.values = content[self.key]
        self.question_ids = fields.texts(content, "question_ids")
        labels = fields.array(content["labels"]).astype(np.float64).ravel()
        self._labels = np.where(np.isin(labels, (0, 1)), labels, UNLABELLED).astype(np.int8)
        for name, values in ((self.key, self.values), ("labels", labels)):
            if len(values) != len(self):
                raise SchemaError(
                    f"{name}: expected {len(self)} of them as question_ids has, found {len(values)}"
                )

    def __len__(self) -> int:
        return len(self.question_ids)

    @property
    def typical_first(self) -> Sequence[int]:
        """The numbers of all traces: a file of one tensor has none of other sizes."""
        return range(len(self))

    def row(self, i: int) -> Row:
        """Return the columns of trace i; raise SchemaError if it contradicts itself."""
        return {
            "question_id": self.question_ids[i],
            "label": self._labels[i],
            **self._states(i),
        }

    def _states(self, i: int) -> Row:
        raise NotImplementedError


class SequenceTraces(PreprocessedTraces):
    """The traces of an lstm file."""

    key = "sequences"
    kind = "lstm"

    def _states(self, i: int) -> Row:
        return {"hs_last": fields.floats(self.values[i], "sequences", 2)}


class GraphTraces(PreprocessedTraces):
    """The traces of a file of graphs."""

    key = "graphs"
    kind = "graphs"

    def _states(self, i: int) -> Row:
        """Return hidden_states, hs_last and attn_mean; an edge that is not there is 0."""
        graphs = fields.parts(self.values[i], "graphs", "a graph for each layer")
        states = [fields.floats(_part(graph, "x"), "x", 2) for graph in graphs]
        n_tokens = len(states[0])
        columns = state_columns(states, n_tokens)
        edges = [_edges(graph, n_tokens) for graph in graphs]
        n_pairs = n_tokens * (n_tokens + 1) // 2
        _, first_values = edges[0]
        mean = np.zeros((n_pairs, len(graphs)), first_values.dtype)
        for layer, (pairs, values) in enumerate(edges):
            mean[pairs, layer] = values
        columns["attn_mean"] = mean
        return columns

    def smallest_edge(self) -> float:
        """Return a threshold that the graphs were built with or above; 0 if all are complete.

        The file does not say it. Graphs of a higher threshold than the smallest attention kept
        anywhere are the same, built from these edges or from the full maps.
        """
        smallest = math.inf
        complete = True
        for graphs in self.values:
            # a damaged trace is reported in its turn
            with suppress(SchemaError, TypeError, ValueError):
                for graph in graphs:
                    n_tokens = len(_part(graph, "x"))
                    n_pairs = n_tokens * (n_tokens + 1) // 2
                    values = fields.array(_part(graph, "edge_attr"))
                    complete &= values.size == n_pairs
                    smallest = min(smallest, float(values.min(initial=np.inf)))
        if smallest == math.inf and not complete:
            raise SchemaError(
                "graphs: expected an edge in some graph, found none; --attn-threshold is not known"
            )
        return 0.0 if complete else smallest


def _part(graph: Any, name: str) -> Any:
    try:
        return graph[name]
    except (KeyError, TypeError, AttributeError) as error:
        raise SchemaError(
            f"graphs: expected graphs with x, edge_index and edge_attr, found none with {name}"
        ) from error


def _edges(graph: Any, n_tokens: int) -> tuple[np.ndarray, np.ndarray]:
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
