"""The files of a run that programs read: results.json, scores.csv with every score, questions.csv.

The questions and their splits are there so that other stores can be compared with them.

They are written here, and read back and checked against each other. They may come from anywhere:
a file that differs from what is written here is a DataError that names the place. No code is run,
and no array is allocated from a number in a file.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from store.reports import count
from store.text_records import name_file, read_table
from store.traces.question_split import SPLITS
from store.view.runs import KEYS, ROUNDING
from train.data.questions import Asked, Questions
from train.data.splits import Splits
from train.errors import DataError, store_errors
from train.evaluate.frame import Frame, Texts
from train.evaluate.metrics import Scores, mean_auroc
from train.evaluate.results import Results
from train.files import read_json, write_csv
from train.records import WrongValueError, from_json

__all__ = [
    "AskedByRun",
    "FinishedRun",
    "is_trained",
    "read_asked",
    "read_results",
    "read_run",
    "read_scores",
    "write_asked",
    "write_scores",
]

MAX_SCORES_BYTES = 4 << 30
MAX_SPLITS = 100  # of --splits
QUESTION_FILE = "questions.csv"
QUESTION_COLUMNS = ["split", "question_id", "text"]
LEARNED = ("train", "val")


def write_scores(path: Path, frame: Frame[str], results: Results) -> None:
    """Write a line per labelled trace: its split, and each score, the mean over the seeds.

    Behind these are the scores of each training of a method that was trained several times.
    """
    keys = (frame.trace_ids, frame.splits, frame.labels, frame.question_ids)
    is_train = frame.splits == "train"
    by_seed = seed_columns(results)
    scores = {name: frame.mean(name) for name in frame.scores}
    for name, its_columns in by_seed.items():
        scores |= zip(its_columns, frame.scores[name], strict=True)
    columns = [np.where(is_train, "", one.astype(object)).tolist() for one in scores.values()]
    write_csv(path, [*KEYS, *scores], zip(*keys, *columns, strict=True))


def seed_columns(results: Results) -> dict[str, list[str]]:
    """Method that was trained several times -> the columns of its trainings in scores.csv."""
    runs = {name: entry.runs or [] for name, entry in results.models.items()}
    return {
        name: [f"{name}-seed{run.seed}" for run in its_runs]
        for name, its_runs in runs.items()
        if len(its_runs) > 1
    }


@dataclass(frozen=True)
class FinishedRun:
    """What a run wrote, and the directory where its files are.

    The frame has the scores of each training of a method; of several splits it is of the first.
    """

    directory: Path
    results: Results
    frame: Frame[str]

    def ids_in(self, split: str) -> set[str]:
        return set(self.frame.trace_ids[self.frame.splits == split])


def read_run(directory: Path) -> FinishedRun:
    """Read and check the results and the scores of a run.

    Raises DataError if a file is missing, too large, or not what a run writes; if the scores do not
    give the AUROCs of the results.
    """
    results = read_results(directory / "results.json")
    return FinishedRun(directory, results, read_scores(directory / "scores.csv", results))


def read_scores(path: Path, results: Results) -> Frame[str]:
    """Read scores.csv of a run with these results; raises DataError as `read_run`."""
    names = list(results.entries)
    by_seed = seed_columns(results)
    columns = read_columns(path, [*KEYS, *names, *chain(*by_seed.values())])
    trace_ids, splits, labels, question_ids = (columns[key] for key in KEYS)
    check_keys(path, trace_ids, splits, labels)
    scores = {}
    for name in names:  # of a method that was trained several times the mean is not read
        trainings = by_seed.get(name, [name])
        scores[name] = np.stack(
            [parse_scores(path, one, columns[one], splits) for one in trainings]
        )
    seed = results.split.seed
    frame = Frame(trace_ids, splits, labels.astype(np.int64), question_ids, scores, seed)
    check_agreement(path, frame, results)
    return frame


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
    seeds = results.split_seeds
    if results.splits is not None and not 2 <= len(seeds) <= MAX_SPLITS:
        _fail(path, f"splits.seeds: the seeds of 2 to {MAX_SPLITS} splits", seeds)
    return results


def read_columns(path: Path, header: list[str]) -> dict[str, Texts]:
    """The columns of the header; raises DataError for a file of others."""
    check_file(path)
    n_bytes = path.stat().st_size
    if n_bytes > MAX_SCORES_BYTES:
        _fail(path, f"at most {MAX_SCORES_BYTES:,} bytes", f"{n_bytes:,}")
    opened = name_file(path, "the scores of a run")
    with store_errors(), opened, path.open(newline="", encoding="utf-8") as file:
        rows = read_table(file)
        found = next(rows)
        if found != header:
            missing = [f"no column {name!r}" for name in header if name not in found]
            others = f"the columns {', '.join(found)}"
            _fail(path, f"the columns {', '.join(header)}", [*missing, others][0])
        lines = [*rows]
    cells = np.array(lines, dtype=object).reshape(len(lines), len(found))
    return dict(zip(found, cells.T, strict=True))


def check_file(path: Path) -> None:
    """Raise DataError unless there is a file; a pipe would be waited for."""
    if not path.is_file():
        _fail(path, "a file of a finished run", "something else" if path.exists() else "no file")


def check_keys(path: Path, trace_ids: Texts, row_splits: Texts, labels: Texts) -> None:
    for trace_id, n_lines in Counter(trace_ids).most_common(1):
        if n_lines > 1:
            _fail(path, "each trace once", f"{trace_id!r} {n_lines} times")
    known = ("split", row_splits, SPLITS), ("label", labels, ("0", "1"))
    for what, values, allowed in known:
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


def check_agreement(path: Path, frame: Frame[str], results: Results) -> None:
    """Raise DataError unless the scores on test give the AUROCs of the results.

    Both classes must be in test, which gives the AUROCs, and in val, which gives the thresholds.
    """
    for split, labels in (("val", frame.val.labels), ("test", frame.test.labels)):
        n_wrong = labels.sum()
        if not 0 < n_wrong < len(labels):
            counts = f"{n_wrong} hallucinations of {len(labels)} traces"
            _fail(path, f"both classes in the {split} split", counts)
    for name, scores in frame.test.scores.items():
        expected = results.entries[name].test.auroc
        found = mean_auroc(frame.test.labels, scores)
        if abs(found - expected) > ROUNDING:
            _fail(path, f"{name}: scores of AUROC {expected}, as in results.json", found)


def _fail(path: Path, expected: str, found: object) -> NoReturn:
    """Raise the DataError of a file, on one line, however long `found` is."""
    line = "nothing" if found is None else " ".join(str(found).split())
    raise DataError(
        f"{path}: expected {expected}, found {line:.200}; give the directory of a finished run"
    )


class AskedByRun(NamedTuple):
    """The splits of a run that a question is in, by its id and by the digest of its text."""

    by_id: dict[str, set[str]]
    by_text: dict[str, set[str]]
    without_text: frozenset[str] = frozenset()  # ids of train and val that have no text

    def find_splits(self, asked: Questions) -> list[str]:
        """Splits of each trace's question: "train", "train/val", or "" for a new one.

        A question is known by any id or text of its traces.
        """
        found: defaultdict[str, set[str]] = defaultdict(set)
        for question_id, text, key in zip(asked.ids, asked.texts, asked.keys, strict=True):
            found[key] |= self.by_id.get(question_id, set()) | self.by_text.get(text, set())
        return ["/".join(sorted(found[key])) for key in asked.keys]

    def remarks_on_texts(self, asked: Questions) -> list[str]:
        """That the texts of a store say nothing of what the run knows by ids alone."""
        if not self.without_text or not any(asked.texts):
            return []
        questions = count(len(self.without_text), "question")
        return [
            f"the run has no text of {questions} that it was trained or tuned on: only the id says "
            "whether a trace asks one of them"
        ]


def is_trained(splits: Sequence[str]) -> NDArray[np.bool_]:
    """Whether what `find_splits` found is a question that the run was trained or tuned on."""
    return np.array([any(split in one for split in LEARNED) for one in splits], dtype=bool)


def write_asked(directory: Path, splits: Splits, followed: Sequence[Asked] = ()) -> None:
    """Write a line for each split, id and digest of a text.

    Of train are also what a run was trained on that has followed its store.
    """
    asked = {split: splits.asked.distinct(splits.rows(split)) for split in SPLITS}
    asked["train"] = list(dict.fromkeys([*asked["train"], *followed]))
    lines = [(split, *line) for split, of_split in asked.items() for line in of_split]
    write_csv(directory / QUESTION_FILE, QUESTION_COLUMNS, lines)


def read_asked(directory: Path) -> AskedByRun:
    """Read what `write_asked` wrote; raises DataError for another file, or none."""
    lines = read_columns(directory / QUESTION_FILE, QUESTION_COLUMNS)
    asked = AskedByRun({}, {})
    with_text = set()
    for split, question_id, text in zip(*lines.values(), strict=True):
        if text:
            with_text.add(question_id)
        asked.by_id.setdefault(question_id, set()).add(split)
        asked.by_text.setdefault(text, set()).add(split)
    asked.by_text.pop("", None)
    learned = {one for one, splits in asked.by_id.items() if not splits.isdisjoint(LEARNED)}
    return asked._replace(without_text=frozenset(learned - with_text))
