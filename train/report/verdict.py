"""Which case a verdict is, by pure functions of the results; `words.jinja` phrases it."""

from dataclasses import dataclass
from typing import Literal

from models import CONTROLS
from train.evaluate.paired_tests import OF_QUESTION
from train.evaluate.results import Entry, Results, Verdict

__all__ = ["FEW", "OF_ANSWER", "READ", "SEEN", "Case", "case_of", "lacks_texts", "sees"]

NEARLY_ALL = 0.99  # of the tested traces
FEW = 30  # traces of a class, and questions, below which intervals and p values promise too much
OF_ANSWER = ("wording", "both", "texts")  # of one that reads the answer's text
READ = (*OF_ANSWER, "fields")  # of one that may know of answers
SEEN = {  # how each is called
    "question": "the question",
    "prompt": "the prompt",
    "length": "the answer's length",
    "fields": "the fields",
    "wording": "the wording",
    "both": "the texts of question and answer",
    "texts": "the likeness of the texts",
}

Known = Literal[
    "nothing",  # all controls are beaten, but none could read nearly all questions
    "chance",  # a control is not beaten, and neither it nor the detector beats chance
    "data tells",  # a control is not beaten
    "detector fails",  # nor is it here, but a baseline knows more than both
    "more than texts",  # all are, of which one reads question and answer
    "answers count",  # all are, of which one reads the question
]


@dataclass(frozen=True)
class Case:
    """What is known of answers, what to do next, and what p is of."""

    known: Known
    # the finding on the best baseline; before it come "few traces", "detector at chance", "control
    # at chance", "control not beaten" and "one training"
    next: str
    p_of: Literal["beyond", "below"]  # a difference beyond or below the margin
    above: str | None  # the control whose interval on test is the furthest above the detector's


def case_of(results: Results) -> Case | None:
    """The case of a verdict; None without one."""
    verdict = results.verdict
    if verdict is None:
        return None
    known = what_is_known(results, verdict)
    is_beyond = abs(verdict.baseline.difference) > verdict.margin
    what_next = what_is_next(results, verdict, known)
    above = control_above(results, verdict.detector)
    return Case(known, what_next, "beyond" if is_beyond else "below", above)


def control_above(results: Results, detector: str) -> str | None:
    """The control whose interval of the AUROC is the furthest above all of the detector's."""
    lows = {
        name: entry.test.auroc_ci[0]
        for name, entry in results.baselines.items()
        if entry.control and entry.test.auroc_ci
    }
    best = max(lows, key=lows.__getitem__, default=None)
    is_above = best and lies_above(results.baselines[best], results.models[detector])
    return best if is_above else None


def lies_above(one: Entry, other: Entry) -> bool:
    """Whether all the interval of an AUROC on test lies above that of another."""
    above, below = one.test.auroc_ci, other.test.auroc_ci
    return bool(above and below and above[0] > below[1])


def what_is_known(results: Results, verdict: Verdict) -> Known:
    if verdict.control is None:
        return "nothing"
    if verdict.control.finding != "better":
        control = results.baselines[verdict.control.rival]
        if not (control.test.beats_chance or results.models[verdict.detector].test.beats_chance):
            return "chance"
        baseline = results.baselines[verdict.baseline.rival]
        is_worse = verdict.baseline.finding == "worse"
        return "detector fails" if is_worse and lies_above(baseline, control) else "data tells"
    # texts that are all empty rank nothing
    seen = {
        sees(name)
        for name, entry in results.baselines.items()
        if entry.control and entry.test.ranks
    }
    if seen.isdisjoint(OF_QUESTION) or lacks_texts(results):
        return "nothing"
    return "more than texts" if "both" in seen else "answers count"


def lacks_texts(results: Results) -> bool:
    """Whether a leak of questions may go unseen: a control cannot read those without a text."""
    split = results.smallest_split
    return split.without_text > (1 - NEARLY_ALL) * split.test.rows


def what_is_next(results: Results, verdict: Verdict, known: Known) -> str:
    detector = results.models[verdict.detector]
    if results.smallest_split.test.fewest < FEW:
        return "few traces"
    if known in ("chance", "data tells") and verdict.control is not None:
        if not detector.test.beats_chance:
            return "detector at chance"
        control = results.baselines[verdict.control.rival]
        return "control not beaten" if control.test.beats_chance else "control at chance"
    if len(detector.runs or ()) == 1 and results.splits is None:
        return "one training"
    return verdict.baseline.finding


def sees(name: str) -> str:
    """What a control sees of a trace, as of `Probe`; empty for a name that is none."""
    return CONTROLS[name].sees if name in CONTROLS else ""
