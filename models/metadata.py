"""The control that reads fields: which model and task, who annotated, and whatever a store knows.

What each field tells alone is measured on validation. A field that looks like the labels of a
second grader is not read unless it is named: its values say yes and no, and it tells far more than
other fields do.

Each value that `LEAST_SHARED` training rows or more have is a category, and a number is a number,
too. So ids and free texts tell nothing, which a row shares with few. Where it ranks as well as a
detector, the labels may say who was asked or who judged, not which answers are wrong.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from models.tables import FittedTable, Floats, Labels, Table, TableProbe

__all__ = ["METADATA", "FieldEncoding", "FieldProbe", "FittedFields", "read_grades"]

YES = ("1", "true", "yes", "y", "pass", "right", "correct")
NO = ("0", "false", "no", "n", "fail", "wrong", "incorrect")
MISSING = ("", "nan", "-1")
# of a second grader: how much more often it says yes of the one label than of the other, and how
# far that is above the same of other fields: 2 * AUROC - 1, of an AUROC a standard error lower.
# The last is enough beside a number, which may be a grade too, such as 1 to 5.
LEAST_TOLD, FAR_ABOVE, ENOUGH = 0.5, 0.2, 0.8
LEAST_SHARED = 5  # rows of train
MOST_CATEGORIES = 100  # of a field, the most frequent ones
LARGEST = 1e30  # numbers beyond it are cut, so that their variance is finite


@dataclass(frozen=True)
class FieldEncoding:
    """The categories of each field, and which fields are numbers."""

    categories: dict[str, list[str]]  # field -> values
    numeric: list[str]

    @classmethod
    def of_table(cls, train: Table) -> Self:
        names = sorted(train.columns)
        return cls(
            {name: categories_of(train.columns[name]) for name in names},
            [name for name in names if is_number(train.columns[name])],
        )

    def numbers(self, table: Table) -> Floats:
        """A column for each category and each number; NaN for a number that is not there."""
        unknown = np.full(table.n_rows, "", dtype=object)
        columns = [np.zeros(table.n_rows)]  # the base rate, for want of any other
        for name, categories in self.categories.items():
            texts = as_texts(table.columns.get(name, unknown))
            columns += [(texts == one).astype(np.float64) for one in categories]
        columns += [as_number(table.columns.get(name, unknown)) for name in self.numeric]
        return np.stack(columns, axis=1)

    def to_dict(self) -> dict[str, Any]:
        return {"categories": self.categories, "numeric": self.numeric}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        categories = {str(name): list(map(str, ones)) for name, ones in saved["categories"].items()}
        return cls(categories, list(map(str, saved["numeric"])))


def categories_of(values: NDArray) -> list[str]:
    """Values that some rows share and others do not."""
    frequent = Counter(as_texts(values).tolist()).most_common(MOST_CATEGORIES)
    return [value for value, n in frequent if LEAST_SHARED <= n < len(values)]


def as_texts(values: NDArray) -> NDArray:
    return np.array(list(map(str, values.tolist())), dtype=object)


def is_number(values: NDArray) -> bool:
    return values.dtype.kind in "iuf"


def as_number(values: NDArray) -> Floats:
    """A column as float64, NaN where it is no finite number."""
    if not is_number(values):
        return np.full(len(values), np.nan)
    numbers = values.astype(np.float64)
    return np.where(np.isfinite(numbers), np.clip(numbers, -LARGEST, LARGEST), np.nan)


def read_grades(values: NDArray) -> tuple[Floats, NDArray]:
    """1 for yes, 0 for no and NaN for anything else, (n,); and those values that say another."""
    words = [text.lower().removesuffix(".0") for text in as_texts(values)]
    grades = np.array([1.0 if one in YES else 0.0 if one in NO else np.nan for one in words])
    return grades, values[np.isnan(grades) & ~np.isin(words, MISSING)]


def as_grades(values: NDArray) -> Floats:
    """Of a column that says yes and no 1 and 0, NaN where it has nothing; else NaN throughout."""
    grades, others = read_grades(values)
    return np.full(len(grades), np.nan) if len(others) else grades


def has_yes_and_no(values: NDArray) -> bool:
    """Whether a column has both words, whatever else it says, such as maybe."""
    words = {text.lower() for text in as_texts(values)}
    return not any(map(words.isdisjoint, (YES[1:], NO[1:])))


class Agreement(NamedTuple):
    """Of yes and no with the label."""

    told: float  # how much more often a yes has the one label than the other
    same: float  # share of the traces on which both are the same; of an opposite below one half


def agree(grades: Floats, labels: Labels) -> Agreement:
    is_known = ~np.isnan(grades)
    known, of_known = grades[is_known], labels[is_known]
    if len(np.unique(known)) < 2 or len(np.unique(of_known)) < 2:
        return Agreement(0.0, 0.0)
    difference = known[of_known == 1].mean() - known[of_known == 0].mean()
    return Agreement(abs(float(difference)), float(np.mean(known == of_known)))


def error_by_chance(labels: Labels) -> float:
    """Standard error of the AUROC on rows with these labels (n,), of scores that tell nothing."""
    n_wrong, n_right = (labels == 1).sum(), (labels == 0).sum()
    return float(np.sqrt((n_wrong + n_right + 1) / (12 * n_wrong * n_right)))


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedFields(FittedTable):
    """A fitted control of fields, and what it knows of each."""

    alone: dict[str, float] = field(default_factory=dict)  # field read -> AUROC on validation
    # field that is not read -> on which share of train and validation it agrees with the label
    like_labels: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FieldProbe(TableProbe):
    """A `TableProbe` whose columns are the fields of a store."""

    named: frozenset[str] = frozenset()  # fields that are read whatever they look like

    def fit(
        self, train: Table, train_labels: Labels, val: Table, val_labels: Labels
    ) -> FittedFields:
        """Without the fields that look like labels; what each of the others tells alone."""
        whole = super().fit(train, train_labels, val, val_labels)
        alone = self.areas_alone(whole, train, train_labels, val, val_labels)
        labels = np.concatenate([train_labels, val_labels])
        values = {name: np.concatenate([train.columns[name], val.columns[name]]) for name in alone}
        graded = {name: agree(as_grades(one), labels) for name, one in values.items()}
        by_chance = error_by_chance(val_labels)
        others = {
            name: 2 * (area - by_chance) - 1
            for name, area in alone.items()
            if not graded[name].told and not has_yes_and_no(values[name])
        }
        limits = [
            min(FAR_ABOVE + told, ENOUGH if is_number(values[name]) else math.inf)
            for name, told in others.items()
        ]
        least = max([LEAST_TOLD, *limits])
        like = {
            name: one.same
            for name, one in graded.items()
            if one.told >= least and name not in self.named
        }
        if like:
            kept = train.columns.keys() - like.keys()
            whole = super().fit(train.only(kept), train_labels, val.only(kept), val_labels)
        read = {name: area for name, area in alone.items() if name not in like}
        return FittedFields(**vars(whole), alone=read, like_labels=like)

    def areas_alone(
        self, whole: FittedTable, train: Table, labels: Labels, val: Table, val_labels: Labels
    ) -> dict[str, float]:
        """Field -> AUROC on validation of a fit on it alone, best first; no ids and free texts."""
        areas = {}
        for name in train.columns:
            alone = super().refit(whole, train.only([name]), labels)
            if alone.encoding.numbers(train).shape[1] > 1:
                areas[name] = float(roc_auc_score(val_labels, alone.logits(val)))
        return dict(sorted(areas.items(), key=lambda one: -one[1]))

    def refit(self, fitted: FittedTable, train: Table, labels: Labels) -> FittedTable:
        """On other rows, of the fields that were read."""
        read = fitted.encoding.to_dict()["categories"]
        return super().refit(fitted, train.only(read), labels)


METADATA = FieldProbe((), "fields", FieldEncoding)
