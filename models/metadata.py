"""The control that reads fields: which model and task, who annotated, and whatever a store knows.

What each field tells alone is measured on validation.

Each value that `LEAST_SHARED` training rows or more have is a category, and a number is a number,
too. So ids and free texts tell nothing, which a row shares with few. Where it ranks as well as a
detector, the labels may say who was asked or who judged, not which answers are wrong.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from models.tables import FittedTable, Floats, Labels, Table, TableProbe

__all__ = ["METADATA", "FieldEncoding", "FieldProbe", "FittedFields"]

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


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedFields(FittedTable):
    """A fitted control of fields, and what it knows of each."""

    alone: dict[str, float] = field(default_factory=dict)  # field -> AUROC on validation


@dataclass(frozen=True)
class FieldProbe(TableProbe):
    """A `TableProbe` whose columns are the fields of a store."""

    def fit(
        self, train: Table, train_labels: Labels, val: Table, val_labels: Labels
    ) -> FittedFields:
        """On all fields; and what each of them tells alone."""
        whole = super().fit(train, train_labels, val, val_labels)
        alone = self.areas_alone(whole, train, train_labels, val, val_labels)
        return FittedFields(**vars(whole), alone=alone)

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


METADATA = FieldProbe((), "fields", FieldEncoding)
