"""Scores of single tokens by what was trained."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from models import Detector, FittedProbe, Probe
from models.token_scores import STATES
from train.data import token_labels
from train.data.batches import TrainingData
from train.data.requirements import columns_of, missing_columns, reader_of
from train.errors import DataError
from train.evaluate.metrics import Labels, Scores

__all__ = [
    "columns_for_tokens",
    "detector_tokens",
    "probe_tokens",
    "token_columns",
    "validation_of_tokens",
]

TokenScores = NDArray[np.float32]  # (n_tokens,)


def token_columns(name: str, data: TrainingData) -> tuple[str, ...]:
    """Columns that a method scores the tokens of this store from; empty if it cannot.

    A method that reads one state a trace needs the states of all tokens, of the same layers.
    """
    read = columns_of(name, data)
    columns = columns_for_tokens(reader_of(name, data), read)
    if missing_columns(data, columns):
        return ()
    if columns == (STATES,) and STATES not in read:
        (one_state,) = read
        there = not missing_columns(data, [one_state])
        if not there or read_as(one_state, data) != read_as(STATES, data):
            return ()
    return columns


def columns_for_tokens(reader: Any, columns: tuple[str, ...]) -> tuple[str, ...]:
    """What a method that reads `columns` would score tokens from, wherever it is."""
    if isinstance(reader, Probe):
        return reader.columns_for_tokens()
    is_detector = isinstance(reader, type)
    return reader.columns_for_tokens(columns) if is_detector else ()


def read_as(role: str, data: TrainingData) -> tuple[tuple[int, ...], list[int]]:
    """Shape and layers of a column's states."""
    return data.item_shape(role), data.layer_numbers(role)


def detector_tokens(
    detector: Detector, data: TrainingData, split: str, device: torch.device
) -> TokenScores:
    """Scores of all tokens of a split by a trained detector, (n_tokens,), in the split's order.

    It is one that `token_columns` has columns for. Other processes take no part.
    """
    detector.eval().to(device)
    parts = [torch.zeros(0)]
    columns = detector.columns_for_tokens(detector.columns)
    for batch in data.loader(split, columns):
        scores = detector.token_scores(batch.to(device))
        assert scores is not None  # the contract of `Detector`
        parts.append(scores.float().cpu())
    return torch.cat(parts).numpy()


def validation_of_tokens(detector: Detector, data: TrainingData) -> tuple[Labels, Scores]:
    """Labels (n,) and probabilities (n,) of the labelled tokens of validation.

    Raises DataError for a score that is not finite.
    """
    device = next(detector.parameters()).device
    scores = detector_tokens(detector, data, "val", device).astype(np.float64)
    tokens = token_labels.read_token_labels(data, "val")
    places = np.flatnonzero(tokens.is_labelled)
    for place in places[~np.isfinite(scores[places])][:1]:
        row = int(data.splits.val[tokens.traces[place]])
        raise DataError(
            f"{data.store.location}: score of a token of trace {data.store.ids[row]!r}: expected a "
            f"finite number, found {scores[place]}; look for values that are not finite in that "
            "trace, or lower --lr"
        )
    return tokens.labels[places].astype(np.int64), expit(scores[places])


def probe_tokens(probe: Probe, fitted: FittedProbe, data: TrainingData, split: str) -> TokenScores:
    """Scores of all tokens of a split by a fitted probe, as `detector_tokens`."""
    parts = [torch.zeros(0)]
    for batch in data.loader(split, probe.columns_for_tokens()):
        scores = probe.token_scores(fitted, batch)
        assert scores is not None  # the contract of `Probe`
        # the loader may reuse the memory of a batch, of which scores may be a view
        parts.append(scores.clone())
    return torch.cat(parts).numpy()
