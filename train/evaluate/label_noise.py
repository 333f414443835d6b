"""How far AUROCs can move if some labels are wrong: NumPy arrays in, numbers out."""

import math

import numpy as np
from scipy.stats import rankdata
from sklearn.metrics import cohen_kappa_score

from store.labels.rule import UNLABELLED
from train.evaluate.frame import Frame
from train.evaluate.metrics import Labels, Scores, mean_auroc
from train.evaluate.results import LabelNoise, NoisyArea

__all__ = [
    "agreement_of",
    "auroc_bounds",
    "auroc_without_noise",
    "error_of_graders",
    "measure_label_noise",
]


def measure_label_noise(
    test: Frame[str], error: float | None, second: Labels | None = None
) -> LabelNoise:
    """What wrong labels can do to each AUROC on test, the mean over the runs of a method.

    `error` is the share of labels that are wrong, by default that of `error_of_graders`; `second`
    (n_test,) are the labels of a second grader, -1 where there is none.
    """
    noise = LabelNoise(error=error or 0.0, auroc={})
    second = np.full(len(test), UNLABELLED) if second is None else second
    is_both = second != UNLABELLED
    if is_both.any():
        noise.rows = int(is_both.sum())
        noise.agreement, noise.kappa = agreement_of(test.labels[is_both], second[is_both])
        noise.error = error_of_graders(noise.agreement) if error is None else error
    for name, runs in test.scores.items():
        noise.auroc[name] = noisy_area(test.labels, runs, noise.error)
        if len(np.unique(second[is_both])) == 2:
            noise.auroc[name].second = mean_auroc(second[is_both], runs[:, is_both])
    return noise


def noisy_area(labels: Labels, runs: Scores, error: float) -> NoisyArea:
    """The means over runs (n_runs, n); no bounds where all of a class may be wrong.

    The area for true labels is within the bounds: of few rows a formula of shares may go beyond.
    """
    n_wrong = round(error * len(labels))
    corrected = auroc_without_noise(mean_auroc(labels, runs), float(labels.mean()), error)
    if n_wrong >= min(labels.sum(), (1 - labels).sum()):
        return NoisyArea(corrected, None, None)
    low, high = np.mean([auroc_bounds(labels, run, n_wrong) for run in runs], axis=0).tolist()
    if corrected is not None:
        corrected = min(max(corrected, low), high)
    return NoisyArea(corrected, low, high)


def agreement_of(first: Labels, second: Labels) -> tuple[float, float]:
    """Share of rows (n,) with equal labels, and Cohen's kappa; kappa is 0 for equal constants."""
    if len(np.unique([first, second])) == 1:
        return 1.0, 0.0
    return float(np.mean(first == second)), float(cohen_kappa_score(first, second))


def error_of_graders(agreement: float) -> float:
    """The share of labels that each of two graders has wrong, by how often they agree.

    It is e in 2 e (1 - e) = 1 - agreement: both err as often, and independently; graders that share
    their mistakes agree on those. One half where they agree less than by chance.
    """
    return (1 - math.sqrt(max(0.0, 2 * agreement - 1))) / 2


def auroc_without_noise(area: float, base_rate: float, error: float) -> float | None:
    """The AUROC for true labels, if `area` is for labels of which a share `error` is wrong.

    The errors are taken to be as frequent in both classes, and independent of the score within a
    class. Then AUROC - 1/2 shrinks by 1 - a - b, the shares of wrong labels among the positives and
    the negatives (Menon et al., ICML 2015). It is at most 1; None where the labels could be noise
    alone: a class would have no true member.
    """
    true_rate = (base_rate - error) / (1 - 2 * error) if error < 0.5 else 0.0
    if not 0 < true_rate < 1:
        return None
    wrong_positives = error * (1 - true_rate) / base_rate
    wrong_negatives = error * true_rate / (1 - base_rate)
    kept = 1 - wrong_positives - wrong_negatives
    return float(np.clip(0.5 + (area - 0.5) / kept, 0, 1))


def auroc_bounds(labels: Labels, scores: Scores, n_wrong: int) -> tuple[float, float]:
    """The least and the largest AUROC for true labels if any `n_wrong` of these are wrong.

    For given numbers of wrong positives and negatives it is largest if those are the lowest
    positives and the highest negatives, so all such numbers are tried; both ends are exact. There
    are more than `n_wrong` labels of each class.
    """
    low = 1 - _largest_auroc(labels, -scores, n_wrong)
    return low, _largest_auroc(labels, scores, n_wrong)


def _largest_auroc(labels: Labels, scores: Scores, n_wrong: int) -> float:
    ranks = rankdata(scores)
    positives, negatives = np.sort(ranks[labels == 1]), np.sort(ranks[labels == 0])[::-1]
    lost = np.append(0, np.cumsum(positives[:n_wrong]))
    won = np.append(0, np.cumsum(negatives[:n_wrong]))[::-1]
    wrong_positives = np.arange(n_wrong + 1)  # the other wrong labels are negatives
    n_positive = len(positives) + n_wrong - 2 * wrong_positives
    rank_sums = positives.sum() - lost + won
    areas = rank_sums - n_positive * (n_positive + 1) / 2
    return float((areas / (n_positive * (len(labels) - n_positive))).max())
