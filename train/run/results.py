"""The two files of a run that programs read: results.json, and scores.csv with the split and every
score.

They are written here, and read back and checked against each other.

The files may come from anywhere: what is not as it is written here is one DataError that names the
place, never a number. No code is run, no array is allocated from a number in a file.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from store.sources.split import SIDES as SPLITS
from train.errors import DataError
from train.evaluate.metrics import auroc
from train.files import replace_file

if TYPE_CHECKING:
    from train.data.batches import TrainingData
    from train.run.experiment import Experiment

__all__ = ["FinishedRun", "read_run", "write_results", "write_scores"]

MAX_RESULTS_BYTES = 64 << 20
MAX_SCORES_BYTES = 4 << 30
GROUPS = ("models", "baselines")
# the columns of scores.csv before those of scores
KEYS = ("trace_id", "split", "label", "question_id")


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write the results as JSON."""
    with replace_file(path) as temporary:
        temporary.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")


def write_scores(path: Path, experiment: Experiment, data: TrainingData) -> None:
    """Write the split and the scores: a line per labelled row, a column per detector and baseline
    (mean over seeds)."""
    splits, names = data.splits, list(experiment.scored)
    with replace_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*KEYS, *names])
        for split in SPLITS:
            rows = splits.rows(split)
            questions = data.store.read(rows, columns=["question_id"])["question_id"]
            columns = [
                [""] * len(rows) if split == "train" else getattr(one, split).mean(0).tolist()
                for one in experiment.scored.values()
            ]
            for row, question, *scores in zip(rows.tolist(), questions, *columns, strict=True):
                writer.writerow([data.store.ids[row], split, splits.labels[row], question, *scores])


@dataclass(frozen=True)
class FinishedRun:
    """What a run wrote.

    Attributes
    ----------
    directory : Path
        Where.
    val_auroc : dict
        Group ("models", "baselines") -> name -> AUROC on validation, by which the best is chosen.
    seed : int
        Of the split.
    trace_ids, questions : list of str
        Of each labelled row.
    row_splits : list of str
        "train", "val" or "test" of each row.
    labels : int64 (n_rows,)
        1 and 0.
    scores : dict of float64 (n_rows,)
        By name; NaN where a row was trained on.
    origins : list of dict
        What the store recorded of the model, layers and prompts of its traces; [] of runs of older
        versions.
    """

    directory: Path
    val_auroc: dict[str, dict[str, float]]
    seed: int
    trace_ids: list[str]
    questions: list[str]
    row_splits: list[str]
    labels: NDArray[np.int64]
    scores: dict[str, NDArray[np.float64]]
    origins: list[dict[str, Any]] = field(default_factory=list)


def read_run(directory: Path) -> FinishedRun:
    """Read and check a run's directory.

    Raises
    ------
    DataError
        If a file is missing, too large, or not what a run writes; if the scores do not give the
        AUROCs of the results.
    """
    results = read_results(directory / "results.json")
    path = directory / "scores.csv"
    names = [name for group in GROUPS for name in results[group]]
    lines = list(read_lines(path, names))
    keys = list(zip(*(line[: len(KEYS)] for line in lines), strict=True)) or [()] * len(KEYS)
    trace_ids, splits, labels, questions = map(list, keys)
    check_keys(path, trace_ids, splits, labels)
    columns = zip(*(line[len(KEYS) :] for line in lines), strict=True)
    scores = {
        name: parse_scores(path, name, column, splits)
        for name, column in zip(names, columns, strict=False)
    }
    val_auroc = {
        group: {name: one["val"]["auroc"] for name, one in results[group].items()}
        for group in GROUPS
    }
    run = FinishedRun(
        directory,
        val_auroc,
        results["split"]["seed"],
        trace_ids,
        questions,
        splits,
        np.array(labels, dtype=np.int64),
        scores,
        find_origins(results),
    )
    check_agreement(path, run, results)
    return run


def find_origins(results: dict[str, Any]) -> list[dict[str, Any]]:
    """The origins in the results; [] where there are none, or something else."""
    store = results.get("store")
    origins = store.get("origins") if isinstance(store, dict) else None
    is_list = isinstance(origins, list) and all(isinstance(origin, dict) for origin in origins)
    return origins if is_list else []


def read_results(path: Path) -> dict[str, Any]:
    """Read results.json and check all that is used of it."""
    check_size(path, MAX_RESULTS_BYTES)
    try:
        results = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # also UnicodeDecodeError and JSONDecodeError
        _fail(path, "the results of a run", f"no JSON ({error})", error)
    except OSError as error:
        _fail(path, "the results of a run", error.strerror, error)
    for keys, kind in ((("split", "seed"), int), *(((group,), dict) for group in GROUPS)):
        check_kind(path, results, keys, kind)
    names = [(group, name) for group in GROUPS for name in results[group]]
    if not names:
        _fail(path, "a detector or a baseline", "none")
    for group, name in names:
        for split in ("val", "test"):
            area = check_kind(path, results, (group, name, split, "auroc"), int | float)
            if not 0 <= area <= 1:
                _fail(path, f"{name}: an AUROC from 0 to 1", area)
    twice = results["models"].keys() & results["baselines"].keys()
    if twice:
        _fail(path, "one entry for each name", f"two of {min(twice)!r}")
    if results["split"]["seed"] < 0:
        _fail(path, "split.seed: a seed of 0 or more", results["split"]["seed"])
    return results


def check_kind(path: Path, results: Any, keys: tuple[str, ...], kind: Any) -> Any:
    """The value under nested keys; raises DataError unless it is there and of that kind."""
    value = results
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        found = "nothing" if value is None else repr(value)
        _fail(path, f"the results of a run, with {'.'.join(keys)}", found)
    return value


def read_lines(path: Path, names: list[str]) -> Iterator[list[str]]:
    """The lines of scores.csv under its header, which must have the columns of these names; raises
    DataError."""
    check_size(path, MAX_SCORES_BYTES)
    header = [*KEYS, *names]
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.reader(file, strict=True)
            found = next(lines, [])
            if found[1:2] == ["side"]:  # its name in runs of older versions
                found[1] = "split"
            if found != header:
                missing = next((name for name in header if name not in found), None)
                what = f"no column {missing!r}" if missing else f"the columns {', '.join(found)}"
                _fail(path, f"the columns {', '.join(header)}", what)
            for line in lines:
                if len(line) != len(header):
                    _fail(path, f"line {lines.line_num}: {len(header)} values", len(line))
                yield line
    except (csv.Error, UnicodeDecodeError) as error:
        _fail(path, "the scores of a run", f"no CSV ({error})", error)
    except OSError as error:
        _fail(path, "the scores of a run", error.strerror, error)


def check_size(path: Path, n_bytes: int) -> None:
    """Raise DataError for what is no file, or one of more than `n_bytes`."""
    try:
        size = path.stat().st_size
    except OSError as error:
        _fail(path, "a file of a finished run", error.strerror, error)
    if not path.is_file():  # a pipe would be waited for
        _fail(path, "a file of a finished run", "something else")
    if size > n_bytes:
        _fail(path, f"at most {n_bytes} bytes", size)


def check_keys(path: Path, trace_ids: list[str], splits: list[str], labels: list[str]) -> None:
    """Raise DataError unless trace ids differ, splits are known and labels are 0 or 1."""
    seen: set[str] = set()
    for trace_id, split, label in zip(trace_ids, splits, labels, strict=True):
        if trace_id in seen:
            _fail(path, "each trace once", f"{trace_id!r} twice")
        seen.add(trace_id)
        if split not in SPLITS:
            _fail(path, f"trace {trace_id!r}: a split of {', '.join(SPLITS)}", repr(split))
        if label not in ("0", "1"):
            _fail(path, f"trace {trace_id!r}: a label of 0 or 1", repr(label))


def parse_scores(
    path: Path, name: str, column: tuple[str, ...], splits: list[str]
) -> NDArray[np.float64]:
    """A column of scores (n_rows,), NaN on train; raises DataError for one that is no finite
    number, or is too many."""
    scores = np.full(len(column), np.nan)
    for i, (text, split) in enumerate(zip(column, splits, strict=True)):
        if split == "train":
            if text:
                _fail(
                    path,
                    f"column {name!r}, line {i + 2}: no score of a row that was trained on",
                    repr(text),
                )
            continue
        try:
            scores[i] = float(text)
        except ValueError:
            _fail(path, f"column {name!r}, line {i + 2}: a number", repr(text))
        if not math.isfinite(scores[i]):
            _fail(path, f"column {name!r}, line {i + 2}: a finite number", repr(text))
    return scores


def check_agreement(path: Path, run: FinishedRun, results: dict[str, Any]) -> None:
    """Raise DataError unless the test split has both classes, and its scores give the AUROCs that
    the results hold.

    Where there were several trainings the file has the mean of their scores, whose AUROC is
    another: not checked then.
    """
    test = np.array([split == "test" for split in run.row_splits], dtype=bool)
    labels = run.labels[test]
    if not 0 < labels.sum() < len(labels):
        _fail(
            path,
            "both classes in the test split",
            f"{labels.sum()} hallucinations of {len(labels)} traces",
        )
    for name, scores in run.scores.items():
        told = next(results[group][name]["test"] for group in GROUPS if name in results[group])
        found = auroc(labels, scores[test])
        if "auroc_runs" not in told and abs(found - told["auroc"]) > 1e-9:
            _fail(path, f"{name}: scores of AUROC {told['auroc']}, as in results.json", found)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _fail(path: Path, expected: str, found: object, error: Exception | None = None) -> NoReturn:
    """Raise the DataError of a file, on one line, however long what was found is."""
    line = " ".join(str(found).split())
    shown = line if len(line) <= 200 else line[:199] + "…"
    raise DataError(
        f"{path}: expected {expected}, found {shown}; give the directory of a finished run"
    ) from error
