"""Labels from scores, and the warning where nearly all are of one class."""

import math
import re

import numpy as np
import pytest

from store.labels.report import LabelCounts, one_class_warning
from store.labels.rule import label_scores


@pytest.mark.parametrize("score, label", [(0.0, 1), (0.4999, 1), (0.5, 0), (1.0, 0), (1.9, 0)])
def test_a_label_is_one_below_the_threshold_only(score, label):
    """A score at the threshold counts as right."""
    assert label_scores(score) == label


def test_threshold_can_be_chosen():
    """Another threshold gives other labels; no score, or an infinite one, says nothing."""
    scores = np.array([0.6, 0.7, math.nan, math.inf, -math.inf])
    assert label_scores(scores).tolist() == [0, 0, -1, -1, -1]
    assert label_scores(scores, threshold=0.7).tolist() == [1, 0, -1, -1, -1]


@pytest.mark.parametrize(
    "n_right, n_wrong, rule, expected",
    [
        (109, 3501, "exact", "are hallucinations: exact match .* --labels contains, or have"),
        (109, 3501, "f1", "are hallucinations: token F1 .* --labels contains, or have"),
        (109, 3501, "contains", "are hallucinations: a detector .* label STORE --labels judge"),
        (3501, 109, "exact", "are right: a detector learns little"),
        (0, 10, None, "are hallucinations: check that the right column"),
    ],
)
def test_one_class_is_warned_of(n_right, n_wrong, rule, expected):
    """One line that says which class and what to do."""
    [warning] = one_class_warning(LabelCounts(n_wrong, n_right, 5), rule)
    share = "100% of 10" if rule is None else "96% of 3,610"
    assert re.search(f"{share} labels {expected}", warning)
    assert "\n" not in warning


@pytest.mark.parametrize("n_right, n_wrong", [(10, 90), (90, 10), (0, 0), (0, 9)])
def test_two_classes_or_too_few_labels_are_not(n_right, n_wrong):
    """At most 90% of one class, or fewer than ten labels."""
    assert one_class_warning(LabelCounts(n_wrong, n_right, 5)) == []
