"""The verdict of a run in words: what won on test, and what detectors add to what they stand on."""

from store.reports import count
from train.files import Json
from train.report.numbers import bootstrap_p, equals, equals_p, short_p, with_interval

__all__ = ["is_small", "on_top_in_words", "verdict_in_words"]

# traces of a class, and questions, below which intervals and p values promise too much
FEW = 30


def is_small(results: Json) -> bool:
    """Whether the test split has too few questions or traces of a class to tell methods apart.

    With 12 questions about 8 of 100 true nulls have p < .05, with 5 about 12.
    """
    return fewest(results["split"]["test"]) < FEW


def fewest(test: Json) -> int:
    n_wrong = int(test["hallucinations"])
    return min(n_wrong, int(test["rows"]) - n_wrong, int(test["questions"]))


def verdict_in_words(results: Json) -> str:
    """The best on validation, and their comparison on test; empty without a baseline.

    `results` has `verdict` and `split`; of several splits their means.
    """
    verdict = results["verdict"]
    if not verdict:
        return ""
    difference = with_interval(verdict["difference"], verdict["ci"])
    of_one_split = "p_bootstrap" in verdict
    p = equals_p(verdict) if of_one_split else equals(short_p(verdict["p"]))
    test = "paired bootstrap over questions" if of_one_split else "corrected t-test over the splits"
    return (
        f"Best on validation: detector {verdict['detector']}, baseline {verdict['baseline']}.\n"
        f"On test {outcome_in_words(results)}: difference {difference}, p {p}\n"
        f"(of AUROC, with 95% interval; {test})."
    )


def outcome_in_words(results: Json) -> str:
    low, high = results["verdict"]["ci"]
    if is_small(results):
        test = results["split"]["test"]
        questions = count(test["questions"], "question")
        return f"there are too few traces to tell ({test['rows']} of {questions})"
    if low > 0:
        return "the detector is better"
    if high < 0:
        return "the detector is worse"
    return "they cannot be told apart"


def on_top_in_words(results: Json) -> str:
    """What each detector adds to the log-odds that it was trained on top of; empty without them."""
    base = results["config"].get("on_top_of")
    tests = {test["a"]: test for test in results["comparisons"] if test["b"] == base}
    texts = []
    for name, entry in results["models"].items():
        if base is None or "runs" not in entry:
            continue
        if all(map(kept_start, entry["runs"])):
            texts.append(f"{name} nothing (no epoch was better on validation than the start)")
        elif name in tests:
            test = tests[name]
            added = with_interval(test["difference"], test["ci"])
            p = bootstrap_p(test) if "p_bootstrap" in test else short_p(test["p"])
            texts.append(f"{name} {added} (p {p})")
    return f"Added on test to the AUROC of {base}: {'; '.join(texts)}." if texts else ""


def kept_start(run: Json) -> bool:
    """Whether a training ended with the weights that it began with."""
    areas = [epoch["val_auroc"] for epoch in run["history"]]
    return "start_val_auroc" in run and max(areas) <= run["start_val_auroc"]
