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
COLUMNS = ["split", "question_id", "text", "wording"]
LEARNED = ("train", "val")


def write_asked(directory: Path, splits: Splits) -> None:
    """Write a line for each split, id and digests of a text and of its question."""
    with replace_file(directory / FILE) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for split in SPLITS:
            rows = splits.rows(split)
            asked = splits.asked.ids, splits.asked.texts, splits.asked.wordings
            lines = zip(*(one[rows] for one in asked), strict=True)
            writer.writerows((split, *line) for line in dict.fromkeys(lines))


def read_asked(directory: Path) -> AskedByRun:
    """Read what `write_asked` wrote; raises DataError for another file, or none."""
    lines = read_columns(directory / FILE, COLUMNS)
    asked = AskedByRun({}, {}, set())
    for split, question_id, text, wording in zip(*lines.values(), strict=True):
        asked.by_id.setdefault(question_id, set()).add(split)
        asked.by_text.setdefault(text, set()).add(split)
        if split in LEARNED:
            asked.wordings.add(wording)
    asked.by_text.pop("", None)
    asked.wordings.discard("")
    return asked


class AskedByRun(NamedTuple):
    """The splits of a run that a question is in, by its id and by the digest of its text."""

    by_id: dict[str, set[str]]
    by_text: dict[str, set[str]]
    wordings: set[str]  # of train and val, whatever the context

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

    def remarks_on_contexts(self, asked: Questions, rows: NDArray) -> list[str]:
        """That these rows (n,) ask what the run has learned from, over other contexts."""
        found = [
            wording
            for text, wording in zip(asked.texts[rows], asked.wordings[rows], strict=True)
            if wording in self.wordings and self.by_text.get(text, set()).isdisjoint(LEARNED)
        ]
        n_questions = len(set(found))
        if n_questions < 2:  # one is an instruction, such as to summarise
            return []
        return [
            f"warning: {n_questions:,} questions ({count(len(found), 'trace')}) were asked in "
            "training over other contexts, and count as new: where the context does not change "
            "the answer, their scores say nothing about new ones"
        ]


def is_trained(splits: Sequence[str]) -> NDArray[np.bool_]:
    """Whether what `find_splits` found is a question that the run was trained or tuned on."""
    return np.array([any(split in one for split in LEARNED) for one in splits], dtype=bool)
