"""questions.csv: the questions of a run and their splits, by which other stores are compared."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.reports import count
from store.traces.question_split import SPLITS
from train.data.questions import Questions
from train.data.splits import Splits
from train.files import replace_file
from train.run.results import read_columns

__all__ = ["AskedByRun", "is_trained", "read_asked", "write_asked"]

FILE = "questions.csv"
COLUMNS = ["split", "question_id", "text"]


def write_asked(directory: Path, splits: Splits) -> None:
    """Write a line for each split, id and digest of a text."""
    with replace_file(directory / FILE) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for split in SPLITS:
            rows = splits.rows(split)
            pairs = zip(splits.asked.ids[rows], splits.asked.texts[rows], strict=True)
            writer.writerows((split, *pair) for pair in dict.fromkeys(pairs))


def read_asked(directory: Path) -> AskedByRun:
    """Read what `write_asked` wrote; raises DataError for another file, or none."""
    asked = AskedByRun({}, {})
    lines = read_columns(directory / FILE, COLUMNS)
    for split, question_id, text in zip(*lines.values(), strict=True):
        asked.by_id.setdefault(question_id, set()).add(split)
        asked.by_text.setdefault(text, set()).add(split)
    asked.by_text.pop("", None)
    return asked


class AskedByRun(NamedTuple):
    """The splits of a run that a question is in, by its id and by the digest of its text."""

    by_id: dict[str, set[str]]
    by_text: dict[str, set[str]]

    def find_splits(self, asked: Questions) -> list[str]:
        """Splits of each trace's question: "train", "train/val", or "" for a new one.

        A question is known by any id or text of its traces.
        """
        found: defaultdict[str, set[str]] = defaultdict(set)
        for question_id, text, key in zip(asked.ids, asked.texts, asked.keys, strict=True):
            found[key] |= self.by_id.get(question_id, set()) | self.by_text.get(text, set())
        return ["/".join(sorted(found[key])) for key in asked.keys]

    def remarks_on(self, asked: Questions) -> list[str]:
        """That some traces have no text, where those of the run had one."""
        n_without = int(np.sum(asked.texts == "")) if self.by_text else 0
        traces = count(n_without, "trace has", "traces have")
        why = f"{traces} no text of the question: if the run was trained on it, only its id says so"
        return [why] * bool(n_without)


def is_trained(splits: Sequence[str]) -> NDArray[np.bool_]:
    """Whether what `find_splits` found is a question that the run was trained or tuned on."""
    return np.array([any(split in one for split in ("train", "val")) for one in splits], dtype=bool)
