"""Metrics against scikit-learn, or against their definition in plain loops."""

import numpy as np
import pytest
from runs import paired_bootstrap
from scipy.special import expit
from sklearn import metrics as reference

from train.evaluate.metrics import (
    auprc,
    aurc,
    auroc,
    brier,
    confidence,
    confidence_error,
    expected_calibration_error,
    measure,
    pr_points,
    prediction_rejection_ratio,
    rates,
    refined_losses,
    risk_coverage,
    youden_threshold,
)
from train.evaluate.paired_tests import delong_test

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, 300)
SMOOTH = np.clip(0.3 * LABELS + 0.7 * RNG.random(300), 0, 1)
TIED = np.round(SMOOTH, 1)

with_and_without_ties = pytest.mark.parametrize(
    "scores", [SMOOTH, TIED, np.full(300, 0.4)], ids=["smooth", "tied", "constant"]
)


@with_and_without_ties
def test_ranking_metrics_equal_scikit_learn(scores):
    """AUROC, average precision and Brier score, ties included; and of the ROC curve the largest
    recall with so few false positives, and the reverse."""
    assert auroc(LABELS, scores) == pytest.approx(reference.roc_auc_score(LABELS, scores))
    assert auprc(LABELS, scores) == pytest.approx(reference.average_precision_score(LABELS, scores))
    assert brier(LABELS, scores) == pytest.approx(reference.brier_score_loss(LABELS, scores))
    false, true, _ = reference.roc_curve(LABELS, scores, drop_intermediate=False)
    found = rates(LABELS, scores)
    for percent in (1, 5, 10):
        assert found[f"recall_at_{percent}"] == true[false <= percent / 100].max()
    assert found["fpr_at_95"] == false[true >= 0.95].min()


def test_rates_need_rows():
    few = measure(np.array([0] * 20 + [1] * 19), np.arange(39) / 39, 0.5)
    assert (few.recall_at_1, few.recall_at_5, few.fpr_at_95) == (None, 1, None)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.9, 2.0])
def test_threshold_metrics_equal_scikit_learn(threshold):
    """Of `score >= threshold`, also where everything falls on one side."""
    predicted = threshold <= TIED
    found = measure(LABELS, TIED, threshold)
    assert found.f1 == pytest.approx(reference.f1_score(LABELS, predicted, zero_division=0))
    assert found.mcc == pytest.approx(reference.matthews_corrcoef(LABELS, predicted))
    assert found.accuracy == pytest.approx(reference.accuracy_score(LABELS, predicted))


@with_and_without_ties
def test_pr_points_by_their_definition(scores):
    """Recall and precision of the rows at or above each distinct score; the steps hold the average
    precision."""
    recall, precision = pr_points(LABELS, scores)
    expected = []
    for threshold in sorted(set(scores), reverse=True):
        chosen = LABELS[scores >= threshold]
        expected.append((chosen.sum() / LABELS.sum(), chosen.mean()))
    np.testing.assert_allclose(np.transpose([recall, precision]), [(0, expected[0][1]), *expected])
    assert np.diff(recall) @ precision[1:] == pytest.approx(auprc(LABELS, scores))


@pytest.mark.parametrize("threshold", [0.01, 0.3, 0.5, 0.9])
def test_confidence_is_of_the_odds_against_the_threshold(threshold):
    """Farther in log-odds from the threshold is surer; at one half it is the distance from it. A
    threshold of 0 or 1 leaves its own score undecided, all others certain."""
    scores = np.linspace(0.001, 0.999, 50)
    log_odds = np.log(scores / (1 - scores)) - np.log(threshold / (1 - threshold))
    assert confidence(scores, threshold) == pytest.approx(np.abs(1 / (1 + np.exp(-log_odds)) - 0.5))
    assert confidence(scores, 0.5) == pytest.approx(np.abs(scores - 0.5))
    for end in (0.0, 1.0):
        assert confidence(np.array([end, 0.3, 1 - end]), end).tolist() == [0, 0.5, 0.5]


@with_and_without_ties
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.62])
def test_risk_coverage_by_its_definition(scores, threshold):
    """Errors of the k most confident, averaged over the orders of those that tie."""
    sure = confidence(scores, threshold)
    wrong = (scores >= threshold) != LABELS
    expected = []
    for k in range(1, len(LABELS) + 1):
        least = np.sort(sure)[-k]  # the confidence of the k-th row
        above, tied = wrong[sure > least], wrong[sure == least]
        expected.append((above.sum() + (k - len(above)) * tied.mean()) / k)
    coverage, risk = risk_coverage(LABELS, scores, threshold)
    assert coverage.tolist() == [k / 300 for k in range(1, 301)]
    np.testing.assert_allclose(risk, expected)
    assert aurc(LABELS, scores, threshold) == pytest.approx(sum(expected) / 300)
    assert risk[-1] == pytest.approx(1 - measure(LABELS, scores, threshold).accuracy)


@with_and_without_ties
def test_youden_threshold_is_the_best_of_all_scores(scores):
    """No other score gives a larger true minus false positive rate."""

    def youden(threshold):
        predicted = scores >= threshold
        return predicted[LABELS == 1].mean() - predicted[LABELS == 0].mean()

    assert youden(youden_threshold(LABELS, scores)) == pytest.approx(max(map(youden, scores)))


def test_of_equal_j_the_most_right_predictions_count_and_then_the_lower_threshold():
    """J is 2/10 at .9 and 6/10 - 2/5 at .4, whatever rounding makes of it; of as many negatives as
    positives it may be the same at equally many right ones. A constant is cut at one half."""
    scores = np.repeat([0.9, 0.4, 0.1, 0.4, 0.1], [2, 4, 4, 2, 3])
    labels = np.repeat([1, 0], [10, 5])
    assert youden_threshold(labels, scores) == 0.4
    assert youden_threshold(np.array([1, 0] * 3), np.repeat([0.2, 0.3, 0.4], 2)) == 0.2
    labels, constant = np.array([1, 1, 1, 0]), np.full(4, 0.75)
    assert measure(labels, constant, youden_threshold(labels, constant)).accuracy == 0.75


def error_by_bins(outcomes, scores):
    """Mean distance of scores from the share of outcomes in 15 equal bins, a score of 1 in the
    last; in a loop over rows."""
    sums = np.zeros((15, 2))
    for outcome, score in zip(outcomes, scores, strict=True):
        sums[min(14, int(score * 15))] += outcome, score
    return sum(abs(share - score) for share, score in sums) / len(scores)


@with_and_without_ties
def test_calibration_errors_by_their_definition(scores):
    """Of hallucinations, and of right predictions against the likelier class's probability."""
    scores = np.append(scores[:-1], 1.0)
    expected = error_by_bins(LABELS, scores)
    assert expected_calibration_error(LABELS, scores) == pytest.approx(expected)
    is_right = (scores >= 0.5) == LABELS
    expected = error_by_bins(is_right, np.where(scores >= 0.5, scores, 1 - scores))
    assert confidence_error(LABELS, scores) == pytest.approx(expected)


def bootstrap(labels, scores):
    return paired_bootstrap(labels, np.array([0.1, 0.2]), scores, np.arange(2), seed=0)


def delong(labels, scores):
    return delong_test(labels, np.array([0.1, 0.2]), scores)


@pytest.mark.parametrize("metric", [auroc, auprc, youden_threshold, delong, bootstrap])
def test_what_cannot_be_ranked_is_refused(metric):
    """NaN scores and a single class are errors, not numbers."""
    with pytest.raises(ValueError, match="expected finite numbers, found 1"):
        metric(np.array([0, 1]), np.array([0.5, np.nan]))
    with pytest.raises(ValueError, match=r"expected both 0 and 1, found \[1\]"):
        metric(np.array([1, 1]), np.array([0.5, 0.6]))


@pytest.mark.parametrize("most", [1, 0.5])
def test_prr_equals_its_definition(most):
    """LM-Polygraph's area over the least rejected rows, as the oracle and random scores have it: 1
    for the labels, 0 for a constant; of ties it is the mean over their orders."""
    quality, counts = 1 - LABELS, range(301 - int(300 * most), 301)
    by_scores, best = quality[np.argsort(SMOOTH)], np.sort(quality)[::-1]
    area, oracle = (np.mean([one[:k].mean() for k in counts]) for one in (by_scores, best))
    expected = (area - quality.mean()) / (oracle - quality.mean())
    assert prediction_rejection_ratio(LABELS, SMOOTH, most=most) == pytest.approx(expected)
    assert prediction_rejection_ratio(LABELS, LABELS * 1.0, most=most) == pytest.approx(1)
    constant = np.full(300, 0.4)
    assert prediction_rejection_ratio(LABELS, constant, most=most) == pytest.approx(0)
    drawn = (TIED + 1e-6 * np.random.default_rng(i).random(300) for i in range(500))
    broken = np.mean([prediction_rejection_ratio(LABELS, one, most=most) for one in drawn])
    assert prediction_rejection_ratio(LABELS, TIED, most=most) == pytest.approx(broken, abs=0.005)


@pytest.mark.parametrize("labels", [[0, 1], [0, 1, 1], [1, 0, 0]])
def test_prr_is_0_where_too_few_may_be_left_out(labels):
    """Half of 2 or 3 rows leaves the mean of all, which no score changes."""
    labels = np.array(labels)
    found = measure(labels, labels * 0.5, 0.5)
    assert (found.prr, found.prr_half) == (pytest.approx(1), 0)


def test_refined_losses_do_not_mind_how_sure_scores_are():
    """Of a line of the log-odds they are the same; of what ranks nothing, or backwards, as large as
    those of the base rate."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    log_odds = 1.5 * labels + rng.normal(size=400)
    losses = refined_losses(labels, expit(log_odds))
    assert losses.mean() < 0.6
    np.testing.assert_allclose(refined_losses(labels, expit(6 * log_odds + 2)), losses, atol=1e-3)
    rate = labels.mean()
    entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    for scores in (np.full(400, 0.9), expit(-log_odds)):
        assert refined_losses(labels, scores).mean() == pytest.approx(entropy, abs=1e-4)
