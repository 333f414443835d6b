"""How traces are labelled, and what looks wrong about it: lines for people."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from store.labels.grading import asked_and_judged
from store.labels.rule import UNLABELLED
from store.read.store import TraceStore
from store.reports import aligned, count, count_lines

__all__ = [
    "LabelCounts",
    "label_lines",
    "one_class_warning",
    "rule_table",
    "stored_counts",
    "verdict_lines",
]

ONE_CLASS = 0.9  # more of the labels than this of one class: the rule is likely to be the reason
ONE_CLASS_ROWS = 10  # fewer labels are too few for the warning
FEW_VERDICTS = 0.5  # fewer verdicts than this share of the answers: the judge is no judge
HEADER = ("rule", "hallucinations", "right", "unlabelled")


class LabelCounts(NamedTuple):
    """How many traces have which label."""

    n_wrong: int
    n_right: int
    n_unlabelled: int

    @classmethod
    def of(cls, labels: ArrayLike) -> "LabelCounts":
        counts = Counter(np.asarray(labels).tolist())
        return cls(counts[1], counts[0], counts[UNLABELLED])

    @property
    def text(self) -> str:
        """The two classes, for people: '12 hallucinations, 30 right'."""
        return f"{count(self.n_wrong, 'hallucination')}, {self.n_right:,} right"

    @property
    def lines(self) -> list[str]:
        """The two classes, after the traces that have no label, if some have none."""
        return [*count_lines([(self.n_unlabelled, "without a label")]), f"  labels: {self.text}"]


def stored_counts(store: TraceStore) -> LabelCounts | None:
    """Count the labels of a store; None for one without a column `label`."""
    if "label" not in store.schema.columns:
        return None
    return LabelCounts.of(store.column_array("label"))


def label_lines(store: TraceStore) -> list[str]:
    """Count the labels of a store, and warn where nearly all are of one class.

    They were given: no rule made them. No line for a store without a column `label`.
    """
    counts = stored_counts(store)
    return [] if counts is None else [*counts.lines, *one_class_warning(counts)]


def one_class_warning(counts: LabelCounts, rule: str | None = None) -> list[str]:
    """Say in a line that nearly all labels are of one class, and what to do.

    There is none if at most 90% are of one class, or for fewer than 10 labels. `rule` is the name
    of the rule that made them; None if they were given.
    """
    n_wrong, n_right, _ = counts
    n_labels = n_right + n_wrong
    n_larger = max(n_right, n_wrong)
    if n_labels < ONE_CLASS_ROWS or n_larger <= ONE_CLASS * n_labels:
        return []
    name = "hallucinations" if n_wrong > n_right else "right"
    percent = math.floor(100 * n_larger / n_labels)  # never "100%" unless it is all
    if rule is None:
        advice = "check that the right column was read, which way its scores run, and the threshold"
    elif n_wrong > n_right and rule in ("exact", "f1"):
        advice = (
            f"{rule} calls nearly every whole sentence of a chat model wrong; try --labels contains"
        )
    else:
        advice = "a detector learns little from so few others; read some answers and their labels"
    return [f"warning: {percent}% of {n_labels:,} labels are {name}: {advice}"]


def rule_table(labels: Mapping[str, NDArray[np.int64]]) -> list[str]:
    """Compare rules: a line each, with how many labels agree with the first's; none for one."""
    if len(labels) < 2:
        return []
    first, *_ = labels
    table: list[tuple[str, ...]] = [(*HEADER, f"agrees with {first}")]
    for rule, found in labels.items():
        numbers = [f"{n:,}" for n in LabelCounts.of(found)]
        agreement = "" if rule == first else _agreement(labels[first], found)
        table.append((rule, *numbers, agreement))
    return [f"  {line}" for line in aligned(table, str.rjust)]


def _agreement(one: NDArray[np.int64], other: NDArray[np.int64]) -> str:
    """'97.1% of 950', of the rows that both label."""
    both = (one != UNLABELLED) & (other != UNLABELLED)
    n = int(both.sum())
    if not n:
        return "none in common"
    return f"{np.mean(one[both] == other[both]):.1%} of {n:,}"


def verdict_lines(verdicts: Mapping[str, int]) -> list[str]:
    """What a judge said, in a line, and a warning where it said little of use."""
    if not any(verdicts.values()):
        return []
    said = ", ".join(
        f"{times:,} {word}" for word, times in sorted(verdicts.items(), key=lambda item: -item[1])
    )
    lines = [f"  judge: {said}"]
    n_asked, n_given = asked_and_judged(verdicts)
    if n_given < FEW_VERDICTS * n_asked:
        lines.append(
            f"warning: the judge gave a verdict on {n_given:,} of {count(n_asked, 'answer')} only, "
            "the others are unlabelled: ask a model that follows instructions, or in another way "
            "(--judge-template)"
        )
    return lines
