"""Tests of the labels: what counts as the same answer, and what becomes of missing scores."""

import math

import pytest

from store.sources.labels import exact_match_score, label_from_score, normalize_answer, one_class_warning


@pytest.mark.parametrize(
    "text, expected",
    [
        ("The  Eiffel Tower.", "eiffel tower"),
        ("an apple, a pear", "apple pear"),
        ("theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("-12", "-12"),
        (" -12.", "-12"),
        ("twenty-one", "twentyone"),
        ("- a dash", "dash"),
        ("", ""),
        ("the", ""),
    ],
)
def test_normal_form(text, expected):
    """Case, punctuation, articles and spaces do not count; the sign of a number does."""
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    "answer, references, expected",
    [
        ("357", ["357"], 1.0),
        ("357", ["375"], 0.0),
        ("-12", ["12"], 0.0),
        ("the Beatles", ["Queen", "Beatles"], 1.0),
        ("", ["0"], 0.0),
        ("", [""], 1.0),
    ],
)
def test_any_reference_will_do(answer, references, expected):
    """An answer scores 1 if it equals one of the references after normalisation."""
    assert exact_match_score(answer, references) == expected


def test_no_reference_is_no_score():
    """Without references the score is NaN and the label -1: a missing score never becomes a right answer."""
    score = exact_match_score("357", [])
    assert math.isnan(score)
    assert label_from_score(score) == -1


@pytest.mark.parametrize("score, label", [(0.0, 1), (0.4999, 1), (0.5, 0), (1.0, 0), (1.9, 0)])
def test_a_label_is_one_below_the_threshold_only(score, label):
    """A score at the threshold counts as right."""
    assert label_from_score(score) == label


def test_threshold_can_be_chosen():
    """Another threshold moves the border."""
    assert label_from_score(0.6, threshold=0.7) == 1


@pytest.mark.parametrize("n_right, n_wrong, share", [(0, 20, "100%"), (5, 95, "95%"), (95, 5, "95%")])
def test_labels_of_one_class_are_warned_of(n_right, n_wrong, share):
    """Over 90% of them, with the class and the rule."""
    warning = one_class_warning(n_right, n_wrong, "exact")
    assert share in warning
    assert "exact" in warning
    assert "\n" not in warning
    assert ("wrong" in warning) == (n_wrong > n_right)


@pytest.mark.parametrize("n_right, n_wrong", [(0, 0), (50, 50), (90, 10), (10, 90)])
def test_labels_of_two_classes_are_not(n_right, n_wrong):
    assert one_class_warning(n_right, n_wrong) is None
