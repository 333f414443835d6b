"""What a run found, in words: every case of a verdict, what was chosen and imputed; the texts are
in `words.txt`, which `pytest --golden` writes."""

from dataclasses import fields, replace

from runs import make_entries, make_entry, make_results

from train.evaluate.results import (
    Choice,
    Contrast,
    Counts,
    Epoch,
    Explained,
    Findings,
    LabelNoise,
    Metrics,
    PairedTest,
    SplitsSummary,
    StrataRecord,
    TrainingFacts,
    Verdict,
)
from train.report.render import in_words

AT_CHANCE, ABOVE, HIGH = [0.4, 0.6], [0.6, 0.9], [0.86, 0.94]
READERS = ("question_only", "question_answer")


def make_run(*areas, **facts):
    history = [Epoch(i, 0.5, area) for i, area in enumerate(areas)]
    return TrainingFacts(0, "x.pt", history, 1.0, 0.0, 1, 0.1, **facts)


def make_verdict(finding="better", control="better", rival="question_only", runs=3, **changes):
    """Results with this finding of the best baseline, and of the control `rival`; `changes` are
    counts of the test split, or (AUROC, interval) of a method."""
    counts = {"rows": 400, "hallucinations": 200, "questions": 400}
    counts |= {name: changes.pop(name) for name in counts if name in changes}
    verdict = Verdict(
        detector="saplma",
        margin=0.01,
        baseline=Contrast("entropy", 0.1, [0.05, 0.2], 0.01, finding),
        control=control and Contrast(rival, 0.2, [0.1, 0.3], 0.01, control),
    )
    models = {"saplma": make_entry(runs=[make_run(0.5)] * runs)}
    names = dict.fromkeys(("entropy", "question_only", "answer_length", rival))
    results = make_results(
        models, make_entries(dict.fromkeys(names, 0.5)), Counts(**counts), verdict=verdict
    )
    for name, (area, interval) in changes.items():
        results.entries[name].test = Metrics(area, auroc_ci=interval)
    return results


def verdicts():
    """Name -> results: who is best, what sees no answer and reaches what, what to do next."""
    for finding in ("better", "worse", "equal", "undecided"):
        yield f"the baseline: {finding}", make_verdict(finding)
        if finding != "better":
            yield f"the control: {finding}", make_verdict(control=finding)
    below = make_verdict("undecided")
    below.verdict.baseline.difference = -0.009
    yield "p of a difference below the margin", below
    yield "one training", make_verdict(runs=1)
    length = {"control": "undecided", "rival": "answer_length"}
    for name, detector, control in (
        ("of both above chance", ABOVE, ABOVE),
        ("of a control at chance", ABOVE, AT_CHANCE),
        ("of a detector at chance", AT_CHANCE, AT_CHANCE),
    ):
        areas = {"saplma": (0.5, detector), "answer_length": (0.5, control)}
        yield f"next, {name}", make_verdict(**length, **areas)
    for n in (4, 5, 400):
        unread = make_verdict()
        unread.split.without_text = n
        yield f"{n} of 400 without a text", unread
    yield "no control", make_verdict(control=None)
    yield "no control read the question", make_verdict(question_only=(0.5, [0.5, 0.5]))
    yield from of_readers()
    known = {"control": "undecided", "question_only": (0.8, [0.75, 0.85])}
    yield (
        "a baseline as good as the control",
        make_verdict("worse", **known, entropy=(0.82, [0.77, 0.87])),
    )
    yield "a baseline that knows more", make_verdict("worse", **known, entropy=(0.9, HIGH))
    chance = (0.49, [0.42, 0.56])
    yield "at chance", make_verdict(control="undecided", saplma=chance, question_only=chance)
    for few in ({"questions": 3}, {"hallucinations": 29}, {"rows": 210}):
        yield f"few {next(iter(few))}", make_verdict(**few)
    for control in ("question_only", "answer_text"):
        yield f"few, {control} above", few_below(control, 0.61)
    yield "few, none above", few_below("answer_text", 0.59)
    yield "few in the second of two splits", in_splits(make_verdict(), make_verdict(questions=3))


def of_readers():
    """Of a control that reads answers it is not said that it does not."""
    for control, others in (
        ("answer_text", READERS),
        ("answer_context", READERS),
        ("answer_text", READERS[:1]),
    ):
        for finding in ("better", "undecided"):
            results = make_verdict(control=finding, rival=control)
            results.baselines = make_entries(dict.fromkeys(("entropy", control, *others), 0.5))
            for name in others:
                results.baselines[name].test.auroc_ci = AT_CHANCE
            yield f"{control} beside {', '.join(others)}: {finding}", results


def few_below(control, low):
    """Few traces, and a control whose interval begins at `low`, where the detector's ends at .6."""
    areas = {"saplma": (0.5, AT_CHANCE), "entropy": (0.9, [0.8, 0.95]), control: (0.8, [low, 0.9])}
    return make_verdict(rival=control, rows=40, answer_length=(0.7, [0.6, 0.8]), **areas)


def in_splits(*runs):
    """The results of several splits, with the means of the first."""
    means = {one.name: getattr(runs[0], one.name) for one in fields(Findings)}
    summary = SplitsSummary(**means, seeds=[*range(len(runs))], test_over_train=1, runs=[*runs])
    return replace(runs[0], splits=summary)


def others():
    """(Words, name) -> results of all other sentences."""
    yield "verdict", "nothing to compare with", make_results()
    yield "explained", "of one control", within_strata()
    controls = make_entries(dict.fromkeys(("entropy", "question_only", "metadata"), 0.5))
    yield "columns", "what controls see", make_results(baselines=controls)
    yield "columns", "of several splits", of_splits()
    yield "detectable", "unknown", make_verdict()
    detectable = make_verdict()
    detectable.verdict.baseline.detectable = 0.0312
    yield "detectable", "known", detectable
    for base in ("entropy", None):
        yield "on_top", f"of {base}", added(base)
    yield "tuned", "by whom", chosen()
    yield "tuned", "one epoch", make_results({"saplma": make_entry(runs=[make_run(0.5)])})
    for risk in (None, 0.05):
        entry = make_entry()
        entry.test.risk = risk
        yield "risk", f"{risk}", make_results({"saplma": entry}, config={"risk": 0.1})
    for given in (None, 0.1):
        results = make_results(config={"label_noise": given})
        results.label_noise = LabelNoise(0.1, {}, rows=400, agreement=0.82, kappa=0.6)
        yield "label_noise", f"given: {given}", results
    results = make_results({"saplma": make_entry()}, label_noise=LabelNoise(0.1, {}))
    results.models["saplma"].test.auroc_sd = 0.01
    yield "label_noise", "of several trainings", results
    some = counted(logreg_best=12, entropy=3, majority=0, logreg_mean=12)
    yield "imputed", "by count", make_results({"trilens": make_entry()}, some)
    yield "imputed", "nothing", make_results(baselines=counted(majority=0))
    first, second = (make_results(baselines=counted(entropy=n)) for n in (0, 4))
    yield "imputed", "of several splits", in_splits(first, second)


def within_strata():
    """How many groups there are, what share of the pairs, and what the control has there."""
    results = make_verdict(rival="answer_text")
    by = "6 groups of the score of answer_text"
    results.strata = StrataRecord(by, "answer_text", 6, 6, 9, 0.13)
    results.explained = Explained("answer_text", {"saplma": 0.151})
    results.models["saplma"].test.auroc_within = 0.968
    results.baselines["answer_text"].test.auroc_within = 0.5
    return results


def of_splits():
    """The strata of the first split are of one control, those of the means of each split's own."""
    first = within_strata()
    means = within_strata()
    strata = StrataRecord("groups of the score of each", None, 6, 6, 9, 0.13)
    found = in_splits(first, means)
    found.splits.strata, found.splits.explained = strata, means.explained
    return found


def added(base):
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
    return make_results(models, comparisons=comparisons, config={"on_top_of": base})


def chosen():
    """By validation, the user or nobody, as the record has it, in the order of the table."""
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
    return make_results(
        models, {"majority": make_entry(), "logreg_best": make_entry(layer=8, C=1e-3)}
    )


def counted(**counts):
    return {name: make_entry(traces_with_missing_numbers=n or None) for name, n in counts.items()}


def test_the_words_of_every_case(golden):
    """As they were read and found good; a change of the templates is seen in the difference."""
    cases = [("verdict", name, results) for name, results in verdicts()]
    found = {
        f"{words}: {name}": in_words(words, results) for words, name, results in [*cases, *others()]
    }
    golden("words.txt", "\n".join(f"== {name}\n{text}\n" for name, text in found.items()))
