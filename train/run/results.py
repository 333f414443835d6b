"""The two files of a run that programs read: results.json, and scores.csv with every score.

They are written here, and read back and checked against each other. They may come from anywhere:
a file that differs from what is written here is a DataError that names the place. No code is run,
and no array is allocated from a number in a file.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from models import CONTROLS
from store.traces.question_split import SPLITS
from train.errors import DataError
from train.evaluate.metrics import Areas, Labels, Scores, auroc
from train.evaluate.results import Findings, Results, WrongValueError, as_json, from_json
from train.files import Json, read_json, replace_file

if TYPE_CHECKING:
    from train.data.batches import TrainingData
    from train.evaluate.judge import Scored
    from train.run.experiment import Experiment

__all__ = [
    "FinishedRun",
    "best_on_validation",
    "read_results",
    "read_run",
    "validation_aurocs",
    "write_results",
    "write_scores",
]

MAX_SCORES_BYTES = 4 << 30
MAX_SPLITS = 100  # of --splits
# the columns of scores.csv before those of scores
KEYS = ("trace_id", "split", "label", "question_id")
Texts = NDArray[np.object_]


def write_results(path: Path, results: Results) -> None:
    """Write the results as JSON."""
    with replace_file(path) as temporary:
        temporary.write_text(json.dumps(as_json(results), indent=1, allow_nan=False) + "\n")


def write_scores(path: Path, experiment: Experiment, data: TrainingData) -> None:
    """Write a line per labelled row: its split, and each score, the mean over the seeds."""
    with replace_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*KEYS, *experiment.scored])
        for split in SPLITS:
            rows = data.splits.rows(split)
            questions = data.store.read(rows, columns=["question_id"]).texts("question_id")
            columns = [score_cells(one, split, len(rows)) for one in experiment.scored.values()]
            for row, question, *scores in zip(rows.tolist(), questions, *columns, strict=True):
                label = data.splits.labels[row]
                writer.writerow([data.store.ids[row], split, label, question, *scores])


def score_cells(scored: Scored, split: str, n_rows: int) -> list[Any]:
    """Cells of a column of scores: the mean over the seeds; empty on train."""
    if split == "train":
        return [""] * n_rows
    return getattr(scored, split).mean(0).tolist()


@dataclass(frozen=True)
class FinishedRun:
    """What a run wrote.

    Attributes
    ----------
    directory : Path
        Where its files are.
    val_auroc : dict
        Group ("models", "baselines") -> name -> AUROC on validation.
    seed : int
        Of the split.
    trace_ids, questions : texts (n_rows,)
        Of each labelled row.
    row_splits : texts (n_rows,)
        "train", "val" or "test".
    labels : int64 (n_rows,)
        1 and 0.
    scores : dict of float64 (n_rows,)
        By name; NaN where a row was trained on.
    origins : list of dict
        What the store recorded of the model, layers and prompts of its traces; [] for runs of older
        versions.
    split_seeds : list of int
        The seeds of the splits, if there are several; everything here is of the first.
    """

    directory: Path
    val_auroc: dict[str, Areas]
    seed: int
    trace_ids: Texts
    questions: Texts
    row_splits: Texts
    labels: Labels
    scores: dict[str, Scores]
    origins: list[Json] = field(default_factory=list)
    split_seeds: list[int] = field(default_factory=list)

    @property
    def n_splits(self) -> int:
        return max(1, len(self.split_seeds))

    @property
    def best(self) -> str:
        return best_on_validation(self.val_auroc)

    def ids_in(self, split: str) -> set[str]:
        return set(self.trace_ids[self.row_splits == split])

    def rows_of(self, trace_ids: list[str]) -> list[int]:
        """The rows of these traces, in this order."""
        row_by_id = {trace_id: row for row, trace_id in enumerate(self.trace_ids)}
        return [row_by_id[trace_id] for trace_id in trace_ids]


def best_on_validation(val_auroc: dict[str, Areas]) -> str:
    """The detector with the best validation AUROC; without detectors the best baseline.

    A control is it only where there is nothing else. `val_auroc` is group ("models", "baselines")
    -> name -> AUROC.
    """
    beside = val_auroc["baselines"]
    baselines = {name: area for name, area in beside.items() if name not in CONTROLS}
    group = val_auroc["models"] or baselines or beside
    return max(group, key=group.__getitem__)


def validation_aurocs(results: Findings) -> dict[str, Areas]:
    """Group ("models", "baselines") -> name -> AUROC on validation."""
    groups = {"models": results.models, "baselines": results.baselines}
    return {
        group: {name: entry.val.auroc for name, entry in entries.items()}
        for group, entries in groups.items()
    }


def read_run(directory: Path) -> FinishedRun:
    """Read and check the results and the scores of a run.

    Raises DataError if a file is missing, too large, or not what a run writes; if the scores do not
    give the AUROCs of the results.
    """
    results = read_results(directory / "results.json")
    path = directory / "scores.csv"
    names = list(results.entries)
    columns = read_columns(path, [*KEYS, *names])
    trace_ids, row_splits, labels, questions = (columns[key] for key in KEYS)
    check_keys(path, trace_ids, row_splits, labels)
    run = FinishedRun(
        directory=directory,
        val_auroc=validation_aurocs(results),
        seed=results.split.seed,
        trace_ids=trace_ids,
        questions=questions,
        row_splits=row_splits,
        labels=labels.astype(np.int64),
        scores={name: parse_scores(path, name, columns[name], row_splits) for name in names},
        origins=results.store.origins,
        split_seeds=[] if results.splits is None else results.splits.seeds,
    )
    check_agreement(path, run, results)
    return run


def read_results(path: Path) -> Results:
    """Read and check results.json; raises DataError."""
    check_file(path)
    try:
        results = from_json(Results, read_json(path))
    except WrongValueError as error:
        _fail(path, error.expected, error.found)
    except ValueError as error:
        raise DataError(f"{error}; give the directory of a finished run") from error
    if not results.entries:
        _fail(path, "a detector or a baseline", None)
    twice = results.models.keys() & results.baselines.keys()
    if twice:
        _fail(path, "one entry for each name", f"two of {min(twice)!r}")
    seeds = [] if results.splits is None else results.splits.seeds
    if results.splits is not None and not 2 <= len(seeds) <= MAX_SPLITS:
        _fail(path, f"splits.seeds: the seeds of 2 to {MAX_SPLITS} splits", seeds)
    return results


def read_columns(path: Path, header: list[str]) -> dict[str, Texts]:
    lines = list(read_lines(path, header))
    cells = np.array(lines, dtype=object).reshape(len(lines), len(header))
    return dict(zip(header, cells.T, strict=True))


def read_lines(path: Path, header: list[str]) -> Iterator[list[str]]:
    """The lines of scores.csv below its header, which must be this one; raises DataError."""
    check_file(path)
    n_bytes = path.stat().st_size
    if n_bytes > MAX_SCORES_BYTES:
        _fail(path, f"at most {MAX_SCORES_BYTES:,} bytes", f"{n_bytes:,}")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.reader(file, strict=True)
            check_header(path, header, next(lines, []))
            for line in lines:
                if len(line) != len(header):
                    _fail(path, f"line {lines.line_num}: {len(header)} values", len(line))
                yield line
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        _fail(path, "the scores of a run", f"no CSV ({error})", error)


def check_header(path: Path, header: list[str], found: list[str]) -> None:
    missing = [name for name in header if name not in found]
    if missing:
        _fail(path, f"the columns {', '.join(header)}", f"no column {missing[0]!r}")
    if found != header:
        _fail(path, f"the columns {', '.join(header)}", f"the columns {', '.join(found)}")


def check_file(path: Path) -> None:
    """Raise DataError unless there is a file; a pipe would be waited for."""
    if not path.is_file():
        _fail(path, "a file of a finished run", "something else" if path.exists() else "no file")


def check_keys(path: Path, trace_ids: Texts, row_splits: Texts, labels: Texts) -> None:
    for trace_id, n_lines in Counter(trace_ids).most_common(1):
        if n_lines > 1:
            _fail(path, "each trace once", f"{trace_id!r} {n_lines} times")
    check_values(path, "split", trace_ids, row_splits, SPLITS)
    check_values(path, "label", trace_ids, labels, ("0", "1"))


def check_values(
    path: Path, what: str, trace_ids: Texts, values: Texts, allowed: tuple[str, ...]
) -> None:
    for row in np.flatnonzero(~np.isin(values, allowed))[:1]:
        expected = f"trace {trace_ids[row]!r}: a {what} of {', '.join(allowed)}"
        _fail(path, expected, repr(values[row]))


def parse_scores(path: Path, name: str, texts: Texts, row_splits: Texts) -> Scores:
    """A column of scores (n_rows,), NaN on train; raises DataError for texts that do not fit."""
    scores = np.array([parse_number(text) for text in texts], dtype=np.float64)
    is_train = row_splits == "train"
    wrong = np.where(is_train, texts != "", ~np.isfinite(scores))
    for row in np.flatnonzero(wrong)[:1]:
        expected = "no score of a row that was trained on" if is_train[row] else "a finite number"
        _fail(path, f"column {name!r}, line {row + 2}: {expected}", repr(texts[row]))
    return scores


def parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_agreement(path: Path, run: FinishedRun, results: Results) -> None:
    """Raise DataError unless the scores on test give the AUROCs of the results.

    Both classes must be in test, which gives the AUROCs, and in val, which gives the thresholds.
    With several trainings the file has the mean of their scores, whose AUROC differs from the mean
    AUROC of the results: those are not compared.
    """
    for split in ("val", "test"):
        labels = run.labels[run.row_splits == split]
        n_wrong = labels.sum()
        if not 0 < n_wrong < len(labels):
            counts = f"{n_wrong} hallucinations of {len(labels)} traces"
            _fail(path, f"both classes in the {split} split", counts)
    is_test = run.row_splits == "test"
    for name, scores in run.scores.items():
        test = results.entries[name].test
        found = auroc(labels, scores[is_test])
        if test.auroc_runs is None and abs(found - test.auroc) > 1e-9:
            _fail(path, f"{name}: scores of AUROC {test.auroc}, as in results.json", found)


def _fail(path: Path, expected: str, found: object, error: Exception | None = None) -> NoReturn:
    """Raise the DataError of a file, on one line, however long `found` is."""
    line = "nothing" if found is None else " ".join(str(found).split())
    raise DataError(
        f"{path}: expected {expected}, found {line:.200}; give the directory of a finished run"
    ) from error
