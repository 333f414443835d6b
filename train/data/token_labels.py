"""Labels of single tokens, the column `token_label`: read by split, and checked before use.

1: the token is part of a hallucination; 0: it is not; -1: no label (the prompt, or an answer
without annotations). Traces without a label are in no split, and their tokens are not used.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store.labels.rule import UNLABELLED
from store.traces.question_split import SPLITS
from train.data.batches import TrainingData

__all__ = [
    "ROLE",
    "TokenLabels",
    "find_unusable",
    "has_labelled_tokens",
    "has_token_labels",
    "read_token_labels",
]

ROLE = "token_label"
# columns of a value for each token, whose lengths the labels have to have
OF_TOKENS = ("hidden_states", "logprob", "entropy", "topk_logprob")


@dataclass(frozen=True)
class TokenLabels:
    """The tokens of the traces of a split, in its order, those without a label included."""

    labels: NDArray[np.integer]  # integers (n_tokens,): 1, 0, or -1 without a label
    traces: NDArray[np.int64]  # int64 (n_tokens,): position in the split of each token's trace

    @property
    def is_labelled(self) -> NDArray[np.bool_]:
        return self.labels != UNLABELLED


def read_token_labels(data: TrainingData, split: str) -> TokenLabels:
    """The labels of the tokens of a split; the store has the column."""
    batch = data.read(data.splits.rows(split), [ROLE])
    values, offsets = batch.ragged(ROLE)
    lengths = offsets.diff().numpy()
    traces = np.repeat(np.arange(len(lengths)), lengths)
    return TokenLabels(values.numpy(), traces)


def find_unusable(data: TrainingData) -> str | None:
    """What keeps the labels of tokens from being used; None if nothing does, or there are none."""
    return next(find_problems(data), None) if has_token_labels(data) else None


def has_token_labels(data: TrainingData) -> bool:
    """Whether the store has a column of them, usable or not."""
    column = data.store.schema.columns.get(data.column(ROLE))
    return column is not None and column.axis is not None and not column.item_shape


def has_labelled_tokens(data: TrainingData) -> bool:
    """Whether a token of some split has a label: `extract` writes the column for all answers."""
    return has_token_labels(data) and any(
        read_token_labels(data, split).is_labelled.any() for split in SPLITS
    )


def find_problems(data: TrainingData) -> Iterator[str]:
    store = data.store
    name = data.column(ROLE)
    lengths = store.lengths(name)
    for other in data.names(OF_TOKENS).values():
        column = store.schema.columns.get(other)
        if column is None or not column.axis:
            continue
        expected = store.lengths(other)
        for row in np.flatnonzero(lengths != expected)[:1]:
            yield (
                f"column {name!r}, trace {store.ids[row]!r}: expected {expected[row]} labels, one "
                f"for each token of {other!r}, found {lengths[row]}; write the labels again"
            )
    for split in SPLITS:
        yield from find_problems_of_split(data, split)


def find_problems_of_split(data: TrainingData, split: str) -> Iterator[str]:
    name = data.column(ROLE)
    tokens = read_token_labels(data, split)
    wrong = np.flatnonzero(~np.isin(tokens.labels, (0, 1, UNLABELLED)))
    for token in wrong[:1]:
        row = int(data.splits.rows(split)[tokens.traces[token]])
        yield (
            f"column {name!r}, trace {data.store.ids[row]!r}: expected 1, 0 or -1, found "
            f"{tokens.labels[token]}; correct the {len(wrong)} labels like it"
        )
    n_labelled = int(tokens.is_labelled.sum())
    n_wrong = int((tokens.labels == 1).sum())
    if not 0 < n_wrong < n_labelled:
        yield (
            f"column {name!r}, {split} split: expected hallucinated and right tokens, found "
            f"{n_wrong} hallucinated of {n_labelled} labelled ones; add traces with labels of "
            "tokens, or try another --seed"
        )
