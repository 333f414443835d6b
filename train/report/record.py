"""The two files of a run that programs read: results.json, and scores.csv with the split and every score."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store.sources.split import SIDES
from train.files import replace_file

if TYPE_CHECKING:
    from train.data import TrainingData
    from train.experiment import Experiment

__all__ = ["KEYS", "write_results", "write_scores"]

KEYS = ("trace_id", "side", "label", "question_id")  # the columns of scores.csv before those of scores


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write the results as JSON."""
    with replace_file(path) as temporary:
        temporary.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")


def write_scores(path: Path, experiment: Experiment, data: TrainingData) -> None:
    """Write the split and the scores: a line per labelled row, a column per detector and baseline (mean over seeds)."""
    split, names = data.split, list(experiment.scored)
    with replace_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*KEYS, *names])
        for side in SIDES:
            rows = getattr(split, side)
            questions = data.store.read(rows, columns=["question_id"])["question_id"]
            columns = [
                [""] * len(rows) if side == "train" else getattr(one, side).mean(0).tolist()
                for one in experiment.scored.values()
            ]
            for row, question, *scores in zip(rows.tolist(), questions, *columns, strict=True):
                writer.writerow([data.store.ids[row], side, split.labels[row], question, *scores])
