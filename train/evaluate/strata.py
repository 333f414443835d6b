"""AUROC among rows that are alike: within strata of a column, or of a control's score.

A detector that ranks only by what the strata have in common has .5 within them, whatever its AUROC
over all rows is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from store.reports import count
from train.evaluate.frame import Frame, Key
from train.evaluate.metrics import Labels, Scores, rank_rows
from train.evaluate.results import StrataRecord

__all__ = ["Strata", "cut_by", "measure_within", "rank_correlation", "strata_of"]

N_BINS = 10


@dataclass(frozen=True)
class Strata:
    """Groups of the rows of a split."""

    by: str  # what they are of, in words: a column, or groups of like score of a control
    stratum: NDArray[np.int64]  # int64 (n,): equal for rows of one stratum
    control: str | None = None  # whose score was cut
    n_outside: int = 0  # rows of none: each is alone in a stratum, and makes no pair

    def summary(self, labels: Labels) -> StrataRecord:
        """Their number, and the pairs of a hallucination and a right answer within them."""
        positives = np.bincount(self.stratum, labels)
        negatives = np.bincount(self.stratum, 1 - labels)
        n_pairs = float(positives @ negatives)
        return StrataRecord(
            by=self.by,
            control=self.control,
            strata=len(np.unique(self.stratum)) - self.n_outside,
            strata_with_both_classes=int(np.sum(positives * negatives > 0)),
            pairs=int(n_pairs),
            share_of_pairs=n_pairs / float(labels.sum() * (1 - labels).sum()),
        )


def strata_of(by: str, values: NDArray, is_outside: NDArray[np.bool_] | None = None) -> Strata:
    """One stratum for each distinct value (n,), but for the rows that are outside (n,)."""
    outside = np.zeros(len(values), bool) if is_outside is None else is_outside
    n_outside = int(outside.sum())
    stratum = np.empty(len(values), np.int64)
    stratum[outside] = np.arange(n_outside)
    stratum[~outside] = n_outside + np.unique(values[~outside], return_inverse=True)[1]
    return Strata(by, stratum, n_outside=n_outside)


def cut_by(name: str, val: Scores, test: Scores) -> Strata:
    """Strata of the test rows (n_test,) by a score, cut at its deciles on validation (n_val,).

    Equal scores are of one stratum, so there may be fewer than ten: those that have rows are
    counted. The cuts never see a label. A decile still has easier and harder rows: the AUROC of the
    score itself within the strata says how much of it they leave.
    """
    edges = np.unique(np.quantile(val, np.arange(1, N_BINS) / N_BINS))
    stratum = np.searchsorted(edges, test, side="right")
    n_strata = len(np.unique(stratum))
    parts = "deciles" if n_strata == N_BINS else count(n_strata, "group")
    return Strata(f"{parts} of the score of {name}", stratum, name)


def measure_within(test: Frame[Key], name: Key, strata: Strata) -> float | None:
    """AUROC of a method within strata of the rows, the mean over its trainings.

    It is the share of the pairs of one stratum whose positive outranks its negative; None where no
    stratum has both classes.
    """
    zero = np.zeros_like(strata.stratum)
    ranked = [rank_rows(test.labels, run, zero, strata.stratum) for run in test.scores[name]]
    area = float(np.mean([one.areas(np.ones((1, 1)))[0] for one in ranked]))
    return None if np.isnan(area) else area


def rank_correlation(runs: Scores, control: Scores) -> float | None:
    """Spearman's correlation of scores with those of a control, the mean over runs (n_runs, n).

    None where one of them is constant.
    """
    rank = rankdata(control.mean(0))
    ranks = [rankdata(run) for run in runs]
    if not np.ptp(rank) or not all(map(np.ptp, ranks)):
        return None
    return float(np.mean([np.corrcoef(rank, one)[0, 1] for one in ranks]))
