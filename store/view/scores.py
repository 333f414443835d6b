"""Scores of finished runs beside a store's rows, and what they get wrong."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.errors import FormatError, SchemaError
from store.read.store import TraceStore
from store.text_records import name_file

__all__ = [
    "Mistakes",
    "check_run",
    "column_name",
    "column_names",
    "join_scores",
    "mistakes",
    "rank_density",
    "rank_limits",
    "read_run",
]

KEYS = ("trace_id", "split", "label", "question_id")
FILE = "scores.csv"
BLOCK_LINES = 256  # read at once; more, and Python's garbage collector goes through them again
N_CELLS = 48  # of a density, in each direction
BLOCK_ROWS = 1 << 16  # counted at once, in the processor's cache


def read_run(directory: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """Read the file `scores.csv` of a finished run.

    Returns the trace ids, and `score_NAME` -> float32 `(n,)`, NaN where there is no score. Letters,
    digits and `_` of a detector's name are kept, so that a filter can name it.

    Raises
    ------
    NotFoundError, FormatError
        No such file, or it is not what a run writes.
    """
    path = directory / FILE
    opened = name_file(path, "the scores of a finished run")
    with opened, path.open(newline="", encoding="utf-8") as file:
        lines = _read_lines(path, file)
        header = next(lines, [])
        names = [name for name in header if name not in KEYS]
        if header[:1] != ["trace_id"] or not names:
            raise FormatError(
                f"{path}: expected the columns trace_id and scores, found {header!r:.80}; "
                "give the folder of a finished run"
            )
        _check_names(path, header, names)
        ids: list[str] = []
        parts = {name: [np.zeros(0, np.float32)] for name in names}
        # blocks become numbers at once: a million lines as lists take ten times as long
        while block := list(islice(lines, BLOCK_LINES)):
            cells = dict(zip(header, zip(*block, strict=True), strict=True))
            ids.extend(cells["trace_id"])
            for name in names:
                parts[name].append(_parse(path, name, cells[name]))
    return ids, {column_name(name): np.concatenate(part) for name, part in parts.items()}


def _check_names(path: Path, header: Sequence[str], names: Sequence[str]) -> None:
    """Raise FormatError where two columns are called the same, or would be."""
    seen: dict[str, str] = {}
    for name in (*(name for name in header if name in KEYS), *names):
        column = name if name in KEYS else column_name(name)
        if column in seen:
            raise FormatError(
                f"{path}: expected columns of different names, found {seen[column]!r:.80} and "
                f"{name!r:.80}, both shown as {column:.80}; rename one"
            )
        seen[column] = name


def _read_lines(path: Path, file: Iterable[str]) -> Iterator[list[str]]:
    """The header and the lines of a CSV file, all of one length; raises FormatError."""
    lines = csv.reader(file)
    n_cells = None
    try:
        for line in lines:
            n_cells = len(line) if n_cells is None else n_cells
            if len(line) != n_cells:
                raise FormatError(
                    f"{path}, line {lines.line_num}: expected {n_cells} values, found {len(line)}"
                )
            yield line
    except csv.Error as error:
        raise FormatError(f"{path}, line {lines.line_num}: expected CSV, found: {error}") from error


def column_name(name: str) -> str:
    """The column of a detector's scores, which a filter can name."""
    return "score_" + re.sub(r"\W+", "_", name, flags=re.ASCII)


def _parse(path: Path, name: str, cells: Sequence[str]) -> np.ndarray:
    try:
        return np.array([cell or "nan" for cell in cells], np.float32)
    except ValueError as error:
        raise FormatError(f"{path}, column {name!r}: expected numbers, found: {error}") from error


def join_scores(store: TraceStore, runs: Sequence[tuple[str, tuple]]) -> dict[str, np.ndarray]:
    """The scores of runs by row of a store.

    `runs` are names of runs with what `read_run` returned; a column that two runs have gets the
    name of the later run as well. Returns column -> float32 `(n_rows,)`, NaN for rows that a run
    does not list.
    """
    joined: dict[str, np.ndarray] = {}
    for run, (ids, scores) in runs:
        rows = store.ids.find_all(ids)
        is_here = rows >= 0
        if not is_here.any():
            continue
        for name, values in scores.items():
            column = np.full(len(store), np.nan, np.float32)
            column[rows[is_here]] = values[is_here]
            joined[_new_name(name, run, {*store.schema.stored, *joined})] = column
    return joined


def _new_name(name: str, run: str, taken: set[str]) -> str:
    return next(candidate for candidate in column_names(name, run) if candidate not in taken)


def column_names(name: str, run: str) -> Iterator[str]:
    """What a column of a run may be called; the first name that is free is taken."""
    suffix = re.sub(r"\W+", "_", run, flags=re.ASCII)
    numbered = (f"{name}_{suffix}_{i}" for i in range(2, 10**6))
    return chain([name, f"{name}_{suffix}"], numbered)


def check_run(path: Path, trace_ids: Sequence[str], stores: Sequence[TraceStore]) -> None:
    """Raise SchemaError for a run none of whose traces is in any store."""
    if not any(trace_id in store for trace_id in trace_ids for store in stores):
        raise SchemaError(
            f"{path / FILE}: expected traces of the stores, found none; "
            "give the store that the run was trained on"
        )


class Mistakes(NamedTuple):
    """Rows that a detector is surest of, and wrong about; the worst first.

    Attributes
    ----------
    false_alarms
        Right answers with the highest scores: int64 `(n,)`.
    misses
        Hallucinations with the lowest scores.
    """

    false_alarms: np.ndarray
    misses: np.ndarray


def mistakes(scores: np.ndarray, labels: np.ndarray, n: int) -> Mistakes:
    """The rows whose scores contradict their labels most, at most `n` of each kind.

    A high score means a hallucination, label 1. No threshold is needed, so detectors whose scores
    are no probabilities have mistakes as well.

    `scores` and `labels` are `(n_rows,)`; rows without a score, and of other labels than 0 and 1,
    are left out.
    """
    if scores.dtype.kind != "f":
        scores = scores.astype(np.float64)  # the opposite of an unsigned number is none
    is_scored = np.isfinite(scores)
    right = np.flatnonzero(is_scored & (labels == 0))
    wrong = np.flatnonzero(is_scored & (labels == 1))
    false_alarms = _lowest(-scores[right], n)
    misses = _lowest(scores[wrong], n)
    return Mistakes(right[false_alarms], wrong[misses])


def _lowest(values: np.ndarray, n: int) -> np.ndarray:
    """The places of the `n` lowest values, ascending by value."""
    places = np.arange(len(values))
    if len(values) > n:
        places = np.argpartition(values, n)[:n]
    return places[np.argsort(values[places], kind="stable")]


def rank_density(x: np.ndarray, y: np.ndarray, n_cells: int = N_CELLS) -> np.ndarray:
    """How many rows have which ranks in two scores: int64 `(n_cells, n_cells)`, y by x.

    Rows without one of the scores are left out. Equal scores lie in one cell, the
    middle one of theirs.
    """
    both = np.isfinite(x) & np.isfinite(y)
    x_borders, y_borders = (_cell_borders(values[both], n_cells) for values in (x, y))
    counts = np.zeros(n_cells**2, np.int64)
    for start in range(0, len(both), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        chosen = both[block]
        rows = _cells(y[block][chosen], y_borders)
        columns = _cells(x[block][chosen], x_borders)
        counts += np.bincount(rows * np.int64(n_cells) + columns, minlength=n_cells**2)
    return counts.reshape(n_cells, n_cells)


def rank_limits(x: np.ndarray, y: np.ndarray, n_cells: int = N_CELLS) -> np.ndarray:
    """The lowest and the highest score in each cell of `rank_density`: `(2, n_cells, 2)`, y first.

    NaN where no score is in a cell; float64.
    """
    both = np.isfinite(x) & np.isfinite(y)
    limits = np.full((2, n_cells, 2), np.nan)
    for found, values in zip(limits, (y[both], x[both]), strict=True):
        cells = _cells(values, _cell_borders(values, n_cells))
        np.fmin.at(found[:, 0], cells, values)
        np.fmax.at(found[:, 1], cells, values)
    return limits


def _cell_borders(values: np.ndarray, n_cells: int) -> np.ndarray:
    """The values between two cells, `(n_cells - 1,)`, as many values in one as in another."""
    places = np.arange(1, n_cells) * len(values) // n_cells
    return np.sort(values)[places] if len(values) else values


def _cells(values: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """The cell of each value: uint16 `(n,)`, the middle one of those whose borders it equals.

    To compare all values with some dozens of borders takes a fifth of the time of searching a
    border for each value.
    """
    twice = np.zeros(len(values), np.uint16)
    for border in borders:
        twice += values > border
        twice += values >= border
    return twice // 2
