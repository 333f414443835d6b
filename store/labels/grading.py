"""Labels answers by one or several rules; one of them may be a judge, a model that is asked.

Nothing here knows a model library: a judge is anything that gives verdicts. Rules do not depend on
one another, but for this: a judge that calls an exact match wrong is not believed.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol

from store.errors import SchemaError
from store.format.schema import Column
from store.labels.answer_scores import NORMALIZATION, RULES, SCORE_THRESHOLD, exact_match_score
from store.labels.rule import UNLABELLED, label_scores
from store.traces.label_keys import LABEL_RULES_KEY, NORMALIZATION_KEY, RULE_COLUMN

__all__ = [
    "LABEL_OF_RULE",
    "Case",
    "Grade",
    "Grader",
    "Judge",
    "Verdict",
    "asked_and_judged",
    "check_judge",
    "count_verdicts",
    "label_column_name",
    "rule_columns",
]

KNOWN_CASES = 8  # references that a judge is asked about before it labels
LABEL_OF_RULE = Column("int8")  # the column of the labels of one of several rules

Word = Literal[
    "right", "wrong", "wrong, but an exact match", "neither", "too long", "no references"
]


class Case(NamedTuple):
    """An answer to be labelled."""

    question: str
    references: Sequence[str]
    answer: str


class Verdict(NamedTuple):
    """What a judge says of an answer: a word, and P(right) of its two words; NaN without one."""

    word: Word
    p_right: float = math.nan


class Judge(Protocol):
    """Asks a model whether answers are right."""

    def verdicts(self, cases: Sequence[Case]) -> list[Verdict]:
        """A verdict of each case."""
        ...

    def describe(self) -> dict[str, Any]:
        """What decides the verdicts, JSON-able."""
        ...


class Grade(NamedTuple):
    """The labels of one answer."""

    score: float  # of the first rule; NaN where it gives none
    labels: Mapping[str, int]  # rule -> 1 (hallucination), 0 (right) or -1 (unlabelled)
    verdict: str | None = None  # what the judge said


class Grader:
    """Labels answers by rules.

    The first of the rules gives `score` and `label`, and if there are several, each gives a column
    `label_RULE`. Scores of at least the threshold count as right. A judge is there with the rule
    judge, and only with it.
    """

    def __init__(
        self,
        rules: str | Sequence[str] = "exact",
        threshold: float = SCORE_THRESHOLD,
        judge: Judge | None = None,
    ) -> None:
        self.rules = [rules] if isinstance(rules, str) else list(rules)
        self.threshold = threshold
        self.judge = judge
        self.columns = rule_columns(self.rules)

    def grade(self, cases: Sequence[Case]) -> list[Grade]:
        """Label answers; a judge is asked about all of them together."""
        scores = {
            rule: [RULES[rule].score(case.answer, case.references) for case in cases]
            for rule in self.rules
        }
        words: Sequence[Word | None] = [None] * len(cases)
        if self.judge:
            pairs = zip(cases, self.judge.verdicts(cases), strict=True)
            verdicts = [_believed(case, verdict) for case, verdict in pairs]
            words = [verdict.word for verdict in verdicts]
            scores["judge"] = [verdict.p_right for verdict in verdicts]
        labels = {rule: label_scores(scores[rule], self.threshold).tolist() for rule in self.rules}
        return [
            Grade(scores[self.rules[0]][i], {rule: labels[rule][i] for rule in self.rules}, word)
            for i, word in enumerate(words)
        ]

    @property
    def no_grade(self) -> Grade:
        """The grade of an answer that no rule is asked about."""
        return Grade(math.nan, dict.fromkeys(self.rules, UNLABELLED))

    def row(self, grade: Grade) -> dict[str, float | int]:
        """The columns `score`, `label` and those of `columns` of one answer."""
        by_rule = {label_column_name(rule): label for rule, label in grade.labels.items()}
        return {"score": grade.score, "label": grade.labels[self.rules[0]], **by_rule}

    def describe(self) -> dict[str, Any]:
        """The rules, for the provenance; of a judge also the model, its prompt and its words."""
        described: dict[str, Any] = {
            "label_rule": RULES[self.rules[0]].text,
            NORMALIZATION_KEY: NORMALIZATION,
            "score_threshold": self.threshold,
        }
        # a store has one `score_threshold`, and columns of rules that were added with others
        below = f"score < {self.threshold}"
        texts: dict[str, Any] = {
            rule: RULES[rule].text.replace("score < threshold", below) for rule in self.rules
        }
        if self.judge:
            texts["judge"] = {"rule": texts["judge"], **self.judge.describe()}
        if len(self.rules) > 1 or self.judge:
            described[LABEL_RULES_KEY] = texts
        return described


def check_judge(judge: Judge, cases: Iterable[Case]) -> int:
    """Ask a judge whether references are right, before it labels: a template may ask the reverse.

    The first references of the first few `cases` that have any are judged as answers. Returns how
    many those are: of 0, nothing is known. Raises SchemaError if it calls more of them wrong than
    right.
    """
    with_references = (case for case in cases if case.references)
    known = [
        case._replace(answer=case.references[0]) for case in islice(with_references, KNOWN_CASES)
    ]
    words = Counter(verdict.word for verdict in judge.verdicts(known))
    if words["wrong"] > words["right"]:
        raise SchemaError(
            "judge: expected that it calls references right, asked whether they are answers, found "
            f"{words['wrong']} of {len(known)} called wrong; yes has to mean that the answer is "
            "right: ask it so in --judge-template, or take another model"
        )
    return len(known)


def rule_columns(rules: Sequence[str]) -> dict[str, Column]:
    """The columns besides `score` and `label`: of each rule, if there are several."""
    if len(rules) == 1:
        return {}
    return {label_column_name(rule): LABEL_OF_RULE for rule in rules}


def label_column_name(rule: str) -> str:
    return f"{RULE_COLUMN}{rule}"


def asked_and_judged(verdicts: Mapping[str, int]) -> tuple[int, int]:
    """How many answers a judge was asked about, and on how many it gave a verdict."""
    n_asked = sum(verdicts.values()) - verdicts.get("no references", 0)
    return n_asked, verdicts.get("right", 0) + verdicts.get("wrong", 0)


def count_verdicts(grades: Iterable[Grade]) -> Counter[str]:
    return Counter(grade.verdict for grade in grades if grade.verdict is not None)


def _believed(case: Case, verdict: Verdict) -> Verdict:
    """A verdict; that of a judge that calls one of the references wrong has no score."""
    if verdict.word == "wrong" and exact_match_score(case.answer, case.references) == 1.0:
        return Verdict("wrong, but an exact match")
    return verdict
