"""A training that learned nothing is told from one that did."""

import numpy as np
import pytest
from torch import nn

from models.gvae import GvaeLstm
from models.lstm import LstmSolo
from train.config import Config
from train.data.batches import TrainingData
from train.data.splits import Splits
from train.evaluate.results import Epoch
from train.run.detectors import build_criterion
from train.run.trainer import base_rate_loss, chance_warning

N = 200
LABELS = np.tile([1, 0, 0, 0], 3 * N // 4)
ROWS = np.arange(3 * N)
SPLITS = Splits(ROWS[:N], ROWS[N : 2 * N], ROWS[2 * N :], LABELS, ROWS, seed=0)
NOISE = np.random.default_rng(0).random(N)
KNOWING = 0.5 * SPLITS.labels_of("val") + 0.5 * NOISE
FLOOR = -0.25 * np.log(0.25) - 0.75 * np.log(0.75)


def warning_of(scores, *losses, floor=FLOOR):
    history = [Epoch(i, loss, 0.5) for i, loss in enumerate(losses)]
    return chance_warning("mine seed 0", scores, history, SPLITS, floor)


def test_a_training_that_learned_is_not_warned_of():
    assert warning_of(KNOWING, 0.55, 0.3) is None


def test_scores_without_order_are_named_with_their_interval():
    """One line with the AUROC, its interval, and what to try."""
    line = warning_of(NOISE, 0.5, 0.4)
    assert line.startswith("warning: mine seed 0 has not left chance: validation AUROC 0.")
    assert "training loss" not in line
    assert line.endswith("try more --epochs, another --lr, more traces, or other --layers")
    assert "\n" not in line


def test_a_loss_of_the_base_rate_is_named():
    """The lowest of the epochs counts; 1% below the base rate is next to nothing."""
    said = "training loss 0.561, where the base rate alone has 0.562"
    assert said in warning_of(KNOWING, 0.8, 0.561)
    assert warning_of(KNOWING, 0.561, 0.55) is None


def test_losses_that_cannot_be_compared_are_not():
    assert warning_of(KNOWING, 0.7, floor=None) is None


@pytest.mark.parametrize(
    ("detector", "settings", "expected"),
    [
        (LstmSolo, {}, FLOOR),
        (LstmSolo, {"focal_loss": True}, None),
        (LstmSolo, {"class_weights": True}, None),
        (LstmSolo, {"label_smoothing": 0.1}, None),
        (LstmSolo, {"mixup": 0.2}, None),
        (LstmSolo, {"on_top_of": "entropy"}, None),
        (GvaeLstm, {}, None),  # its loss has other terms
    ],
    ids=str,
)
def test_the_loss_of_the_base_rate_is_that_of_plain_trainings(detector, settings, expected):
    config = Config(**settings)
    one = detector(4)
    one.criterion = build_criterion(config, SPLITS.labels_of("train"))
    found = base_rate_loss(one, TrainingData(None, SPLITS, config))
    assert found == (expected and pytest.approx(expected))


def test_a_loss_of_another_class_is_not_compared():
    one = LstmSolo(4)
    one.criterion = nn.MSELoss()
    assert base_rate_loss(one, TrainingData(None, SPLITS)) is None
