"""Which case a verdict is; `words.jinja` phrases it.

NumPy-free and pure: results in, the names of the sentences out.
"""

from dataclasses import dataclass
from typing import Literal

from models import CONTROLS
from train.evaluate.results import Contrast, Results

__all__ = ["FEW", "OF_ANSWER", "Case", "case_of", "sees"]

FEW = 30  # traces of a class, and questions, below which intervals and p values promise too much
OF_QUESTION = ("question", "prompt")  # what a control sees that reads what was asked
OF_ANSWER = {"wording": "the wording", "texts": "the likeness of the texts"}  # of the answer's text

Known = Literal[
    "nothing",  # no control could read the question
    "data tells",  # a control is not beaten
    "more than texts",  # all are, of which the hardest reads the answer's text
    "answers count",  # all are, and it does not read the answer
]
Next = Literal[
    "label",
    "other methods",
    "tell control",
    "other data for control",
    "seeds",
    "elsewhere",
    "questions",
    "cheapest",
    "baseline",
]


@dataclass(frozen=True)
class Case:
    """What is known of answers, what to do next, and whether p is of a difference beyond or below
    the margin."""

    known: Known
    next: Next
    p_of: Literal["beyond", "below"]


def case_of(results: Results) -> Case | None:
    """The case of a verdict; None without one."""
    verdict = results.verdict
    if verdict is None:
        return None
    known = what_is_known(results, verdict.control)
    is_beyond = abs(verdict.baseline.difference) > verdict.margin
    return Case(known, what_is_next(results, known), "beyond" if is_beyond else "below")


def what_is_known(results: Results, control: Contrast | None) -> Known:
    if control is not None and control.finding != "better":
        return "data tells"
    if control is not None and sees(control.rival) in OF_ANSWER:
        return "more than texts"
    # texts that are all empty rank nothing
    reads_question = any(
        entry.control and entry.test.ranks and sees(name) in OF_QUESTION
        for name, entry in results.baselines.items()
    )
    return "answers count" if control is not None and reads_question else "nothing"


def what_is_next(results: Results, known: Known) -> Next:
    verdict = results.verdict
    assert verdict is not None
    detector = results.models[verdict.detector]
    if results.split.test.fewest < FEW:
        return "label"
    if known == "data tells":
        assert verdict.control is not None
        if not detector.test.beats_chance:
            return "other methods"
        control = results.baselines[verdict.control.rival]
        return "other data for control" if control.test.beats_chance else "tell control"
    if len(detector.runs or ()) == 1 and results.splits is None:
        return "seeds"
    by_finding: dict[str, Next] = {
        "better": "elsewhere",
        "undecided": "questions",
        "equal": "cheapest",
        "worse": "baseline",
    }
    return by_finding[verdict.baseline.finding]


def sees(name: str) -> str:
    """What a control sees of a trace, as of `Probe`; empty for a name that is none."""
    return CONTROLS[name].sees if name in CONTROLS else ""
