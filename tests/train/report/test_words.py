"""What a run found, in words: as much as its test split can tell, what was chosen and imputed."""

from dataclasses import replace

import pytest
from runs import make_entry, make_results

from train.evaluate.results import (
    Counts,
    Difference,
    Epoch,
    PairedTest,
    SplitsSummary,
    TrainingFacts,
    Verdict,
)
from train.report.numbers import p_value
from train.report.render import in_words


def make_run(*areas, **facts):
    history = [Epoch(i, 0.5, area) for i, area in enumerate(areas)]
    return TrainingFacts(0, "x.pt", history, 1.0, 0.0, 1, 0.1, **facts)


def make_verdict(low, high, **few):
    counts = {"rows": 400, "hallucinations": 200, "questions": 400} | few
    tests = {"p_bootstrap": 0.01, "p_delong": 0.01, "p_holm": 0.02}
    verdict = Verdict(
        detector="saplma", baseline="entropy", difference=0.1, ci=[low, high], **tests
    )
    return make_results(test=Counts(**counts), verdict=verdict)


@pytest.mark.parametrize(
    "low, high, words",
    [
        (0.05, 0.2, "the detector is better"),
        (-0.3, -0.1, "the detector is worse"),
        (-0.1, 0.1, "they cannot be told apart"),
    ],
)
def test_the_interval_decides(low, high, words):
    assert words in in_words("verdict", make_verdict(low, high))


@pytest.mark.parametrize("few", [{"questions": 3}, {"hallucinations": 29}, {"rows": 210}])
def test_few_traces_decide_nothing(few):
    """Of a class, or of questions, whatever the interval says."""
    text = in_words("verdict", make_verdict(0.05, 0.2, **few))
    assert "too few traces to tell" in text
    assert "better" not in text


def test_what_the_test_set_could_show_is_said():
    results = make_verdict(-0.1, 0.1)
    assert not in_words("detectable", results)
    results.verdict.detectable = 0.0312
    assert "such a test set would show (power .8): .031." in in_words("detectable", results)


def test_the_verdict_has_three_lines():
    assert in_words("verdict", make_verdict(0.05, 0.2)).splitlines() == [
        "Best on validation: detector saplma, baseline entropy.",
        "On test the detector is better: difference .100 [.050, .200], p = .010",
        "(of AUROC, with 95% interval; paired bootstrap over questions).",
    ]


def test_nothing_to_compare_with():
    assert in_words("verdict", make_results()) == ""


def test_what_detectors_add_to_what_they_stand_on():
    """Nothing where the start was kept; probes and runs without a base say nothing."""
    models = {
        "lstm_solo": make_entry(runs=[make_run(0.71, 0.69, start_val_auroc=0.7)]),
        "saplma": make_entry(runs=[make_run(0.7, 0.69, start_val_auroc=0.7)]),
        "lapeigvals": make_entry(),
    }
    comparisons = [
        PairedTest(a=name, b="entropy", difference=0.02, ci=[0.01, 0.03], p_bootstrap=0.04)
        for name in models
    ]
    results = make_results(models, comparisons=comparisons, config={"on_top_of": "entropy"})
    assert in_words("on_top", results) == (
        "Added on test to the AUROC of entropy: lstm_solo .020 [.010, .030] (p .040); "
        "saplma nothing (no epoch was better on validation than the start)."
    )
    results.config["on_top_of"] = None
    assert in_words("on_top", results) == ""


def test_features_layers_and_penalties_are_named():
    """Of the methods that have them, in the order of the table."""
    models = {
        "saplma": make_entry(runs=[make_run(0.5, layer=20)]),
        "trilens": make_entry(alternative="first token", C=0.1),
    }
    baselines = {"majority": make_entry(), "logreg_best": make_entry(layer=8, C=1e-3)}
    assert in_words("tuned", make_results(models, baselines)) == (
        "Chosen on validation: thresholds and epochs; saplma layer 20; "
        "trilens first token, C 0.1; logreg_best layer 8, C 0.001. "
        "As given: learning rates and sizes of detectors."
    )


def counted(**counts):
    return {name: make_entry(traces_with_missing_numbers=n or None) for name, n in counts.items()}


def test_methods_that_impute_are_named_with_their_counts():
    """Those of one count together; nothing without any."""
    some = counted(logreg_best=12, entropy=3, majority=0, logreg_mean=12)
    assert in_words("imputed", make_results({"trilens": make_entry()}, some)) == (
        "Numbers that a trace lacks are imputed with the mean over train: in 12 of 500 traces for "
        "logreg_best, logreg_mean; in 3 of 500 traces for entropy."
    )
    assert in_words("imputed", make_results(baselines=counted(majority=0))) == ""


def test_of_several_splits_it_is_the_largest_count():
    """Which numbers train has, and with it the count, differs from split to split."""
    first, second = (make_results(baselines=counted(entropy=n)) for n in (0, 4))
    summary = SplitsSummary(
        {}, {}, [], None, None, None, [], seeds=[0, 1], test_over_train=1, runs=[first, second]
    )
    assert in_words("imputed", replace(first, splits=summary)) == (
        "Numbers that a trace lacks are imputed with the mean over train: in at most 4 of 500 "
        "traces for entropy."
    )


@pytest.mark.parametrize(
    "tests, text",
    [
        ({"p_bootstrap": 0.002, "p_bootstrap_least": 0.002}, "≤.002"),
        ({"p_bootstrap": 0.004, "p_bootstrap_least": 0.002}, ".004"),
        ({"p": 0.0004}, "<.001"),
        ({"p": 0.5}, ".500"),
    ],
)
def test_a_p_that_could_not_be_smaller_is_a_bound(tests, text):
    assert p_value(Difference(difference=0.1, ci=[0.0, 0.2], **tests)) == text
