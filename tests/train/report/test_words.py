"""What a run found, in words: as much as its test split can tell, what was chosen and imputed."""

from dataclasses import replace

import pytest
from runs import make_entries, make_entry, make_results

from train.evaluate.results import (
    Choice,
    Contrast,
    Counts,
    Epoch,
    Explained,
    LabelNoise,
    Metrics,
    PairedTest,
    SplitsSummary,
    StrataRecord,
    TrainingFacts,
    Verdict,
)
from train.report.numbers import p_value
from train.report.render import in_words


def make_run(*areas, **facts):
    history = [Epoch(i, 0.5, area) for i, area in enumerate(areas)]
    return TrainingFacts(0, "x.pt", history, 1.0, 0.0, 1, 0.1, **facts)


def make_verdict(finding="better", control="better", runs=3, **few):
    """Results with this finding of the best baseline, and of a control."""
    counts = {"rows": 400, "hallucinations": 200, "questions": 400} | few
    verdict = Verdict(
        detector="saplma",
        margin=0.01,
        baseline=Contrast("entropy", 0.1, [0.05, 0.2], 0.01, finding),
        control=control and Contrast("question_only", 0.2, [0.1, 0.3], 0.01, control),
    )
    models = {"saplma": make_entry(runs=[make_run(0.5)] * runs)}
    baselines = make_entries(dict.fromkeys(("entropy", "question_only", "answer_length"), 0.5))
    return make_results(models, baselines, Counts(**counts), verdict=verdict)


BEST = "The best detector on validation, saplma, is {} the best baseline there, entropy, {}: AUROC "
BEST += ".500 against .500, a difference of .100 (95% interval .050 to .200; p .010 for a "
BEST += "difference beyond .01, after Holm's correction)."
COUNTS = "Answers do count: question_only, which does not read answers, reaches AUROC .500."


@pytest.mark.parametrize(
    "finding, words, do_next",
    [
        ("better", ("better than", "by more than .01"), "test saplma on other data"),
        ("worse", ("worse than", "by more than .01"), "use entropy"),
        ("equal", ("as good as", "with no difference of .01 or more"), "use whichever costs less"),
        (
            "undecided",
            ("not told apart from", "nor are they shown to be equal within .01"),
            "test on more questions: 400 are too few to tell",
        ),
    ],
)
def test_the_verdict_has_three_sentences(finding, words, do_next):
    """Who is best and by how much; what sees no answer and reaches what; what to do next."""
    *lines, last = in_words("verdict", make_verdict(finding)).splitlines()
    assert lines == [BEST.format(*words), COUNTS]
    assert last.startswith(f"Next, {do_next}")


@pytest.mark.parametrize("difference, words", [(0.011, "beyond"), (-0.009, "below")])
def test_it_is_said_what_p_is_of(difference, words):
    """Of a difference beyond the margin, or of one below it, by where the found one lies."""
    results = make_verdict("undecided")
    results.verdict.baseline.difference = difference
    text = in_words("verdict", results)
    assert f"p .010 for a difference {words} .01, after Holm's correction)" in text


def test_within_and_correlations_name_the_same_control():
    """How many groups there are, what share of the pairs, and what the control has there."""
    results = make_verdict()
    results.strata = StrataRecord(
        "6 groups of the score of answer_text", "answer_text", 6, 6, 9, 0.13
    )
    results.explained = Explained("answer_text", {"saplma": 0.151})
    results.baselines |= make_entries({"answer_text": 0.5})
    results.models["saplma"].test.auroc_within = 0.968
    results.baselines["answer_text"].test.auroc_within = 0.5
    assert in_words("explained", results) == (
        "AUROC within 6 groups of the score of answer_text, 13% of the pairs (of all pairs): "
        "saplma .968 (.500); answer_text itself .500. Correlation of ranks with answer_text: "
        "saplma .151."
    )


@pytest.mark.parametrize("finding", ["equal", "worse", "undecided"])
def test_a_control_that_is_as_good_comes_first(finding):
    """Whatever is found of the baselines, and the next step is about the data."""
    first, second, third = in_words("verdict", make_verdict(control=finding)).splitlines()
    assert first == (
        "This data cannot show what a detector knows of answers: question_only, which does not "
        "read answers, reaches AUROC .500, and saplma is not shown to be better by more than .01."
    )
    assert second.startswith("The best detector on validation, saplma, is better")
    assert third.startswith("Next, take data of which question_only tells little")


@pytest.mark.parametrize(
    "of_detector, of_control, do_next",
    [
        (
            [0.6, 0.9],
            [0.6, 0.9],
            "take data of which answer_length tells little, such as right and",
        ),
        (
            [0.6, 0.9],
            [0.4, 0.6],
            "test on more questions: 400 are too few to tell saplma from answ",
        ),
        ([0.4, 0.6], [0.4, 0.6], "try more traces, other layers or other detectors: saplma may be"),
    ],
)
def test_what_to_do_next_is_of_the_control(of_detector, of_control, do_next):
    """Another length of answers, not another question; and nothing of what may be at chance."""
    results = make_verdict(control="undecided")
    results.verdict.control.rival = "answer_length"
    results.models["saplma"].test.auroc_ci = of_detector
    results.baselines["answer_length"].test.auroc_ci = of_control
    assert in_words("verdict", results).splitlines()[-1].startswith(f"Next, {do_next}")


@pytest.mark.parametrize("is_constant", [True, False])
def test_without_a_control_of_the_question_nothing_is_said_of_answers(is_constant):
    """One that reads the length says nothing of the question, nor one of questions without text."""
    results = make_verdict()
    results.verdict.control.rival = "answer_length"
    if is_constant:
        results.baselines["question_only"].test.auroc_ci = [0.5, 0.5]
    else:
        del results.baselines["question_only"]
    none = in_words("verdict", make_verdict(control=None))
    assert "No control could read the question" in none.splitlines()[1]
    assert in_words("verdict", results) == none


READERS = ("question_only", "question_answer")


@pytest.mark.parametrize(
    "control, reads, others, words",
    [
        ("answer_text", "the wording", READERS, "More than texts counts"),
        ("answer_context", "the likeness of the texts", READERS, "More than texts counts"),
        ("answer_text", "the wording", READERS[:1], "Answers do count"),
    ],
)
def test_of_a_control_that_reads_answers_it_is_not_said_that_it_does_not(
    control, reads, others, words
):
    """More than texts is claimed only where one reads question and answer together."""
    for finding, first in (
        ("better", words),
        ("undecided", "This data cannot show what a detector knows of answers beyond their text"),
    ):
        results = make_verdict(control=finding)
        results.verdict.control.rival = control
        results.baselines = make_entries(dict.fromkeys(("entropy", control, *others), 0.5))
        for name in others:
            results.baselines[name].test.auroc_ci = [0.4, 0.6]
        text = in_words("verdict", results)
        assert f"{first}: {control}, which reads {reads} alone, reaches AUROC .500" in text
        assert text.startswith("This data") == (finding == "undecided")


@pytest.mark.parametrize("n_without, is_known", [(4, True), (5, False), (400, False)])
def test_questions_without_a_text_keep_the_verdict_from_a_claim(n_without, is_known):
    """Controls read nearly all of the 400 tested, or it is not known what the question tells."""
    results = make_verdict()
    results.split.without_text = n_without
    text = in_words("verdict", results)
    assert (COUNTS in text) == is_known
    only = f"Only {400 - n_without} of 400 tested traces have the question's text, so what it alone"
    assert (only in text) != is_known


def test_where_a_baseline_knows_more_the_data_is_not_to_blame():
    """A detector that no control is shown to be below, but a probe is better than both."""
    results = make_verdict(control="undecided")
    results.verdict.baseline.finding = "worse"
    results.baselines["question_only"].test = Metrics(0.8, auroc_ci=[0.75, 0.85])
    results.baselines["entropy"].test = Metrics(0.82, auroc_ci=[0.77, 0.87])
    assert in_words("verdict", results).startswith("This data cannot show")
    results.baselines["entropy"].test = Metrics(0.9, auroc_ci=[0.86, 0.94])
    first, second, third = in_words("verdict", results).splitlines()
    assert first.startswith("The best detector on validation, saplma, is worse than")
    assert second.startswith(
        "The best detector does not show that it knows of answers: question_only, which"
    )
    assert second.endswith("and saplma is not shown to be better by more than .01.")
    assert third.startswith("Next, use ")


def test_of_what_may_be_at_chance_nothing_is_said():
    """The data is not to blame where neither a control nor the detector is above chance."""
    results = make_verdict(control="undecided")
    at_chance = Metrics(0.49, auroc_ci=[0.42, 0.56])
    results.models["saplma"].test = results.baselines["question_only"].test = at_chance
    assert in_words("verdict", results).startswith(
        "Nothing is shown of answers: on test neither saplma nor question_only, which does not "
        "read answers, is above chance: AUROC .490 and .490."
    )


def test_controls_say_what_they_see():
    entries = make_entries(dict.fromkeys(("entropy", "question_only", "metadata"), 0.5))
    assert in_words("columns", make_results(baselines=entries)) == (
        "Controls see: question_only the question, metadata the fields."
    )


def test_one_training_asks_for_more():
    assert "Next, train with --seeds 3" in in_words("verdict", make_verdict(runs=1))


@pytest.mark.parametrize("few", [{"questions": 3}, {"hallucinations": 29}, {"rows": 210}])
def test_few_traces_decide_nothing(few):
    """Of a class, or of questions, whatever the interval says."""
    text = in_words("verdict", make_verdict(**few))
    assert "The test split is too small for a verdict" in text
    assert "better" not in text


@pytest.mark.parametrize(
    "control, sees",
    [("question_only", "does not read answers"), ("answer_text", "reads the wording alone")],
)
def test_few_traces_name_a_control_above_the_detector(control, sees):
    """Nothing of one whose interval meets the detector's, nor of a baseline above it."""
    results = make_verdict(rows=40)
    results.baselines |= make_entries({control: 0.5})
    results.models["saplma"].test = Metrics(0.5, auroc_ci=[0.4, 0.6])
    results.baselines["entropy"].test = Metrics(0.9, auroc_ci=[0.8, 0.95])
    results.baselines["answer_length"].test = Metrics(0.7, auroc_ci=[0.6, 0.8])
    assert "On test" not in in_words("verdict", results)
    results.baselines[control].test = Metrics(0.8, auroc_ci=[0.61, 0.9])
    lines = in_words("verdict", results).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith(
        f"the best baseline. On test, all the interval of {control}, which {sees}, lies above that "
        "of saplma: AUROC .800 [.610, .900] against .500 [.400, .600]."
    )


def test_what_the_test_set_could_show_is_said():
    results = make_verdict()
    assert not in_words("detectable", results)
    results.verdict.baseline.detectable = 0.0312
    assert "such a test set would show (power .8): .031." in in_words("detectable", results)


def test_nothing_to_compare_with():
    assert in_words("verdict", make_results()) == ""


def test_what_detectors_add_to_what_they_stand_on():
    """Nothing where the start was kept; probes and runs without a base say nothing."""
    models = {
        "lstm_solo": make_entry(runs=[make_run(0.71, 0.69, start_val_auroc=0.7)]),
        "saplma": make_entry(runs=[make_run(0.7, 0.69, start_val_auroc=0.7, best_epoch=-1)]),
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


def test_it_is_said_who_chose_each_setting():
    """Validation, the user or nobody, as the record has it, in the order of the table."""
    settings = {
        "saplma_layer": Choice(20, "validation", [10, 20], [0.6, 0.5]),
        "input_scale": Choice("raw", "user"),
        "lr": Choice(0.001, "default"),
    }
    fixed = {"halunet_layer": Choice(6, "default")}
    models = {
        "saplma": make_entry(runs=[make_run(0.5, 0.6, layer=20, settings=settings)]),
        "halunet": make_entry(runs=[make_run(0.5, settings=fixed)]),
        "trilens": make_entry(alternative="first token", C=0.1),
    }
    baselines = {"majority": make_entry(), "logreg_best": make_entry(layer=8, C=1e-3)}
    assert in_words("tuned", make_results(models, baselines)) == (
        "Chosen on validation: thresholds; epochs; saplma layer 20; "
        "trilens first token, C 0.1; logreg_best layer 8, C 0.001. Given: saplma scale raw. "
        "Fixed: saplma lr 0.001; halunet layer 6."
    )
    one_epoch = make_results({"saplma": make_entry(runs=[make_run(0.5)])})
    assert in_words("tuned", one_epoch) == "Chosen on validation: thresholds."


def test_a_dash_of_the_risk_is_explained():
    """Where there is one."""
    results = make_results({"saplma": make_entry()}, config={"risk": 0.1})
    assert "A dash: too few questions" in in_words("risk", results)
    results.models["saplma"].test.risk = 0.05
    assert "A dash" not in in_words("risk", results)


@pytest.mark.parametrize("given, is_told", [(None, True), (0.1, False)])
def test_a_share_that_follows_from_the_agreement_says_so(given, is_told):
    results = make_results(config={"label_noise": given})
    results.label_noise = LabelNoise(0.1, {}, rows=400, agreement=0.82, kappa=0.6)
    assert ("as of two graders" in in_words("label_noise", results)) == is_told


@pytest.mark.parametrize("sd", [None, 0.01])
def test_of_several_trainings_the_bounds_are_means(sd):
    """The worst labels of one are not those of another."""
    results = make_results({"saplma": make_entry()}, label_noise=LabelNoise(0.1, {}))
    results.models["saplma"].test.auroc_sd = sd
    text = in_words("label_noise", results)
    assert text.endswith("beyond which their mean cannot be." if sd else "labels are wrong.")


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
    assert p_value(PairedTest(a="x", b="y", difference=0.1, ci=[0.0, 0.2], **tests)) == text
