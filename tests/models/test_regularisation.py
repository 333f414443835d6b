"""The choice of a regression's penalty: against scikit-learn, and against the best by test."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from models import regularisation
from models.regularisation import (
    STRENGTHS,
    choose_strength,
    fit_regression,
    fit_sparse_regression,
    start_weights,
)


def draw_states(rng, n, k, n_outliers=4, signal=1.0):
    """States (n, k) like a language model's: a weak signal in many directions, whose variances fall
    as a power law, and a few dimensions with large heavy-tailed numbers; labels."""
    scales = np.arange(1, k + 1) ** -0.3
    rotation, _ = np.linalg.qr(rng.normal(size=(k, k)))
    sources = rng.normal(size=(n, k)) * scales
    logits = sources @ (rng.normal(size=k) / np.sqrt(scales))
    labels = (rng.random(n) < 1 / (1 + np.exp(-2 * signal * logits / logits.std()))).astype(int)
    states = sources @ rotation
    states[:, :n_outliers] += 50 * rng.standard_t(3, size=(n, n_outliers))
    return states.astype(np.float16).astype(np.float64), labels


def draw_splits(seed, n_train, n_val, n_test, k):
    """Scaled float32 states of each split with their labels; the scaling is of train."""
    states, labels = draw_states(np.random.default_rng(seed), n_train + n_val + n_test, k)
    scaled = StandardScaler().fit(states[:n_train]).transform(states).astype(np.float32)
    ends = [n_train, n_train + n_val]
    return list(zip(np.split(scaled, ends), np.split(labels, ends), strict=True))


@pytest.mark.parametrize("strength", [1e-4, 1e-2, 1.0])
def test_a_regression_is_scikit_learns(strength):
    """Up to the tolerance, the logits are those of scikit-learn's solver."""
    (train, labels), (val, _), _ = draw_splits(0, 300, 100, 10, 40)
    weights = fit_regression(train, labels, strength, start_weights(40, labels))
    expected = LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(train, labels)
    found = val @ weights[:-1] + weights[-1]
    np.testing.assert_allclose(found, expected.decision_function(val), atol=0.02)


def sparse_objective(weights, features, labels, strength):
    """What an L1 regression minimises, of weights and bias (k + 1,)."""
    margins = (2 * labels - 1) * (features @ weights[:-1] + weights[-1])
    return strength * np.logaddexp(0, -margins).sum() + np.abs(weights[:-1]).sum()


@pytest.mark.parametrize("strength", [0.01, 0.1, 1.0])
def test_a_sparse_regression_minimises_the_objective(strength):
    """Nearly as well as the proximal gradient method does in 3,000 steps, and with zeros; the bias
    has practically no penalty."""
    (train, labels), _, _ = draw_splits(0, 300, 100, 10, 40)
    labels = np.maximum(labels, np.arange(len(labels)) % 3 == 0)  # two thirds are 1
    found, has_converged = fit_sparse_regression(train, labels, strength)
    assert has_converged
    with_bias = np.column_stack([train, np.ones(len(train))]).astype(np.float64)
    step = 4 / (strength * np.linalg.norm(with_bias, 2) ** 2)
    weights = np.zeros(41)
    for _ in range(3000):
        p = 1 / (1 + np.exp(-with_bias @ weights))
        weights -= step * strength * (p - labels) @ with_bias
        shrunk = np.maximum(np.abs(weights[:-1]) - step, 0)
        weights[:-1] = np.sign(weights[:-1]) * shrunk
    best = sparse_objective(weights, train, labels, strength)
    assert sparse_objective(found, train, labels, strength) < best * 1.001
    assert (found[:-1] == 0).sum() == pytest.approx((weights[:-1] == 0).sum(), abs=2)


def test_the_sparse_path_ends_where_nothing_converges(monkeypatch):
    """A penalty that hardly counts would take minutes; what was found before it is chosen from."""
    (train, labels), (val, val_labels), _ = draw_splits(0, 300, 100, 10, 40)
    monkeypatch.setattr(regularisation, "MAX_SPARSE_ITERATIONS", 8)
    tried = []

    def fit(features, labels, strength):
        found = fit_sparse_regression(features, labels, strength)
        tried.append((strength, found[1]))
        return found

    monkeypatch.setattr(regularisation, "fit_sparse_regression", fit)
    chosen = choose_strength(train, labels, val, val_labels, "l1")
    assert [has_converged for _, has_converged in tried] == [True] * (len(tried) - 1) + [False]
    assert len(tried) < len(regularisation.STRENGTHS)
    assert chosen in [strength for strength, _ in tried[:-1]]


def test_a_sparse_choice_finds_few_features():
    """Where 5 of 200 features tell the label, the L1 penalty that is chosen is better on test than
    the L2 penalty that is chosen."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1600, 200)).astype(np.float32)
    labels = (features[:, :5].sum(axis=1) + 2 * rng.normal(size=1600) > 0).astype(int)
    train, val, test = np.split(features, [200, 600])
    of_train, of_val, of_test = np.split(labels, [200, 600])
    areas = {}
    for penalty in ("l1", "l2"):
        strength = choose_strength(train, of_train, val, of_val, penalty)
        regression = regularisation.build_regression(penalty, strength).fit(train, of_train)
        areas[penalty] = roc_auc_score(of_test, regression.decision_function(test))
    assert areas["l1"] > areas["l2"] + 0.02


def test_the_path_ends_where_validation_has_become_worse(monkeypatch):
    """The regressions that nearly separate the training rows cost most and are not fitted."""
    (train, labels), (val, val_labels), _ = draw_splits(0, 200, 200, 10, 300)
    fitted = []

    def record(features, labels, strength, start):
        fitted.extend([strength] if features.shape[1] > 1 else [])
        return fit_regression(features, labels, strength, start)

    monkeypatch.setattr(regularisation, "fit_regression", record)
    chosen = choose_strength(train, labels, val, val_labels)
    assert fitted == list(STRENGTHS[: len(fitted)])
    assert STRENGTHS.index(chosen) < len(fitted) < len(STRENGTHS)


def test_rescaling_leaves_the_ranks():
    """The loss that chooses does not depend on the scale and offset of the logits."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    logits = labels + rng.normal(size=200)
    expected = regularisation.rescaled_loss(logits, labels)
    assert regularisation.rescaled_loss(30 * logits - 7, labels) == pytest.approx(
        expected, abs=1e-5
    )
    assert expected < regularisation.log_loss(30 * logits - 7, labels)
    assert expected < regularisation.rescaled_loss(logits + rng.normal(size=200), labels)


@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.parametrize("val_labels", [[0, 1, 1], [1, 1, 1], [0, 0, 0]])
def test_little_data(val_labels, penalty):
    """Twenty rows, three of validation, even of one class: a penalty of the grid is chosen."""
    (train, labels), (val, _), _ = draw_splits(3, 20, 3, 1, 50)
    assert choose_strength(train, labels, val, np.array(val_labels), penalty) in STRENGTHS


def test_constants_choose_nothing():
    """Features without information get the strongest penalty, and no warning."""
    zeros = np.zeros((20, 5), np.float32)
    labels = np.arange(20) % 2
    assert choose_strength(zeros, labels, zeros, labels) == STRENGTHS[0]
    least_sparse = regularisation.LEAST_SPARSE_STRENGTH
    assert choose_strength(zeros, labels, zeros, labels, "l1") == least_sparse
