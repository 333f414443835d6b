"""AUROC among rows that are alike: within strata of a column, or of a control's score.

A detector that ranks only by what the strata have in common has .5 within them, whatever its AUROC
over all rows is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from train.evaluate.metrics import (
    Labels,
    Questions,
    Scores,
    percentile_interval,
    resampled_weights,
)
from train.evaluate.results import Interval, StrataRecord

__all__ = ["Strata", "auroc_within", "cut_by", "judge_within", "rank_correlation", "strata_of"]

N_BINS = 10


@dataclass(frozen=True)
class Strata:
    """Groups of the rows of a split.

    Attributes
    ----------
    by : str
        What they are of, in words: a column, or deciles of a control's score.
    stratum : int64 (n,)
        Equal for rows of one stratum.
    control : str or None
        Whose score was cut.
    """

    by: str
    stratum: NDArray[np.int64]
    control: str | None = None

    def summary(self, labels: Labels) -> StrataRecord:
        """Their number, and the pairs of a hallucination and a right answer within them."""
        positives = np.bincount(self.stratum, labels)
        negatives = np.bincount(self.stratum, 1 - labels)
        n_pairs = float(positives @ negatives)
        return StrataRecord(
            by=self.by,
            control=self.control,
            strata=len(np.unique(self.stratum)),
            strata_with_both_classes=int(np.sum(positives * negatives > 0)),
            pairs=int(n_pairs),
            share_of_pairs=n_pairs / float(labels.sum() * (1 - labels).sum()),
        )


def strata_of(by: str, values: NDArray) -> Strata:
    """One stratum for each distinct value (n,)."""
    return Strata(by, np.unique(values, return_inverse=True)[1])


def cut_by(name: str, val: Scores, test: Scores) -> Strata:
    """Strata of the test rows (n_test,) by a score, cut at its deciles on validation (n_val,).

    Equal scores are of one stratum, so there may be fewer than ten. The cuts never see a label. A
    decile still has easier and harder rows: the AUROC of the score itself within the strata says
    how much of it they leave.
    """
    edges = np.unique(np.quantile(val, np.arange(1, N_BINS) / N_BINS))
    stratum = np.searchsorted(edges, test, side="right")
    return Strata(f"deciles of the score of {name} on validation", stratum, name)


def auroc_within(
    labels: Labels, scores: Scores, stratum: NDArray[np.int64], weights: NDArray | None = None
) -> float | None:
    """Mean of the AUROCs within strata, each weighted by its pairs of a positive and a negative.

    It is the share of the pairs of one stratum whose positive outranks its negative, a tie counting
    one half.

    `labels` (n,) are 0 and 1, `scores` (n,) finite; `weights` (n,) say how often each row counts,
    once by default. Returns None where no stratum has both classes.
    """
    order = find_ties(scores, stratum)
    return _auroc_of_ties(labels, order, np.ones(len(labels)) if weights is None else weights)


@dataclass(frozen=True)
class Ties:
    """Rows in groups of equal stratum and score: the strata one after another, each from its lowest
    score."""

    group: NDArray[np.int64]  # (n,) number of each row's group
    stratum: NDArray[np.int64]  # (n_groups,) ascending


def find_ties(scores: Scores, stratum: NDArray[np.int64]) -> Ties:
    keys = np.stack([stratum, np.unique(scores, return_inverse=True)[1]])
    distinct, group = np.unique(keys, axis=1, return_inverse=True)
    return Ties(group.reshape(-1), distinct[0])


def _auroc_of_ties(labels: Labels, ties: Ties, weights: NDArray) -> float | None:
    positives = np.bincount(ties.group, weights * labels)  # (n_groups,)
    negatives = np.bincount(ties.group, weights * (1 - labels))
    n_positives = np.bincount(ties.stratum, positives)  # (n_strata,)
    n_negatives = np.bincount(ties.stratum, negatives)
    n_pairs = n_positives @ n_negatives
    if not n_pairs:
        return None
    before = np.cumsum(n_negatives) - n_negatives  # negatives of earlier strata
    outranked = np.cumsum(negatives) - negatives / 2 - before[ties.stratum]
    return float(positives @ outranked / n_pairs)


def judge_within(
    labels: Labels,
    runs: Scores,
    strata: Strata,
    questions: Questions,
    seed: int,
    n_resamples: int = 1000,
) -> tuple[float, Interval] | tuple[None, None]:
    """AUROC within strata, the mean over the runs (n_runs, n), with its interval.

    The interval is that of a bootstrap over questions, as the AUROC's. Both are None where no
    stratum has both classes; resamples without such a stratum are left out.
    """
    ties = [find_ties(run, strata.stratum) for run in runs]
    once = np.ones(len(labels))
    areas = [_auroc_of_ties(labels, one, once) for one in ties]
    found = [area for area in areas if area is not None]
    if not found:
        return None, None
    samples = []
    for weights in resampled_weights(questions, seed, n_resamples):
        drawn = [_auroc_of_ties(labels, one, weights) for one in ties]
        kept = [area for area in drawn if area is not None]
        if kept:
            samples.append(np.mean(kept))
    return float(np.mean(found)), percentile_interval(np.array(samples))


def rank_correlation(runs: Scores, control: Scores) -> float | None:
    """Spearman's correlation of scores with those of a control, the mean over runs (n_runs, n).

    None where one of them is constant.
    """
    rank = rankdata(control.mean(0))
    ranks = [rankdata(run) for run in runs]
    if not np.ptp(rank) or not all(map(np.ptp, ranks)):
        return None
    return float(np.mean([np.corrcoef(rank, one)[0, 1] for one in ranks]))
