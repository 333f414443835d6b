"""Scores of the single tokens of any traces, by what a finished run has trained."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from models import DETECTORS, FittedProbe
from store import Column, TraceStore
from train.commands.scoring import (
    ScoresByName,
    TrainedModels,
    column_of,
    load_detector,
    load_probe,
    write_columns,
)
from train.config import Config
from train.data.batches import TrainingData
from train.data.requirements import reader_of
from train.errors import ConfigError
from train.fit.device import (
    build_fabric,
    cpu_arithmetic,
    default_threads,
    for_a_batch,
    memory_enough,
)
from train.fit.token_scores import detector_tokens, probe_tokens, token_columns
from train.run.detectors import hidden_size

__all__ = [
    "ScoredTokens",
    "TokensByName",
    "names_with_tokens",
    "score_tokens",
    "token_column_of",
    "write_json_lines",
    "write_to_store",
]


@dataclass(frozen=True)
class ScoredTokens:
    """Scores of all tokens of a store by one method.

    Attributes
    ----------
    scores : float32 (n_tokens,)
        Mean over the run's seeds; NaN where the method has none, as for a token without a
        prediction.
    offsets : int64 (n_rows + 1,)
        Where the tokens of each trace begin.
    axis : str
        The ragged axis of the store that they are on.
    """

    scores: NDArray[np.float32]
    offsets: NDArray[np.int64]
    axis: str

    def rows(self) -> Iterator[NDArray[np.float32]]:
        """The scores of each trace (T,), views."""
        for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.scores[start:stop]


TokensByName = dict[str, ScoredTokens]  # detector, probe or baseline -> its scores


def names_with_tokens(names: Sequence[str], config: Config, data: TrainingData) -> list[str]:
    """Those of the names that score the tokens of this store; ConfigError if none does."""
    found = [name for name in names if token_columns(name, config, data)]
    if not found:
        raise ConfigError(
            f"--tokens: expected a method that scores tokens, found {', '.join(names)}, which "
            f"cannot in {data.store.path}; most need its column hidden_states, of the layers that "
            "they read, and baselines such as mean_logprob are named with --models"
        )
    return found


def score_tokens(models: TrainedModels, names: Sequence[str], data: TrainingData) -> TokensByName:
    """Scores of every token of the store, by the names of `names_with_tokens`."""
    found = {}
    for name in names:
        role = token_columns(name, models.config, data)[0]
        column = data.column(role)
        axis = data.store.schema.axis_of(column)
        assert axis is not None  # `check_columns` has them ragged
        offsets = np.append(0, np.cumsum(data.store.lengths(column)))
        found[name] = ScoredTokens(scores_by(name, models, data), offsets, axis)
    return found


def scores_by(name: str, models: TrainedModels, data: TrainingData) -> NDArray[np.float32]:
    """Mean scores of the tokens, (n_tokens,)."""
    config = models.config
    if not len(data.store):
        return np.zeros(0, np.float32)
    if name not in DETECTORS:
        fitted = load_probe(name, models)
        assert isinstance(fitted, FittedProbe)  # of texts it has no columns for tokens
        return probe_tokens(reader_of(name, data), fitted, data, "test", config)
    device = build_fabric(config).device
    scores = []
    for seed in range(config.seed, config.seed + config.seeds):
        detector = load_detector(name, seed, models, data)
        threads = default_threads(hidden_size(name, data))
        with cpu_arithmetic(threads), memory_enough(name, for_a_batch(config)):
            scores.append(detector_tokens(detector, data, "test", config, device))
    return np.mean(scores, axis=0)


def token_column_of(name: str) -> str:
    """The column of a store that holds the scores of the tokens by a method."""
    return f"score_token_{name}"


def write_to_store(store: TraceStore, scores: ScoresByName, tokens: TokensByName) -> list[str]:
    """Write the scores of traces and tokens as float32 columns, all or none; return their names."""
    of_traces = {column_of(name): Column("float32") for name in scores}
    of_tokens = {
        token_column_of(name): Column("float32", axis=one.axis) for name, one in tokens.items()
    }
    values: list[Iterable[object]] = [one.astype(np.float32) for one in scores.values()]
    values += [one.rows() for one in tokens.values()]
    columns = of_traces | of_tokens
    write_columns(store, columns, values)
    return list(columns)


def write_json_lines(
    file: TextIO,
    store: TraceStore,
    scores: ScoresByName,
    tokens: TokensByName,
    splits: Sequence[str],
) -> None:
    """An object per trace: trace_id, split, and by name its score and those of its tokens.

    A score that is missing is null.
    """
    rows = zip(*(one.rows() for one in tokens.values()), strict=True)
    of_traces = zip(*(values.tolist() for values in scores.values()), strict=True)
    for trace_id, split, values, row in zip(store.ids, splits, of_traces, rows, strict=True):
        line = {
            "trace_id": trace_id,
            "split": split,
            "scores": dict(zip(scores, values, strict=True)),
            "token_scores": {name: as_numbers(one) for name, one in zip(tokens, row, strict=True)},
        }
        file.write(json.dumps(line, allow_nan=False) + "\n")


def as_numbers(scores: NDArray[np.float32]) -> list[float | None]:
    return [number if np.isfinite(number) else None for number in scores.tolist()]
