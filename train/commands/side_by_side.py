"""Finished runs compared: AUROCs and paired tests on the rows that all of them were tested on.

Rows are joined by trace id, and count only where they are in the test split of every run. Nothing
is trained.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from store.traces.origin import find_difference
from train.errors import DataError
from train.evaluate.frame import Frame, Texts
from train.evaluate.intervals import auroc_interval
from train.evaluate.metrics import mean_auroc, ranking
from train.evaluate.paired_tests import compare_pairs
from train.evaluate.results import PairedTest
from train.report.console import print_line, print_table
from train.report.numbers import clean_text, short, with_interval
from train.report.render import Table, in_words
from train.report.tables import comparison_cells
from train.run.results import FinishedRun

__all__ = [
    "Common",
    "Comparison",
    "Key",
    "Runs",
    "build_areas",
    "choose_pairs",
    "compare_runs",
    "find_common",
    "name_runs",
    "print_comparison",
]

Runs = dict[str, FinishedRun]  # by name
Key = tuple[str, str]  # run, and a detector or baseline of it
Pair = tuple[Key, Key]


@dataclass(frozen=True)
class Common:
    """The rows that are in the test split of every run."""

    frame: Frame[Key]  # scores by (run, detector or baseline), in the order of the runs
    n_left_out: int  # rows that are in the test split of some runs only
    n_trained: int  # how many of those are in the train split of another

    def auroc(self, key: Key) -> float:
        return mean_auroc(self.frame.labels, self.frame.scores[key])


@dataclass(frozen=True)
class Area:
    """AUROC on the common rows with its 95% interval, and AUROC on the run's validation split."""

    auroc: float
    ci: list[float]
    val_auroc: float


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs."""

    directory: str  # where its files are
    best: str  # its best detector on validation
    auroc: dict[str, Area]  # detector or baseline -> `Area`
    n_splits: int  # splits of the run, of which the first is compared


@dataclass(frozen=True)
class Comparison:
    """What `--json` prints."""

    # counts of the common rows
    rows: int
    questions: int
    hallucinations: int
    # whether the runs read traces of different models, layers or prompts
    different_models: bool
    # as `n_left_out` and `n_trained` of `Common`
    left_out: int
    left_out_trained: int
    runs: dict[str, ComparedRun]  # by name
    comparisons: list[PairedTest[Key]]  # as `compare_models` returns them


def name_runs(directories: list[Path]) -> list[str]:
    """A distinct name for each run: that of its directory, else its path, else all have numbers."""
    short = [clean_text(path.resolve().name) for path in directories]
    paths = [
        clean_text(str(path)) if short.count(name) > 1 else name
        for path, name in zip(directories, short, strict=True)
    ]
    if len(set(paths)) < len(paths):
        return [f"{i}: {name}" for i, name in enumerate(paths, 1)]
    return paths


def compare_runs(runs: Runs) -> Comparison:
    """Compare runs by name.

    Raises DataError if the runs disagree on a label or a question, or have no common rows of both
    classes.
    """
    common = find_common(runs)
    rows = common.frame
    best = {name: run.results.best for name, run in runs.items()}
    return Comparison(
        rows=len(rows),
        questions=len(np.unique(rows.questions)),
        hallucinations=int(rows.labels.sum()),
        different_models=differ_in_origin(runs.values()),
        left_out=common.n_left_out,
        left_out_trained=common.n_trained,
        runs={name: compare_run(name, run, common) for name, run in runs.items()},
        comparisons=compare_models(runs, common, choose_pairs(best, common)),
    )


def differ_in_origin(runs: Iterable[FinishedRun]) -> bool:
    pairs = combinations([run.results.store.origins for run in runs], 2)
    return any(a and find_difference(a, origin) for a, b in pairs for origin in b)


def compare_run(name: str, run: FinishedRun, common: Common) -> ComparedRun:
    """AUROCs of a run on the common rows."""
    areas = {}
    rows = common.frame
    for model, entry in run.results.entries.items():
        scores = rows.scores[name, model]
        interval = auroc_interval(rows.labels, scores, rows.questions)
        areas[model] = Area(common.auroc((name, model)), interval, entry.val.auroc)
    n_splits = len(run.results.split_seeds) or 1
    return ComparedRun(str(run.directory), run.results.best, areas, n_splits)


def compare_models(runs: Runs, common: Common, chosen: dict[Pair, str]) -> list[PairedTest[Key]]:
    """Both paired tests of each pair of `choose_pairs`, with Holm's correction over all of them.

    Returns what `compare_pairs` does, `a` and `b` being (run, detector or baseline), and `what`
    "best" or "same"; the best first, then detectors, then baselines.
    """
    rows = common.frame
    scores = {key: rows.scores[key] for pair in chosen for key in pair}
    results = compare_pairs(rows.labels, scores, list(chosen), rows.questions, rows.seed)
    tests = [replace(test, what=chosen[test.a, test.b]) for test in results]
    baselines = {name for run in runs.values() for name in run.results.baselines}
    return sorted(tests, key=lambda test: (test.what != "best", test.a[1] in baselines))


def choose_pairs(best: dict[str, str], common: Common) -> dict[Pair, str]:
    """Pairs to test -> "best", of two runs, or "same", one name in two runs.

    `best` is run -> its best detector on validation.

    Left out are two scores that rank the rows in the same way, and two that rank them as an earlier
    pair does. Most baselines of two runs on one store give equal scores, and perplexity ranks as
    the mean log-probability does: each test more would make the correction of the others stricter.
    """
    chosen: dict[Pair, str] = {}
    tested = set()
    rankings = {key: ranking(common.frame.mean(key)) for key in common.frame.scores}
    for a, b in combinations(best, 2):
        of_best = ((a, best[a]), (b, best[b]))
        models = [model for run, model in common.frame.scores if run == a]
        shared = [model for model in models if (b, model) in common.frame.scores]
        for pair in [of_best, *(((a, model), (b, model)) for model in shared)]:
            hypothesis = tuple(rankings[key] for key in pair)
            if len(set(hypothesis)) == 2 and hypothesis not in tested:
                tested.add(hypothesis)
                chosen[pair] = "best" if pair == of_best else "same"
    return chosen


def find_common(runs: Runs) -> Common:
    """Join the runs by trace id, in the order of the first one.

    Raises DataError if they contradict each other, or have no common rows of both classes.
    """
    tested = [run.ids_in("test") for run in runs.values()]
    trained = [run.ids_in("train") for run in runs.values()]
    in_all = set.intersection(*tested)
    left_out = set().union(*tested) - in_all
    n_trained = len(left_out & set().union(*trained))
    names = ", ".join(runs)
    if not in_all:
        raise DataError(
            f"{names}: no trace is in the test split of every run; {n_trained} were tested in one "
            "run and trained on in another; compare runs with the same --seed on the same store"
        )
    first = next(iter(runs.values())).frame
    ids = [trace_id for trace_id in first.trace_ids if trace_id in in_all]
    frames = {name: run.frame.take(run.frame.rows_of(ids)) for name, run in runs.items()}
    check_same("label", ids, {name: frame.labels for name, frame in frames.items()})
    check_same("question", ids, {name: frame.question_ids for name, frame in frames.items()})
    joined = next(iter(frames.values()))
    for name, run in runs.items():
        check_not_trained(name, run.frame, joined.question_ids)
    n_wrong = joined.labels.sum()
    if not 0 < n_wrong < len(ids):
        raise DataError(
            f"{names}: expected both classes among the {len(ids)} common test traces, "
            f"found {n_wrong} hallucinations; compare runs with the same --seed on the same store"
        )
    scores = {
        (name, model): scores
        for name, frame in frames.items()
        for model, scores in frame.scores.items()
    }
    frame = Frame(
        joined.trace_ids, joined.splits, joined.labels, joined.question_ids, scores, joined.seed
    )
    return Common(frame, len(left_out), n_trained)


def check_same(what: str, ids: list[str], values: dict[str, NDArray]) -> None:
    """Raise DataError unless all runs agree on each row."""
    first_name, first = next(iter(values.items()))
    for name, others in values.items():
        rows = np.flatnonzero(first != others)
        if len(rows):
            row = rows[0]
            raise DataError(
                f"trace {clean_text(ids[row])!r}: expected one {what} in all runs, found "
                f"{clean_text(str(first[row]))} in {first_name} and "
                f"{clean_text(str(others[row]))} in {name}; "
                "compare runs on the same store with the same labels"
            )


def check_not_trained(name: str, frame: Frame[str], questions: Texts) -> None:
    is_tested = np.isin(frame.question_ids, questions)
    rows = np.flatnonzero((frame.splits == "train") & is_tested)
    if len(rows):
        trace_id = clean_text(frame.trace_ids[rows[0]])
        question = clean_text(frame.question_ids[rows[0]])
        raise DataError(
            f"{name}: expected the questions of the common test traces to be new to every run, "
            f"found trace {trace_id!r} of question {question!r} in its train split; train again"
        )


def print_comparison(comparison: Comparison, console: Console) -> None:
    print_line(console, in_words("compared_rows", comparison))
    for title, table in build_tables(comparison).items():
        print_table(table, console, title)
    for note in in_words("comparison_notes", comparison).splitlines():
        print_line(console, note)


def build_tables(comparison: Comparison) -> dict[str, Table]:
    """Title -> table: AUROCs, without a title, and paired tests."""
    tables = {"": build_areas(comparison)}
    if comparison.comparisons:
        header = ("runs", "of", "difference [95%]", "p boot", "DeLong", "Holm")
        tables["paired tests of AUROC"] = build_tests(header, comparison.comparisons)
    return tables


def build_areas(comparison: Comparison) -> Table:
    """AUROC of each detector and baseline of each run; a run's name stands in its first line.

    A star marks its best.
    """
    rows: list[tuple[str, ...]] = []
    groups = {}
    for name, run in comparison.runs.items():
        groups[len(rows)] = ""
        for i, (model, area) in enumerate(run.auroc.items()):
            star = " *" if model == run.best else ""
            test = with_interval(area.auroc, area.ci)
            label = "" if i else name
            rows.append((label, clean_text(model) + star, test, short(area.val_auroc)))
    return Table(("run", "", "AUROC [95%]", "val"), rows, n_left=2, groups=groups)


def build_tests(header: Sequence[str], tests: Sequence[PairedTest[Key]]) -> Table:
    rows = [(*name_pair(test), *comparison_cells(test)) for test in tests]
    return Table(header, rows, n_left=2)


def name_pair(test: PairedTest[Key]) -> tuple[str, str]:
    """The two runs, and what of them was compared; a star marks the best of each."""
    a_run, a = test.a
    b_run, b = test.b
    names = a if a == b else f"{a} - {b}"
    star = " *" if test.what == "best" else ""
    return clean_text(f"{a_run} - {b_run}"), clean_text(names + star)
