"""How right the answers of the test split are: the number that their labels derive from."""

import numpy as np
from numpy.typing import NDArray

from train.data.batches import TrainingData
from train.data.requirements import missing_columns

__all__ = ["read_truth"]


def read_truth(data: TrainingData) -> NDArray[np.float32] | None:
    """The column `score` of the test split (n_test,), which labels derive from; None without it."""
    if missing_columns(data, ["score"]):
        return None
    return data.store.read(data.splits.test, columns=["score"]).fixed("score").float().numpy()
