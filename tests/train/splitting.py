"""Splits of stores, and of rows that are in none, as `read_splits` makes them of a store's."""

import numpy as np

from store import TraceStore
from store.traces.question_split import split_of_question
from train.config import Config
from train.data.batches import TrainingData
from train.data.splits import Placed, Splits, by_question, place_rows, read_splits


def split_data(store, **settings) -> TrainingData:
    """A store, open or at a path, with the splits that it has with these settings."""
    opened = store if isinstance(store, TraceStore) else TraceStore.open(store)
    config = Config(**settings)
    return TrainingData(opened, read_splits(opened, config), config)


def split_rows(question_ids, labels, seed, max_traces=None) -> Splits:
    """Split labelled rows by question; with `max_traces` that many of them, drawn by `seed`."""
    ids = np.asarray(question_ids, dtype=object)
    placed = Placed(by_question(ids, split_of_question, seed))
    return place_rows(placed, ids, labels, seed, max_traces)
