"""Is one detector better than another on the same rows? Paired tests of two AUROCs, corrected for
the number of pairs.

NumPy arrays in, plain floats out. Everything is paired: a row that is hard for both detectors
counts for neither, so a difference can be clear where the two intervals overlap.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from train.evaluate.metrics import (
    Labels,
    Scores,
    auroc_samples,
    check_scores,
    mean_auroc,
    percentile_interval,
)

__all__ = [
    "BootstrapTest",
    "DeLongTest",
    "compare_pairs",
    "delong_test",
    "find_verdict",
    "holm",
    "paired_bootstrap",
]

Key = TypeVar("Key", bound=Hashable)


class BootstrapTest(NamedTuple):
    """Difference of two AUROCs, its 95% interval and its two-sided p value."""

    difference: float
    low: float
    high: float
    p: float


class DeLongTest(NamedTuple):
    """Difference of two AUROCs, how many standard errors it is from 0, and its two-sided p
    value."""

    difference: float
    z: float
    p: float


def paired_bootstrap(
    labels: Labels,
    a: Scores,
    b: Scores,
    questions: NDArray[np.int64],
    seed: int,
    n_resamples: int = 1000,
) -> BootstrapTest:
    """Test AUROC(a) - AUROC(b) by resampling questions, the same resamples for both (Efron and
    Tibshirani, 1993).

    Parameters
    ----------
    labels : (n,) of 0 and 1, both present
    a, b : (n,) finite, or (n_runs, n): the difference is then that of the runs' mean AUROCs
    questions : (n,) integers, equal for rows of the same question
    seed : of the resampling
    n_resamples : number of resamples; those that drew one class only are left out

    Returns
    -------
    BootstrapTest
        The interval is the percentile interval, and p the level at which such an interval would
        begin to hold 0. With the observed data counted as one more sample (Davison and Hinkley,
        1997), p is at least 2 / (n_resamples + 1).
    """
    samples = [auroc_samples(labels, scores, questions, seed, n_resamples) for scores in (a, b)]
    return _bootstrap_test(mean_auroc(labels, a) - mean_auroc(labels, b), samples[0] - samples[1])


def delong_test(labels: Labels, a: Scores, b: Scores) -> DeLongTest:
    """Test AUROC(a) - AUROC(b) on the same rows, taken to be independent, in O(n log n).

    After DeLong et al. (1988, doi:10.2307/2531595), the structural components from midranks as in
    Sun and Xu (2014, doi:10.1109/LSP.2014.2337313). Rows of one question are not independent: where
    questions have several rows, trust `paired_bootstrap`.

    Parameters
    ----------
    labels : (n,) of 0 and 1, both present
    a, b : (n,) finite

    Returns
    -------
    DeLongTest
        z = 0 and p = 1 where the difference is 0, and where a class has one row only, which tells
        no variance; z is infinite where every row says the same, as for perfect scores against a
        constant.
    """
    by_positive, by_negative = map(
        np.subtract, _structural_components(labels, a), _structural_components(labels, b)
    )
    difference = float(by_positive.mean())
    if difference == 0 or min(len(by_positive), len(by_negative)) == 1:
        return DeLongTest(difference, 0.0, 1.0)
    error = math.sqrt(
        by_positive.var(ddof=1) / len(by_positive) + by_negative.var(ddof=1) / len(by_negative)
    )
    z = difference / error if error else math.copysign(math.inf, difference)
    return DeLongTest(difference, z, float(2 * norm.sf(abs(z))))


def holm(p_values: dict[Key, float]) -> dict[Key, float]:
    """P values corrected for their number by Holm's step-down method (Scand. J. Statist. 6:65-70,
    1979), same order.

    The k-th smallest of m becomes (m - k + 1) * p, but no less than the one before it and at most
    1. Calling those below 0.05 different is wrong anywhere with a probability below 0.05, however
    the tests depend on each other.
    """
    ascending = sorted(p_values, key=p_values.__getitem__)
    factors = np.arange(len(ascending), 0, -1)
    corrected = np.minimum(1, np.maximum.accumulate(factors * [p_values[key] for key in ascending]))
    by_key = dict(zip(ascending, corrected.tolist(), strict=True))
    return {key: by_key[key] for key in p_values}


def compare_pairs(
    labels: Labels,
    scores: Mapping[Any, Scores],
    pairs: Sequence[tuple[Any, Any]],
    questions: NDArray[np.int64],
    seed: int,
) -> list[dict[str, Any]]:
    """Both tests for each pair of names, Holm's correction over all of them.

    Parameters
    ----------
    labels : (n,) of 0 and 1, both present
    scores : by name, (n_runs, n) finite
    pairs : of names (a, b); a difference is that of a over b
    questions : (n,) integers, equal for rows of the same question
    seed : of the resampling

    Returns
    -------
    list of dict
        JSON-able, one per pair: `a`, `b`, `difference`, `ci`, `p_bootstrap`, `p_delong`, `p_holm`.
        Of several runs, difference and bootstrap are those of the mean of the runs' AUROCs, but
        DeLong's test, which knows one score per row, is of the mean of the runs' scores. `p_holm`
        corrects `p_delong`, which has no least value.
    """
    areas = {name: mean_auroc(labels, runs) for name, runs in scores.items()}
    samples = {name: auroc_samples(labels, runs, questions, seed) for name, runs in scores.items()}
    p_delong = {
        (a, b): delong_test(labels, scores[a].mean(0), scores[b].mean(0)).p for a, b in pairs
    }
    p_holm = holm(p_delong)
    comparisons = []
    for a, b in pairs:
        difference, low, high, p = _bootstrap_test(areas[a] - areas[b], samples[a] - samples[b])
        found = {"a": a, "b": b, "difference": difference, "ci": [low, high], "p_bootstrap": p}
        comparisons.append({**found, "p_delong": p_delong[a, b], "p_holm": p_holm[a, b]})
    return comparisons


def find_verdict(
    comparisons: list[dict[str, Any]], detectors: dict[str, float], baselines: dict[str, float]
) -> dict[str, Any] | None:
    """The comparison of the best detector with the best baseline; None without baselines.

    Parameters
    ----------
    comparisons : of `compare_pairs`, with every (detector, baseline) among them detectors,
    baselines : validation AUROC by name, which chooses the best before the test split is looked at
    """
    if not baselines:
        return None
    detector, baseline = (max(group, key=group.__getitem__) for group in (detectors, baselines))
    found = {(one["a"], one["b"]): one for one in comparisons}[detector, baseline]
    tests = {key: value for key, value in found.items() if key not in ("a", "b")}
    return {"detector": detector, "baseline": baseline, **tests}


def _bootstrap_test(difference: float, samples: NDArray[np.float64]) -> BootstrapTest:
    """The test from the differences in the resamples (n_kept,)."""
    n_beyond = min(np.sum(samples <= 0), np.sum(samples >= 0))
    p = min(1.0, 2 * float(n_beyond + 1) / (len(samples) + 1))
    return BootstrapTest(difference, *percentile_interval(samples), p)


def _structural_components(
    labels: Labels, scores: Scores
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share of negatives that each positive outranks (n_positives,), of positives that outrank each
    negative."""
    check_scores(labels, scores)
    positive = labels == 1
    midranks = rankdata(scores)
    # negatives below each positive, ties one half
    n_below_positive = midranks[positive] - rankdata(scores[positive])
    # positives below each negative
    n_below_negative = midranks[~positive] - rankdata(scores[~positive])
    return n_below_positive / np.sum(~positive), 1 - n_below_negative / np.sum(positive)
