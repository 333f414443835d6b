"""Controls that read several columns of texts and numbers: encoded, then a regression on numbers.

The encoding is made of the columns of the training rows, without their labels; the regression is
that of every probe.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray

from models.probe import FittedProbe, Probe
from models.reader import FeatureReader
from store import Batch

__all__ = ["Encoding", "FittedTable", "Table", "TableProbe"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of some rows; `table[mask]` has some of them."""

    n_rows: int
    columns: Mapping[str, NDArray]  # (n_rows,): texts, or numbers

    def __getitem__(self, index: NDArray) -> "Table":
        n_rows = len(np.arange(self.n_rows)[index])
        return Table(n_rows, {name: values[index] for name, values in self.columns.items()})

    def only(self, names: Collection[str]) -> "Table":
        """Some of the columns, in the order in which they are."""
        kept = {name: values for name, values in self.columns.items() if name in names}
        return Table(self.n_rows, kept)

    def texts(self, name: str) -> list[str]:
        """A column of texts, empty where it is not there."""
        return list(self.columns[name]) if name in self.columns else [""] * self.n_rows


class Encoding(Protocol):
    """Turns a table into numbers; made of the training rows, and saved without code."""

    @classmethod
    def of_table(cls, train: Table) -> Self: ...

    def numbers(self, table: Table) -> Floats:
        """Features (n, k); NaN where a number is missing."""
        ...

    def to_dict(self) -> dict[str, Any]: ...

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedTable(FittedProbe):
    """A fitted control: an encoding, and the regression of its numbers."""

    encoding: Encoding

    def logits(self, table: Any) -> Floats:
        """Log-odds of hallucination (n,) of the rows of a `Table`."""
        return super().logits(as_features(self.encoding, table))

    def to_dict(self) -> dict[str, Any]:
        saved = super().to_dict()
        return {"encoding": saved.pop("encoding").to_dict(), "regression": saved}


@dataclass(frozen=True)
class TableProbe(FeatureReader):
    """A control that reads columns of texts and numbers; it is used as a `Probe` is."""

    columns: tuple[str, ...]
    sees: str  # as of `Probe`
    encoding: type[Encoding]
    optional: tuple[str, ...] = ()

    def fit(
        self, train: Table, train_labels: Labels, val: Table, val_labels: Labels
    ) -> FittedTable:
        """Encode the rows of train, and fit a regression whose penalty validation chooses."""
        encoding = self.encoding.of_table(train)
        numbers, val_numbers = as_features(encoding, train), as_features(encoding, val)
        regression = REGRESSION.fit(numbers, train_labels, val_numbers, val_labels)
        return FittedTable(encoding=encoding, **vars(regression))

    def refit(self, fitted: FittedTable, train: Table, labels: Labels) -> FittedTable:
        """Fit on other rows, with the penalty of a fitted control."""
        encoding = self.encoding.of_table(train)
        regression = REGRESSION.refit(fitted, as_features(encoding, train), labels)
        return replace(cast(FittedTable, regression), encoding=encoding)

    def load(self, saved: Mapping[str, Any]) -> FittedTable:
        """What `fit` returned, from its `to_dict`; raises as `Fitted.from_dict` does."""
        encoding = self.encoding.from_dict(saved["encoding"])
        return FittedTable(encoding=encoding, **vars(FittedProbe.from_dict(saved["regression"])))


def as_features(encoding: Encoding, table: Table) -> torch.Tensor:
    """The numbers of a table, (n, 1, k) float64."""
    return torch.from_numpy(encoding.numbers(table))[:, None]


def no_features(batch: Batch) -> torch.Tensor:
    raise NotImplementedError("an encoding gives the features of a table")


REGRESSION = Probe((), no_features)
