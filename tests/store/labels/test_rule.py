"""Labels from scores, tables of them, and the warning where nearly all are of one class."""

import math
import re

import numpy as np
import pytest

from store.labels.report import LabelCounts, one_class_warning
from store.labels.rule import ScoreTable, label_scores


def test_a_label_is_one_below_the_threshold_only():
    """A score at the threshold counts as right; no score, or an infinite one, says nothing."""
    assert label_scores(np.array([0.0, 0.4999, 0.5, 1.9])).tolist() == [1, 1, 0, 0]
    scores = np.array([0.6, 0.7, math.nan, math.inf, -math.inf])
    assert label_scores(scores, threshold=0.7).tolist() == [1, 0, -1, -1, -1]
    assert label_scores(0.5) == 0


@pytest.mark.parametrize(
    "n_right, n_wrong, rule, expected",
    [
        (109, 3501, "f1", "are hallucinations: f1 .* --labels contains"),
        (109, 3501, "contains", "are hallucinations: a detector learns little"),
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


def test_two_classes_or_too_few_labels_are_not():
    """At most 90% of one class, or fewer than ten labels."""
    for n_right, n_wrong in [(10, 90), (90, 10), (0, 0), (0, 9)]:
        assert one_class_warning(LabelCounts(n_wrong, n_right, 5)) == []


def test_what_a_value_makes_is_shown():
    """One line with the id, what was given and the label, of the first three."""
    scores = ScoreTable("s", by_trace={"t": 0.5}, by_question={"q1": 0.31, "q2": 1, "q3": 1})
    assert scores.examples == [
        "trace_id t: score 0.5 -> label 0 (right)",
        "question_id q1: score 0.31 -> label 1 (hallucination)",
        "question_id q2: score 1 -> label 0 (right)",
    ]
    labels = ScoreTable("s", "label", "label", by_question={"q1": 0.0})
    assert labels.examples == ["question_id q1: label 0 (right)"]


def test_a_table_restricted_to_some_ids():
    """Values of other traces and questions are left out; what is known of the file stays."""
    scores = ScoreTable("s", by_trace={"a": 1, "b": 0}, by_question={"p": 1, "q": 0}, n_empty=2)
    expected = ScoreTable("s", by_trace={"b": 0}, by_question={"p": 1}, n_empty=2)
    assert scores.restrict({"b", "p"}, {"p", "b"}) == expected


def test_the_checksum_of_scores_by_question_is_that_of_earlier_versions():
    """An import that was stopped goes on after an upgrade."""
    expected = "8f505a1aaa716b3cf064313cf755584d05ce8bedf3f7c94419943ff42c9935f9"
    assert ScoreTable("scores", by_question={"b": 1.0, "a": 0.25}).sha256 == expected
    assert ScoreTable("s", by_trace={"b": 1.0, "a": 0.25}).sha256 != expected
