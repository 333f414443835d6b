"""AUROC within strata, against loops over the pairs of each stratum."""

import numpy as np
import pytest
from runs import make_frame
from scipy.stats import spearmanr

from train.evaluate.metrics import auroc, rank_rows
from train.evaluate.strata import cut_by, measure_within, rank_correlation, strata_of


def by_loops(labels, scores, stratum):
    """Each pair of one stratum: 1 if its positive has the higher score, one half for a tie."""
    wins, pairs = 0.0, 0
    for i in range(len(labels)):
        for j in range(len(labels)):
            if labels[i] == 1 and labels[j] == 0 and stratum[i] == stratum[j]:
                wins += (scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j])
                pairs += 1
    return wins / pairs if pairs else None


def draw(seed, n=60, n_strata=6, n_scores=8):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    scores = rng.integers(0, n_scores, n) / n_scores
    return labels, scores, rng.integers(0, n_strata, n)


@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_share_of_ordered_pairs_of_a_stratum(seed):
    """Rows without a value are in no stratum; a row that is drawn twice counts as two rows."""
    labels, scores, stratum = draw(seed)
    rng = np.random.default_rng(seed)
    is_outside = rng.random(60) < 0.2 * (seed % 2)
    kept = ~is_outside
    strata = strata_of("kind", np.where(is_outside, "", stratum.astype(object)), is_outside)
    found = measure_within(make_frame(labels, scores), "x", strata)
    assert found == pytest.approx(by_loops(labels[kept], scores[kept], stratum[kept]))
    found = strata.summary(labels)
    expected = strata_of("kind", stratum[kept]).summary(labels[kept])
    assert (found.strata, found.pairs) == (expected.strata, expected.pairs)
    rows = np.repeat(np.arange(60), rng.integers(0, 3, 60))
    ranked = rank_rows(labels, scores, np.arange(60), stratum)
    expected = by_loops(labels[rows], scores[rows], stratum[rows])
    assert ranked.areas(np.bincount(rows, minlength=60)[None]) == pytest.approx(expected)


def test_one_stratum_is_the_auroc_and_without_a_pair_there_is_no_number():
    labels, scores, _ = draw(3)
    strata = strata_of("all", np.zeros(len(labels)))
    found = measure_within(make_frame(labels, scores), "x", strata)
    assert found == pytest.approx(auroc(labels, scores))
    summary = strata.summary(labels)
    counts = (summary.strata, summary.strata_with_both_classes, summary.share_of_pairs)
    assert counts == (1, 1, 1)
    strata = strata_of("label", labels)
    assert measure_within(make_frame(labels, scores), "x", strata) is None
    assert strata.summary(labels).pairs == 0


def test_deciles_are_of_validation():
    """Whatever the test scores are, and equal scores stay together."""
    val = np.arange(100) / 100
    test = np.array([0.0, 0.05, 0.5, 0.5, 0.95, 2.0])
    found = cut_by("x", val, test).stratum
    assert found.tolist() == [np.sum(np.quantile(val, np.arange(1, 10) / 10) <= t) for t in test]
    assert len(set(cut_by("x", np.full(9, 0.5), np.full(4, 0.5)).stratum)) == 1


@pytest.mark.parametrize(
    "n_values, words", [(100, "deciles of"), (3, "3 groups of"), (1, "1 group of")]
)
def test_strata_are_called_what_they_are(n_values, words):
    """A control of few values has fewer than ten groups of test rows."""
    scores = np.arange(100) % n_values / n_values
    found = cut_by("x", scores, scores)
    assert found.by == f"{words} the score of x"
    assert found.summary(np.arange(100) // 2 % 2).strata == min(n_values, 10)


@pytest.mark.parametrize("n_runs", [1, 3])
def test_correlations_are_spearmans(n_runs):
    rng = np.random.default_rng(0)
    control = rng.integers(0, 9, (1, 40)).astype(float)
    runs = control + rng.normal(size=(n_runs, 40)).round(1)
    expected = np.mean([spearmanr(run, control[0]).statistic for run in runs])
    assert rank_correlation(runs, control) == pytest.approx(expected)
    assert rank_correlation(np.zeros((n_runs, 40)), control) is None
