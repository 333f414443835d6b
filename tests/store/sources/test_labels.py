"""Tests of the labels: what counts as the same answer, and what becomes of missing scores."""

import math
import re

import pytest

from store.sources.labels import (
    exact_match_score,
    label_from_score,
    normalize_answer,
    one_class_warning,
)


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
    """Without references the score is NaN and the label -1: a missing score never becomes a right
    answer."""
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


@pytest.mark.parametrize(
    "n_right, n_wrong, rule, expected",
    [
        (
            109,
            3501,
            "exact",
            "96% of 3,610 labels are hallucinations: exact match .* --labels f1, or judge the answers",
        ),
        (
            109,
            3501,
            "f1",
            "96% of 3,610 labels are hallucinations: .*store export, then python -m store label",
        ),
        (3501, 109, "exact", "96% of 3,610 labels are right: a detector learns little"),
        (0, 10, None, "100% of 10 labels are hallucinations: check that the right column"),
    ],
)
def test_one_class_is_warned_of(n_right, n_wrong, rule, expected):
    """One line that says which class and what to do."""
    warning = one_class_warning(n_right, n_wrong, rule)
    assert re.search(expected, warning)
    assert "\n" not in warning


@pytest.mark.parametrize("n_right, n_wrong", [(10, 90), (90, 10), (0, 0), (0, 9)])
def test_two_classes_or_too_few_labels_are_not(n_right, n_wrong):
    """At most 90% of one class, or fewer than ten labels."""
    assert one_class_warning(n_right, n_wrong) is None
