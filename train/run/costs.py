"""What the scores of samples were made from, for a method that reads some."""

import math

import numpy as np

from store.transform.samples.names import NEEDS, NLI, STATES
from train.data.batches import TrainingData
from train.data.columns import present_columns
from train.run.detectors import roles_read

__all__ = ["also_needed", "bytes_of_answers"]


def bytes_of_answers(name: str, data: TrainingData) -> float:
    """Mean bytes, decoded, of what the scores of samples that a method reads were made from.

    They are of a trace of test: of all answers to its question, offsets not counted.
    """
    needed = [one for role in scores_of_samples(name, data) for one in NEEDS[role]]
    made_from = present_columns(data, needed)
    return answers_per_question(data) * sum(column_bytes(role, data) for role in made_from)


def also_needed(name: str, data: TrainingData) -> str | None:
    """What else the columns that a method reads were made from; None where nothing is."""
    scores = scores_of_samples(name, data)
    if not scores:
        return None
    nli = ", a classifier (NLI)" if any(role in NLI for role in scores) else ""
    return f"{answers_per_question(data):.3g} answers a question{nli}"


def scores_of_samples(name: str, data: TrainingData) -> list[str]:
    """The columns of this kind that a method reads to score, optional ones among them."""
    return [role for role in roles_read(name, data) if role in NEEDS]


def column_bytes(role: str, data: TrainingData) -> float:
    """Mean bytes of a column that scores of samples are made from, in a trace of test; of states
    those of one layer."""
    name = data.column(role)
    column = data.store.schema.columns[name]
    shape = data.item_shape(role)
    if role == STATES:
        shape = (1, *shape[1:])
    n_items = float(data.store.lengths(name)[data.splits.test].mean())
    return n_items * column.storage_dtype.itemsize * math.prod(shape)


def answers_per_question(data: TrainingData) -> float:
    """Mean number of answers in the store to the question of a trace of test."""
    return float(np.bincount(data.splits.questions)[data.splits.questions[data.splits.test]].mean())
