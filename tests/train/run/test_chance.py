"""A training that learned nothing is told from one that did."""

import numpy as np

from train.data.splits import Splits
from train.run.trainer import chance_warning

N = 200
LABELS = np.tile([1, 0, 0, 0], 3 * N // 4)
ROWS = np.arange(3 * N)
SPLITS = Splits(ROWS[:N], ROWS[N : 2 * N], ROWS[2 * N :], LABELS, ROWS, seed=0)
NOISE = np.random.default_rng(0).random(N)
KNOWING = 0.5 * SPLITS.labels_of("val") + 0.5 * NOISE


def test_a_training_that_has_not_left_chance_is_named():
    """One line with the AUROC, its interval, and what to try; not of one that learned."""
    assert chance_warning("mine seed 0", KNOWING, SPLITS) is None
    line = chance_warning("mine seed 0", NOISE, SPLITS)
    assert line.startswith("warning: mine seed 0 has not left chance: validation AUROC 0.")
    assert line.endswith("try more --epochs, another --lr, more traces, or other --layers")
