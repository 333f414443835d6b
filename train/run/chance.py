"""Whether a training has learned anything: a line for one that ends where it began.

A detector that gives every row about the base rate looks like a weak detector in a table; more
often its training failed.
"""

import math
from collections.abc import Sequence

from models import Detector
from train.config import Config
from train.data.splits import Splits
from train.evaluate.metrics import Scores, auroc, bootstrap_auroc
from train.evaluate.results import Epoch

__all__ = ["base_rate_loss", "chance_warning"]

# of the loss of the base rate: one that lowers it by less than 1% has learned next to nothing
ABOUT = 0.99
ADVICE = "more --epochs, another --lr, more traces, or other --layers"


def chance_warning(
    title: str, scores: Scores, history: Sequence[Epoch], splits: Splits, loss_floor: float | None
) -> str | None:
    """One line on a training that has not left chance; None for one that has.

    `title` names the detector and its seed, `scores` are float64 (n_val,), with the best weights,
    and `history` has the mean `loss` of each epoch. The questions of validation are resampled for
    the interval of the AUROC. `loss_floor` is the mean loss on train of the base rate alone, or
    None where losses cannot be compared with it.
    """
    labels = splits.labels_of("val")
    area = auroc(labels, scores)
    questions = splits.questions[splits.val]
    low, high = bootstrap_auroc(labels, scores, questions, splits.seed)
    lowest = min(epoch.loss for epoch in history)
    interval = f"{area:.3f} [{low:.3f}, {high:.3f}]"
    is_at_floor = loss_floor is not None and lowest > ABOUT * loss_floor
    losses = f"training loss {lowest:.3f}, where the base rate alone has {loss_floor or 0:.3f}"
    if low <= 0.5:
        signs = f"validation AUROC {interval}" + (f"; {losses}" if is_at_floor else "")
        return f"warning: {title} has not left chance: {signs}; try {ADVICE}"
    if is_at_floor:
        return (
            f"warning: {title} ranks (validation AUROC {interval}), but its probabilities say "
            f"little: {losses}; try {ADVICE}"
        )
    return None


def base_rate_loss(detector: Detector, config: Config, splits: Splits) -> float | None:
    """Mean cross-entropy of the base rate of train; None where the training has another loss."""
    is_plain = type(detector).loss is Detector.loss and detector.has_plain_loss
    if not is_plain or config.mixup or config.on_top_of is not None:
        return None
    rate = float(splits.labels_of("train").mean())
    return -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
