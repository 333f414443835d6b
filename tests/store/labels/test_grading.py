"""Several rules at once."""

import math

from store.labels.grading import Case, Grader, Verdict, count_verdicts


class Fixed:
    """A judge that gives the verdicts that it was made with."""

    def __init__(self, *verdicts):
        self.given = verdicts

    def verdicts(self, cases):
        return list(self.given[: len(cases)])

    def describe(self):
        return {"model": "fixed"}


RIGHT = ["Paris"]
CASES = [Case("q", RIGHT, "Paris"), Case("q", RIGHT, "It is Paris."), Case("q", [], "Paris")]
JUDGE = Fixed(Verdict("wrong", 0.1), Verdict("right", 0.8), Verdict("no references"))


def test_each_rule_has_its_labels_and_the_first_its_score():
    grader = Grader(["f1", "exact", "contains", "judge"], judge=JUDGE)
    grades = grader.grade(CASES)
    found = [list(grade.labels.values()) for grade in grades]
    assert found == [[0, 0, 0, -1], [0, 1, 0, 0], [-1, -1, -1, -1]]
    labels = {"label_f1": 0, "label_exact": 1, "label_contains": 0, "label_judge": 0}
    assert grader.row(grades[1]) == {"score": 0.5, "label": 0} | labels
    verdicts = ["wrong, but an exact match", "right", "no references"]
    assert count_verdicts(grades) == dict.fromkeys(verdicts, 1)
    assert grader.describe()["label_rules"]["judge"]["model"] == "fixed"
    assert grader.columns.keys() == labels.keys()


def test_the_threshold_is_that_of_every_rule():
    """Also of the judge's probability of being right; each column's rule names its own."""
    grader = Grader(["f1", "judge"], 0.9, JUDGE)
    grades = grader.grade(CASES)
    assert [list(grade.labels.values()) for grade in grades] == [[0, -1], [1, 1], [-1, -1]]
    rules = grader.describe()["label_rules"]
    for rule in (rules["f1"], rules["judge"]["rule"]):
        assert rule.endswith("label = 1 iff score < 0.9")


def test_one_rule_has_no_column_of_its_own():
    grader = Grader("exact")
    assert grader.columns == {}
    assert "label_rules" not in grader.describe()
    assert grader.grade([]) == []
    assert math.isnan(grader.no_grade.score)
