"""EigenScore and lexical similarity, against their formulas written as loops."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.transform.samples.agreement import eigen_score, lexical_similarity, rouge_l, words_of

TEXTS = ["Paris.", "It is Paris", "the city of Paris, in France", "", "paris"]


def eigen_score_by_hand(states, alpha):
    """Equation 6 of the paper: the matrices written out, the determinant by its eigenvalues."""
    z = np.array(states, np.float64).T  # (d, K)
    d, n_samples = z.shape
    centring = np.eye(d) - np.ones((d, d)) / d
    covariance = z.T @ centring @ z + alpha * np.eye(n_samples)
    return sum(math.log(value) for value in np.linalg.eigvalsh(covariance)) / n_samples


@pytest.mark.parametrize("n_samples", [2, 3, 10])
@pytest.mark.parametrize("alpha", [1e-3, 1.0])
def test_eigen_score_is_the_formula(n_samples, alpha):
    """More samples than numbers in a state as well."""
    rng = np.random.default_rng(n_samples)
    for d in (2, 7, 64):
        states = rng.normal(size=(n_samples, d)) + 3
        found = eigen_score(states, alpha)
        assert found == pytest.approx(eigen_score_by_hand(states, alpha), rel=1e-6)


def test_eigen_score_of_float16_is_computed_in_float64():
    """Squares beyond float16 do not overflow, and the order of the samples does not count."""
    states = np.random.default_rng(0).normal(scale=1e3, size=(5, 8)).astype(np.float16)
    found = eigen_score(states)
    assert found == pytest.approx(eigen_score_by_hand(states, 1e-3))
    assert eigen_score(states[::-1]) == pytest.approx(found)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_state_that_is_not_finite_has_no_score(value):
    states = np.ones((3, 4))
    states[1, 2] = value
    assert math.isnan(eigen_score(states))


def common_length_by_hand(one, other):
    """The table of the longest common subsequence, cell by cell."""
    table = np.zeros((len(one) + 1, len(other) + 1), int)
    for i, word in enumerate(one):
        for j, another in enumerate(other):
            longer = max(table[i, j + 1], table[i + 1, j])
            table[i + 1, j + 1] = table[i, j] + 1 if word == another else longer
    return table[-1, -1]


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abcd"), max_size=9))
def test_rouge_l_is_that_of_the_table(one, other):
    """F1 of precision and recall; the order of the texts does not count."""
    common = common_length_by_hand(one, other)
    if not one and not other:
        expected = 1.0
    elif not common:
        expected = 0.0
    else:
        precision, recall = common / len(other), common / len(one)
        expected = 2 * precision * recall / (precision + recall)
    assert rouge_l(one, other) == pytest.approx(expected)
    assert rouge_l(other, one) == rouge_l(one, other)


def test_rouge_l_of_long_texts():
    """Beyond the bits of a machine word."""
    rng = np.random.default_rng(0)
    one, other = (rng.choice(list("abcdefg"), size=n).tolist() for n in (150, 201))
    assert rouge_l(one, other) == 2 * common_length_by_hand(one, other) / 351


def test_similarity_is_the_mean_over_pairs():
    """Equal texts and empty ones included."""
    texts = [*TEXTS, "Paris.", ""]
    pairs = list(combinations(texts, 2))
    expected = sum(rouge_l(words_of(one), words_of(other)) for one, other in pairs) / len(pairs)
    assert lexical_similarity(texts) == pytest.approx(expected)
    assert lexical_similarity(texts[::-1]) == pytest.approx(expected)


def test_words():
    """Signs and separators belong to numbers; other scripts have words as well."""
    words = ("it", "s", "-12", "not", "12", "or", "1,234.5")
    assert words_of("It's −12, not 12 or 1,234.5!") == words
    assert words_of("1990-2000") == ("1990", "2000")
    assert words_of("Москва Straße") == ("москва", "strasse")
