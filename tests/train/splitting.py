"""Splits of rows that are in no store, as `read_splits` makes them of a store's."""

import numpy as np

from store.traces.question_split import split_of_question
from train.data.splits import Placed, Splits, by_question, place_rows


def split_rows(question_ids, labels, seed, max_traces=None) -> Splits:
    """Split labelled rows by question; with `max_traces` that many of them, drawn by `seed`."""
    ids = np.asarray(question_ids, dtype=object)
    placed = Placed(by_question(ids, split_of_question, seed))
    return place_rows(placed, ids, labels, seed, max_traces)
