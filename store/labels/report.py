"""What several rules say of the same answers, and what looks wrong about it: lines for people."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from store.labels.rule import UNLABELLED, LabelCounts
from store.reports import count

__all__ = ["class_counts", "rule_table", "verdict_lines"]

FEW_VERDICTS = 0.5  # fewer verdicts than this share of the answers: the judge is no judge
HEADER = ("rule", "hallucinations", "right", "unlabelled")


def class_counts(counts: LabelCounts) -> str:
    """'labels: 12 hallucinations, 30 right'."""
    return f"labels: {counts.text}"


def rule_table(labels: Mapping[str, NDArray[np.int64]]) -> list[str]:
    """Compare rules: a line each, with how many labels agree with the first rule's; none for one.

    Parameters
    ----------
    labels
        Rule -> labels int64 `(n_rows,)`.
    """
    if len(labels) < 2:
        return []
    first, *_ = labels
    table: list[tuple[str, ...]] = [(*HEADER, f"agrees with {first}")]
    for rule, found in labels.items():
        numbers = [f"{n:,}" for n in LabelCounts.of(found)]
        agreement = "" if rule == first else _agreement(labels[first], found)
        table.append((rule, *numbers, agreement))
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    return [_line(cells, widths) for cells in table]


def _agreement(one: NDArray[np.int64], other: NDArray[np.int64]) -> str:
    """'97.1% of 950', of the rows that both label."""
    both = (one != UNLABELLED) & (other != UNLABELLED)
    n = int(both.sum())
    if not n:
        return "none in common"
    return f"{np.mean(one[both] == other[both]):.1%} of {n:,}"


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    name, *numbers = cells
    padded = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
    return f"  {'  '.join([name.ljust(widths[0]), *padded])}".rstrip()


def verdict_lines(verdicts: Mapping[str, int]) -> list[str]:
    """What a judge said, in a line, and a warning where it said little of use.

    Parameters
    ----------
    verdicts
        What it said -> how often; empty without a judge.
    """
    n = sum(verdicts.values())
    if not n:
        return []
    said = ", ".join(
        f"{times:,} {word}" for word, times in sorted(verdicts.items(), key=lambda item: -item[1])
    )
    lines = [f"  judge: {said}"]
    n_asked = n - verdicts.get("no references", 0)
    n_given = verdicts.get("right", 0) + verdicts.get("wrong", 0)
    if n_given < FEW_VERDICTS * n_asked:
        lines.append(
            f"warning: the judge gave a verdict on {n_given:,} of {count(n_asked, 'answer')} only, "
            "the others are unlabelled: ask a model that follows instructions, or in another way "
            "(--judge-template)"
        )
    elif n_given >= 10 and verdicts.get("right", 0) in (0, n_given):
        lines.append(
            f"warning: the judge said the same of all {n_given:,} answers: read some of them; it "
            "may be a model that always says so"
        )
    return lines
