"""Which mistakes are shown, whose scores a report draws, and what is said of the traces."""

import pytest

from train.evaluate.metrics import confidence
from train.report.evidence import describe_traces, find_mistakes


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
        assert [one.label for one in found] == [evidence.test_labels[i] for i in expected]
        assert [one.score for one in found] == [scores[i] for i in expected]


def test_no_mistakes(make_evidence):
    """Perfect scores make none, and a threshold that is no number finds none."""
    evidence = make_evidence()
    evidence.frame.test.scores["model_0"][:] = evidence.test_labels
    evidence.entries["model_0"].test.threshold = 0.5
    assert find_mistakes(evidence, "model_0") == []
    evidence.entries["base_0"].test.threshold = float("nan")
    assert find_mistakes(evidence, "base_0") == []


def test_the_best_is_chosen_on_validation(make_evidence):
    """Among detectors, else among baselines; what ranks nothing is not drawn."""
    evidence = make_evidence()
    evidence.results.models["model_1"].val.auroc = 1.0
    assert evidence.results.shown.best == "model_1"
    assert make_evidence(models=0).results.shown.best in ("base_0", "base_1")
    assert set(evidence.ranking) == {"model_0", "model_1", "base_0", "base_1"}


def test_what_is_recorded_is_described():
    recorded = {"source": "huggingface", "model": "m", "prompt_template": "{question}="}
    recorded |= {"decoding": {"do_sample": False, "stop": None}, "weights_sha256": "00"}
    described = {"made by": "huggingface", "model": "m", "prompt": "{question}="}
    assert describe_traces(recorded) == described | {"decoding": "do_sample = false"}
    assert describe_traces({}) == {}


def test_stores_that_were_merged():
    """Each value once; what one of them lacks is not made up."""
    parts = [{"model": "a", "questions": 5}, {"model": "b"}, {"model": "a"}]
    described = describe_traces({"source": "merge", "stores": parts})
    assert described == {"model": "a; b", "questions": "5"}


def test_stores_that_were_labelled_after_they_were_merged():
    """The rule of their labels is the new one; both, where some rows kept their labels."""
    merged = {"source": "merge", "stores": [{"model": "a"}, {}], "common": {"label_rule": "old"}}
    for again, text in (
        ({}, "old"),
        ({"label_rule": "new"}, "new"),
        ({"label_rule": "new", "label_rule_before": "old"}, "old; new"),
    ):
        for provenance in (merged | again, {"source": "merge", "stores": [merged | again]}):
            assert describe_traces(provenance) == {"model": "a", "labels": text}
