"""The training traces of a store that grows while a run learns from it."""

from dataclasses import replace

import numpy as np

from train.data.batches import TrainingData
from train.data.splits import read_splits
from train.errors import DataError

__all__ = ["take_new_rows"]


def take_new_rows(data: TrainingData) -> TrainingData:
    """The data with the training traces that were committed since; val and test stay.

    No question of val or test is trained on from here on, also where a new trace shows that it is
    one with another. Raises DataError if another store than the last of several has grown.
    """
    store = data.store.refresh()
    if store.uuid != data.store.uuid:
        raise DataError(
            f"{data.store.location}: --follow: expected that only the last of several stores "
            "grows, found that another has"
        )
    if len(store) == len(data.store):
        return data
    drawn = replace(data.config, seed=data.splits.seed)  # the seed of a training is another
    splits = read_splits(store, drawn)
    kept = np.concatenate([data.splits.val, data.splits.test])
    is_kept = np.isin(splits.questions[splits.train], splits.questions[kept])
    splits = replace(
        splits,
        train=splits.train[~is_kept],
        val=data.splits.val,
        test=data.splits.test,
    )
    return replace(data, store=store, splits=splits)
