"""The thresholds of finished runs, for the scores that are shown beside a store's rows."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from store.errors import FormatError
from store.text_records import name_file
from store.view.scores import column_name, column_names

__all__ = ["join_thresholds", "read_thresholds"]

FILE = "results.json"
MAX_BYTES = 64 * 1024 * 1024
GROUPS = ("models", "baselines")


def read_thresholds(directory: Path) -> dict[str, float]:
    """Read the threshold of each detector from the file `results.json` of a finished run.

    Returns `score_NAME` -> threshold: the mean over the seeds, each chosen on validation. A run
    without the file has none; detectors without a finite threshold are left out. Raises
    NotFoundError or FormatError if the file cannot be read, or is not what a run writes.
    """
    path = directory / FILE
    if not path.exists():
        return {}
    with name_file(path, "the results of a finished run"):
        n_bytes = path.stat().st_size
        if n_bytes > MAX_BYTES:
            raise FormatError(f"{path}: expected at most {MAX_BYTES:,} bytes, found {n_bytes:,}")
        text = path.read_text(encoding="utf-8")
    try:
        results = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: expected JSON, found: {error}") from error
    found = {}
    for group in GROUPS:
        for name, entry in _part(results, group).items():
            threshold = _finite(_part(entry, "test").get("threshold"))
            if threshold is not None:
                found[column_name(name)] = threshold
    return found


def _finite(value: Any) -> float | None:
    if not isinstance(value, float):  # a whole number may be larger than any float
        return float(value) if value in (0, 1) else None
    return value if math.isfinite(value) else None


def _part(content: Any, key: str) -> Mapping[str, Any]:
    """An object within another; empty where there is none."""
    part = content.get(key) if isinstance(content, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def join_thresholds(
    columns: Iterable[str], runs: Sequence[tuple[str, Mapping[str, float]]]
) -> dict[str, float]:
    """The threshold of each column that `join_scores` named.

    `runs` has name and thresholds of each run that has scores of the store, in the order they were
    joined.
    """
    left = set(columns)
    joined = {}
    for run, thresholds in runs:
        for name, threshold in thresholds.items():
            column = next((each for each in column_names(name, run) if each in left), None)
            if column is not None:
                left.remove(column)
                joined[column] = threshold
    return joined
