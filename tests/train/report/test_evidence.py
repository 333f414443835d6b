"""Which mistakes are shown, and whose scores a report draws."""

import pytest

from train.evaluate.metrics import confidence
from train.report.evidence import find_mistakes


@pytest.mark.parametrize("n_runs", [1, 3])
def test_mistakes_are_the_surest_wrong_rows(make_evidence, n_runs):
    """By a direct loop over the mean of the seeds' scores, at the threshold of the results."""
    evidence = make_evidence(n_runs=n_runs)
    for name in evidence.frame.scores:
        threshold = evidence.entries[name].test.threshold
        scores = evidence.frame.test.mean(name)
        sure = confidence(scores, threshold)
        rows = range(len(scores))
        wrong = [i for i in rows if (scores[i] >= threshold) != evidence.test_labels[i]]
        expected = sorted(wrong, key=lambda i: -sure[i])[:7]
        found = find_mistakes(evidence, name, n=7)
        assert [one.position for one in found] == expected
        assert [(one.label, one.score) for one in found] == [
            (evidence.test_labels[i], scores[i]) for i in expected
        ]


def test_no_mistakes(make_evidence):
    """Perfect scores make none, and a threshold that is no number finds none."""
    evidence = make_evidence()
    evidence.frame.test.scores["model_0"][:] = evidence.test_labels
    evidence.entries["model_0"].test.threshold = 0.5
    assert find_mistakes(evidence, "model_0") == []
    evidence.entries["base_0"].test.threshold = float("nan")
    assert find_mistakes(evidence, "base_0") == []


def test_the_best_is_chosen_on_validation(make_evidence):
    """Among detectors, and among baselines where there is no detector; what ranks nothing is not
    drawn."""
    evidence = make_evidence()
    evidence.results.models["model_1"].val.auroc = 1.0
    assert evidence.results.shown.best == "model_1"
    assert make_evidence(models=0).results.shown.best in ("base_0", "base_1")
    assert set(evidence.ranking) == {"model_0", "model_1", "base_0", "base_1"}
