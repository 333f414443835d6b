"""Which mistakes are shown, whose scores a report draws, and what is said of the traces."""

from dataclasses import replace
from itertools import chain

import pytest
from runs import make_results

from train.evaluate.metrics import confidence
from train.evaluate.results import Facts
from train.report.evidence import (
    KINDS,
    N_SHOWN,
    choose_shown,
    describe_traces,
    find_kinds,
    find_mistakes,
    find_styles,
)


@pytest.mark.parametrize("n_runs", [1, 3])
def test_mistakes_are_the_surest_wrong_rows(make_evidence, n_runs):
    """By a direct loop over the mean of the seeds' scores, at the threshold of the results; perfect
    scores make none, and a threshold that is no number finds none."""
    evidence = make_evidence(n_runs=n_runs)
    for name in evidence.frame.scores:
        threshold = evidence.entries[name].test.threshold
        scores = evidence.frame.test.mean(name)
        sure = confidence(scores, threshold)
        rows = range(len(scores))
        wrong = [i for i in rows if (scores[i] >= threshold) != evidence.test_labels[i]]
        expected = sorted(wrong, key=lambda i: -sure[i])[:7]
        found = find_mistakes(evidence, name, n=7)
        assert [(one.position, one.label, one.score) for one in found] == [
            (i, evidence.test_labels[i], scores[i]) for i in expected
        ]
    evidence.frame.test.scores["model_0"][:] = evidence.test_labels
    evidence.entries["model_0"].test.threshold = 0.5
    evidence.entries["base_0"].test.threshold = float("nan")
    assert find_mistakes(evidence, "model_0") == find_mistakes(evidence, "base_0") == []


def test_the_best_is_chosen_on_validation(make_evidence):
    """Among detectors, else among baselines; what ranks nothing is not drawn."""
    evidence = make_evidence()
    evidence.results.models["model_1"].val.auroc = 1.0
    assert evidence.results.shown.best == "model_1"
    assert make_evidence(models=0).results.shown.best in ("base_0", "base_1")
    assert set(evidence.ranking) == {"model_0", "model_1", "base_0", "base_1"}


MERGED = {"source": "merge", "stores": [{"model": "a"}, {}], "common": {"label_rule": "old"}}
DECODING = {"decoding": {"do_sample": False, "stop": None}, "weights_sha256": "00"}


@pytest.mark.parametrize(
    "provenance, described",
    [
        ({}, {}),
        (
            {"source": "huggingface", "prompt_template": "{question}=", **DECODING},
            {"made by": "huggingface", "prompt": "{question}=", "decoding": "do_sample = false"},
        ),
        # each value once; what one of them lacks is not made up
        (
            {"source": "merge", "stores": [{"model": "a", "questions": 5}, {"model": "b"}]},
            {"model": "a; b", "questions": "5"},
        ),
        # labelled after they were merged: both rules where some rows kept their labels
        (MERGED, {"model": "a", "labels": "old"}),
        (MERGED | {"label_rule": "new"}, {"model": "a", "labels": "new"}),
        (
            MERGED | {"label_rule": "new", "label_rule_before": "old"},
            {"model": "a", "labels": "old; new"},
        ),
    ],
)
def test_what_is_recorded_of_the_traces_is_described(provenance, described):
    """Of a store that was merged again, the same."""
    assert describe_traces(provenance) == described
    assert describe_traces({"source": "merge", "stores": [provenance]}) == described


COSTS = {"parameters": 1, "seconds": 1}
RESULTS = make_results(
    {"lstm_solo": Facts(**COSTS, runs=[]), "lapeigvals": Facts(**COSTS)},
    {"entropy": Facts(**COSTS), "answer_length": Facts(**COSTS, control=True)},
)


def test_kinds_of_methods_and_their_looks():
    """Trained step by step, fitted, to compare with, and to control for; none without a name. A
    method looks the same whatever else is in the run."""
    names = ("lstm_solo", "lapeigvals", "entropy", "answer_length")
    kinds = {kind: [name] for kind, name in zip(KINDS, names, strict=True)}
    assert find_kinds(RESULTS) == kinds
    assert find_kinds(replace(RESULTS, models={})).keys() == {"baselines", "controls"}
    alone = find_styles({"detectors": ["saplma"], "probes": ["lapeigvals"]})
    assert alone.items() <= find_styles(kinds | {"detectors": ["lstm_solo", "saplma"]}).items()


def test_the_best_of_each_kind_are_shown():
    """A few of each, though others are better, in the order of the kinds; free places go to the
    best of the others."""
    kinds = {
        "detectors": [f"d{i}" for i in range(9)],
        "probes": ["p0", "p1"],
        "baselines": [f"b{i}" for i in range(9)],
        "controls": ["c"],
    }
    areas = {name: 0.5 + i / 100 for i, name in enumerate(chain.from_iterable(kinds.values()))}
    shown = choose_shown(kinds, areas)
    assert shown == ["d5", "d6", "d7", "d8", "p1", "b7", "b8", "c"]
    assert len(shown) == N_SHOWN
    kinds = {"detectors": ["d0"], "baselines": kinds["baselines"]}
    few = {name: areas[name] for name in ("d0", *kinds["baselines"])}
    assert choose_shown(kinds, few) == ["d0", *(f"b{i}" for i in range(2, 9))]
