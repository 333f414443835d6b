"""Finished runs: their scores beside a store's rows, and the thresholds of their detectors."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from store.errors import FormatError, SchemaError
from store.format.values import is_integer
from store.read.joined.joined_store import JOINED
from store.read.store import TraceStore
from store.text_records import name_file, read_table
from store.view.scores import roc

__all__ = ["KEYS", "ROUNDING", "Run", "check_run", "join_runs", "read_results", "read_run"]
__all__ += ["read_scores"]

# the columns of the file of scores before those of scores
KEYS = ("trace_id", "split", "label", "question_id")
FILE = "scores.csv"
RESULTS_FILE = "results.json"
MAX_RESULTS_BYTES = 64 * 1024 * 1024
GROUPS = ("models", "baselines")  # of results
ROUNDING = 1e-9  # of an AUROC
BLOCK_LINES = 256  # read at once; more, and Python's garbage collector goes through them again


class Run(NamedTuple):
    """A finished run."""

    name: str  # what tells it from the other runs
    ids: list[str]  # the traces that it scored
    scores: dict[str, np.ndarray]  # `score_NAME` -> float32 (len(ids),), NaN: no score
    results: Any = None  # the content of its file of results, which may be anything
    path: Path = Path()
    written: tuple[tuple[int, ...], ...] = ()  # its files, as they were read
    fault: str | None = None  # how its scores differ from those of its results

    def problem(self) -> str | None:
        """Why its scores may not be those of its results, or of its folder now."""
        if self.written == _written(self.path):
            return self.fault
        return (
            f"{self.path}: the run was written anew or removed; scores and thresholds are those "
            "that it had; start the page again"
        )

    @property
    def thresholds(self) -> dict[str, float]:
        """Those chosen on validation, if finite: `score_NAME` -> the mean over the seeds."""
        entries = _methods(self.results).items()
        known = {name: _finite(_part(entry, "test").get("threshold")) for name, entry in entries}
        return {column_name(name): value for name, value in known.items() if value is not None}

    @property
    def layers(self) -> dict[str, dict[int, float]]:
        """What probes of each layer reach on validation: name -> layer -> AUROC."""
        found = {}
        for name, entry in _methods(self.results).items():
            layers, areas = (_part(entry, key, list) for key in ("layers", "layer_val_auroc"))
            if layers and len(layers) == len(areas):
                pairs = zip(layers, map(_finite, areas), strict=True)
                known = [pair for pair in pairs if is_integer(pair[0]) and pair[1] is not None]
                found[name] = dict(known)
        return found

    @property
    def store_uuids(self) -> frozenset[str]:
        """Which stores it was trained on; none where several were read as one and not recorded."""
        store = _part(self.results, "store")
        uuids = store.get("uuids") or [*self.prefixes.values()]
        if not uuids and JOINED not in str(store.get("path")):
            uuids = [store.get("uuid")]
        uuids = uuids if isinstance(uuids, list) else []
        return frozenset(uuid for uuid in uuids if isinstance(uuid, str))

    @property
    def prefixes(self) -> dict[str, str]:
        """What the ids of each of several stores begin with -> its uuid; {} where none does."""
        prefixes = _part(_part(self.results, "store"), "id_prefixes").items()
        return {prefix: uuid for prefix, uuid in prefixes if isinstance(uuid, str)}


class Scored(NamedTuple):
    """What the file of scores of a run has."""

    ids: list[str]
    scores: dict[str, np.ndarray]  # `score_NAME` -> float64 (len(ids),), NaN: no score
    splits: np.ndarray  # texts (len(ids),)
    labels: np.ndarray


def _written(directory: Path) -> tuple[tuple[int, ...], ...]:
    """Which files a run has, and when they were written."""
    files = (directory / name for name in (FILE, RESULTS_FILE))
    found = [file.stat() for file in files if file.is_file()]
    return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)


def read_run(directory: Path, name: str) -> Run:
    """Read a finished run; raises what `read_scores` and `read_results` do."""
    written = _written(directory)
    scored = read_scores(directory)
    results = read_results(directory)
    fault = _find_fault(directory / FILE, scored, results)
    scores = {column: values.astype(np.float32) for column, values in scored.scores.items()}
    return Run(name, scored.ids, scores, results, directory, written, fault)


def _find_fault(path: Path, scored: Scored, results: object) -> str | None:
    """How a file of scores differs from what the results say of it, as one that was cut does."""
    is_test = scored.splits == "test"
    labels = (scored.labels == "1")[is_test]
    for split in ("train", "val", "test"):
        expected = _part(_part(results, "split"), split).get("rows")
        found = int(np.sum(scored.splits == split))
        if isinstance(expected, int) and found != expected:
            return (
                f"{path}: expected {expected} traces of {split}, as in its results, found {found}"
            )
    for name, entry in _methods(results).items():
        area = _finite(_part(entry, "test").get("auroc"))
        scores = scored.scores.get(column_name(name))
        is_mean = len(_part(entry, "runs", list)) > 1  # the results have the mean of the AUROCs
        curve = None if scores is None or is_mean else roc(scores[is_test], labels)
        if area is not None and curve is not None and abs(curve.auroc - area) > ROUNDING:
            found_areas = f"{area:.4f}, as in its results, found {curve.auroc:.4f}"
            return f"{path}: expected scores of {name} of AUROC {found_areas}"
    return None


def _ids_in(store: TraceStore, run: Run) -> list[str]:
    """The ids of a run's traces as a store has them; "" for traces of other stores."""
    prefixes = run.prefixes
    if not prefixes:
        return run.ids
    own = tuple(prefix for prefix, uuid in prefixes.items() if uuid == store.uuid)
    return [
        next((one.removeprefix(prefix) for prefix in own if one.startswith(prefix)), "")
        for one in run.ids
    ]


def read_scores(directory: Path) -> Scored:
    """Read the file `scores.csv` of a finished run.

    Of several trainings it has their mean; the columns of each, NAME-seedN, are left out. Letters,
    digits and `_` of a detector's name are kept, so that a filter can name it. Raises NotFoundError
    or FormatError if there is no such file, or it is not what a run writes.
    """
    path = directory / FILE
    opened = name_file(path, "the scores of a finished run")
    with opened, path.open(newline="", encoding="utf-8") as file:
        lines = read_table(file)
        header = next(lines)
        names = [name for name in header if name not in KEYS and not _is_of_seed(name, header)]
        if header[:1] != ["trace_id"] or not names:
            raise FormatError(
                f"{path}: expected the columns trace_id and scores, found {header!r:.80}; "
                "give the folder of a finished run"
            )
        _check_names(path, header, names)
        ids: list[str] = []
        parts = {name: [np.zeros(0)] for name in names}
        keys = {name: [np.zeros(0, "U5")] for name in ("split", "label")}
        # blocks become numbers at once: a million lines as lists take ten times as long
        while block := list(islice(lines, BLOCK_LINES)):
            cells = dict(zip(header, zip(*block, strict=True), strict=True))
            ids.extend(cells["trace_id"])
            for name in names:
                parts[name].append(_parse(path, name, cells[name]))
            for name, key in keys.items():
                key.append(np.array(cells.get(name, [""] * len(block)), "U5"))
    scores = {column_name(name): np.concatenate(part) for name, part in parts.items()}
    return Scored(ids, scores, *map(np.concatenate, keys.values()))


def _is_of_seed(name: str, header: Sequence[str]) -> bool:
    method, dash, seed = name.rpartition("-seed")
    return bool(dash) and seed.isdecimal() and method in header


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


def column_name(name: str) -> str:
    """The column of a detector's scores, which a filter can name."""
    return "score_" + re.sub(r"\W+", "_", name, flags=re.ASCII)


def _parse(path: Path, name: str, cells: Sequence[str]) -> np.ndarray:
    try:
        return np.array([cell or "nan" for cell in cells], np.float64)
    except ValueError as error:
        raise FormatError(f"{path}, column {name!r}: expected numbers, found: {error}") from error


def read_results(directory: Path) -> Any:
    """Read the file `results.json` of a finished run, which may hold anything; None without one.

    Raises NotFoundError or FormatError if the file cannot be read, or is no JSON.
    """
    path = directory / RESULTS_FILE
    if not path.exists():
        return None
    with name_file(path, "the results of a finished run"):
        n_bytes = path.stat().st_size
        if n_bytes > MAX_RESULTS_BYTES:
            raise FormatError(
                f"{path}: expected at most {MAX_RESULTS_BYTES:,} bytes, found {n_bytes:,}"
            )
        text = path.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: expected JSON, found: {error}") from error


def _methods(results: object) -> dict[str, Any]:
    """What results say of each method, by its name."""
    return {name: entry for group in GROUPS for name, entry in _part(results, group).items()}


def _finite(value: object) -> float | None:
    if not isinstance(value, float):  # a whole number may be larger than any float
        return float(value) if value in (0, 1) else None
    return value if math.isfinite(value) else None


def _part(content: object, key: str, kind: type[Any] = dict) -> Any:
    """An object, or a list, within an object; an empty one where there is none."""
    part = content.get(key) if isinstance(content, dict) else None
    return part if isinstance(part, kind) else kind()


def join_runs(
    store: TraceStore, runs: Iterable[Run]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The scores and the thresholds of runs, by columns beside the rows of a store.

    A column that two runs have gets the name of the later run as well. Returns column -> float32
    `(n_rows,)`, NaN for rows that a run does not list, and column -> threshold.
    """
    scores: dict[str, np.ndarray] = {}
    thresholds: dict[str, float] = {}
    for run in runs:
        rows = store.ids.find_all(_ids_in(store, run))
        is_here = rows >= 0
        if not is_here.any():
            continue
        known = run.thresholds
        for name, values in run.scores.items():
            taken = {*store.schema.stored, *scores}
            column = next(each for each in column_names(name, run.name) if each not in taken)
            scores[column] = np.full(len(store), np.nan, np.float32)
            scores[column][rows[is_here]] = values[is_here]
            if name in known:
                thresholds[column] = known[name]
    return scores, thresholds


def column_names(name: str, run: str) -> Iterator[str]:
    """What a column of a run may be called; the first name that is free is taken."""
    suffix = re.sub(r"\W+", "_", run, flags=re.ASCII)
    numbered = (f"{name}_{suffix}_{i}" for i in range(2, 10**6))
    return chain([name, f"{name}_{suffix}"], numbered)


def check_run(path: Path, run: Run, stores: Sequence[TraceStore]) -> None:
    """Raise SchemaError for a run none of whose traces is in any store."""
    if not any(one in store for store in stores for one in _ids_in(store, run)):
        raise SchemaError(
            f"{path / FILE}: expected traces of the stores, found none; "
            "give the store that the run was trained on"
        )
