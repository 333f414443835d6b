"""Finished runs compared: AUROCs and paired tests on the rows that all of them were tested on.

Rows are joined by trace id, and count only where they are in the test split of every run. Nothing
is trained.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.traces.origin import find_difference
from train.errors import DataError
from train.evaluate.metrics import Areas, Labels, Questions, Scores, auroc, bootstrap_auroc, ranking
from train.evaluate.over_splits import mean_differences
from train.evaluate.paired_tests import compare_pairs
from train.evaluate.results import PairedTest
from train.report.numbers import clean_text
from train.run.results import FinishedRun, Texts, read_run

__all__ = [
    "Common",
    "Comparison",
    "Key",
    "Runs",
    "choose_pairs",
    "compare_across_splits",
    "compare_runs",
    "find_common",
    "name_runs",
    "read_splits_of",
]

Runs = dict[str, FinishedRun]  # by name
Key = tuple[str, str]  # run, and a detector or baseline of it
Pair = tuple[Key, Key]


@dataclass(frozen=True)
class Common:
    """The rows that are in the test split of every run.

    Attributes
    ----------
    labels : int64 (n,)
        1 and 0, the same in all runs.
    questions : int64 (n,)
        Equal for rows of the same question.
    scores : dict
        (run, detector or baseline) -> float64 (n,), in the order of the runs.
    n_left_out : int
        Rows that are in the test split of some runs only.
    n_trained : int
        How many of those are in the train split of another.
    """

    labels: Labels
    questions: Questions
    scores: dict[Key, Scores]
    n_left_out: int
    n_trained: int

    @cached_property
    def rankings(self) -> dict[Key, bytes]:
        """Equal for scores that rank the rows in the same way."""
        return {key: ranking(scores) for key, scores in self.scores.items()}


@dataclass(frozen=True)
class Area:
    """AUROC on the common rows with its 95% interval, and AUROC on the run's validation split."""

    auroc: float
    ci: list[float]
    val_auroc: float


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs.

    Attributes
    ----------
    directory : str
        Where its files are.
    best : str
        Its best detector on validation.
    auroc : dict
        Detector or baseline -> `Area`.
    same_as : dict
        Detector or baseline -> the earlier run in which it ranks the rows in the same way.
    n_splits : int
        Splits of the run, of which the first is compared.
    """

    directory: str
    best: str
    auroc: dict[str, Area]
    same_as: dict[str, str]
    n_splits: int


@dataclass(frozen=True)
class Comparison:
    """What `--json` prints.

    Attributes
    ----------
    rows, questions, hallucinations : int
        Counts of the common rows.
    different_models : bool
        Whether the runs read traces of different models, layers or prompts.
    left_out, left_out_trained : int
        As `n_left_out` and `n_trained` of `Common`.
    runs : dict of ComparedRun
        By name.
    comparisons : list of PairedTest
        As `compare_models` returns them.
    over_splits : list of PairedTest
        Over several splits that all runs have; everything else is of the first split.
    """

    rows: int
    questions: int
    hallucinations: int
    different_models: bool
    left_out: int
    left_out_trained: int
    runs: dict[str, ComparedRun]
    comparisons: list[PairedTest[Key]]
    over_splits: list[PairedTest[Key]] = field(default_factory=list)


def name_runs(directories: list[Path]) -> list[str]:
    """A distinct name for each run: that of its directory, else its path, else with a number."""
    short = [clean_text(path.resolve().name) for path in directories]
    paths = [
        clean_text(str(path)) if short.count(name) > 1 else name
        for path, name in zip(directories, short, strict=True)
    ]
    names = []
    for i, name in enumerate(paths):
        n_earlier = paths[:i].count(name)
        names.append(f"{name} ({n_earlier + 1})" if n_earlier else name)
    if len(set(names)) < len(names):
        return [f"{i}: {name}" for i, name in enumerate(paths, 1)]
    return names


def compare_runs(runs: Runs) -> Comparison:
    """Compare runs by name.

    Raises DataError if the runs disagree on a label or a question, or have no common rows of both
    classes.
    """
    common = find_common(runs)
    seed = next(iter(runs.values())).seed
    return Comparison(
        rows=len(common.labels),
        questions=len(np.unique(common.questions)),
        hallucinations=int(common.labels.sum()),
        different_models=differ_in_origin(runs.values()),
        left_out=common.n_left_out,
        left_out_trained=common.n_trained,
        runs={name: compare_run(name, run, common, seed) for name, run in runs.items()},
        comparisons=compare_models(runs, common, seed),
    )


def differ_in_origin(runs: Iterable[FinishedRun]) -> bool:
    return any(
        a.origins and find_difference(a.origins, origin)
        for a, b in combinations(runs, 2)
        for origin in b.origins
    )


def compare_run(name: str, run: FinishedRun, common: Common, seed: int) -> ComparedRun:
    """AUROCs of a run on the common rows, and what ranks them as it does in an earlier run."""
    areas = {}
    copies = {}
    for model, val_auroc in (run.val_auroc["models"] | run.val_auroc["baselines"]).items():
        scores = common.scores[name, model]
        interval = bootstrap_auroc(common.labels, scores, common.questions, seed)
        areas[model] = Area(auroc(common.labels, scores), interval, val_auroc)
        own = common.rankings[name, model]
        first = next(
            run_name
            for (run_name, other), its_ranking in common.rankings.items()
            if other == model and its_ranking == own
        )
        if first != name:
            copies[model] = first
    return ComparedRun(str(run.directory), run.best, areas, copies, run.n_splits)


def compare_models(runs: Runs, common: Common, seed: int) -> list[PairedTest[Key]]:
    """Both paired tests of each pair of scores, with Holm's correction over all of them.

    Returns what `compare_pairs` does, `a` and `b` being (run, detector or baseline), and `what`
    "best" or "same"; the best first, then detectors, then baselines.
    """
    chosen = choose_pairs(runs, common)
    scores = {key: common.scores[key][None] for pair in chosen for key in pair}
    results = compare_pairs(common.labels, scores, list(chosen), common.questions, seed)
    tests = [replace(test, what=chosen[test.a, test.b]) for test in results]
    baselines = {name for run in runs.values() for name in run.val_auroc["baselines"]}
    return sorted(tests, key=lambda test: (test.what != "best", test.a[1] in baselines))


def choose_pairs(runs: Runs, common: Common) -> dict[Pair, str]:
    """Pairs to test -> "best", of two runs, or "same", one name in two runs.

    Left out are two scores that rank the rows in the same way, and two that rank them as an earlier
    pair does. Most baselines of two runs on one store give equal scores, and perplexity ranks as
    the mean log-probability does: each test more would make the correction of the others stricter.
    """
    chosen: dict[Pair, str] = {}
    tested = set()
    for a, b in combinations(runs, 2):
        best = ((a, runs[a].best), (b, runs[b].best))
        shared = [model for model in runs[a].scores if model in runs[b].scores]
        for pair in [best, *(((a, model), (b, model)) for model in shared)]:
            hypothesis = tuple(common.rankings[key] for key in pair)
            if len(set(hypothesis)) == 2 and hypothesis not in tested:
                tested.add(hypothesis)
                chosen[pair] = "best" if pair == best else "same"
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
    ids = [trace_id for trace_id in next(iter(runs.values())).trace_ids if trace_id in in_all]
    rows = {name: run.rows_of(ids) for name, run in runs.items()}
    labels = same_in_all("label", ids, {name: runs[name].labels[rows[name]] for name in runs})
    questions = same_in_all(
        "question", ids, {name: runs[name].questions[rows[name]] for name in runs}
    )
    for name, run in runs.items():
        check_not_trained(name, run, questions)
    n_wrong = labels.sum()
    if not 0 < n_wrong < len(ids):
        raise DataError(
            f"{names}: expected both classes among the {len(ids)} common test traces, "
            f"found {n_wrong} hallucinations; compare runs with the same --seed on the same store"
        )
    return Common(
        labels=labels,
        questions=np.unique(questions, return_inverse=True)[1],
        scores={
            (name, model): scores[rows[name]]
            for name, run in runs.items()
            for model, scores in run.scores.items()
        },
        n_left_out=len(left_out),
        n_trained=n_trained,
    )


def same_in_all(what: str, ids: list[str], values: dict[str, NDArray]) -> NDArray:
    """The values of the first run; raises DataError unless all runs agree on each row."""
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
    return first


def check_not_trained(name: str, run: FinishedRun, questions: Texts) -> None:
    rows = np.flatnonzero((run.row_splits == "train") & np.isin(run.questions, questions))
    if len(rows):
        trace_id = clean_text(run.trace_ids[rows[0]])
        question = clean_text(run.questions[rows[0]])
        raise DataError(
            f"{name}: expected the questions of the common test traces to be new to every run, "
            f"found trace {trace_id!r} of question {question!r} in its train split; train again"
        )


def read_splits_of(runs: Runs) -> list[Runs]:
    """The runs of each split, the first included; [] unless all have the same ones, and two.

    The further splits of a run are in directories of its own. Where one is gone, as where only the
    files of the first split were copied, there is nothing to compare.
    """
    first, *others = [run.split_seeds for run in runs.values()]
    further = first[1:]
    directories = {
        name: [run.directory / f"split-{seed}" for seed in further] for name, run in runs.items()
    }
    has_all = all(path.is_dir() for paths in directories.values() for path in paths)
    if not further or any(other != first for other in others) or not has_all:
        return []
    return [
        runs,
        *(
            {name: read_run(paths[i]) for name, paths in directories.items()}
            for i in range(len(further))
        ),
    ]


def compare_across_splits(splits: Sequence[Runs]) -> list[PairedTest[Key]]:
    """The mean difference of each pair of scores over the splits, with Holm's correction.

    The test is that of a run's own table, `corrected_t_test`. Of the runs the one with the fewest
    training rows says how many the splits share. The best of a run is that of the mean AUROC on
    validation.

    There are at least two splits, as `read_splits_of` has them, with runs by name. Raises DataError
    as `compare_runs` does, of any split.
    """
    commons = [find_common(runs) for runs in splits]
    pairs = choose_pairs(with_mean_validation(splits), commons[0])
    pairs = {
        pair: what
        for pair, what in pairs.items()
        if all(key in common.scores for common in commons for key in pair)
    }
    n_test = sum(len(common.labels) for common in commons)
    n_train = min(
        sum(int((runs[name].row_splits == "train").sum()) for runs in splits) for name in splits[0]
    )
    differences = {
        (a, b): [area_of(common, a) - area_of(common, b) for common in commons] for a, b in pairs
    }
    tests = mean_differences(differences, n_test / n_train)
    return [replace(test, what=pairs[test.a, test.b]) for test in tests]


def area_of(common: Common, key: Key) -> float:
    return auroc(common.labels, common.scores[key])


def with_mean_validation(splits: Sequence[Runs]) -> Runs:
    """The runs of the first split, with the mean AUROCs on validation of what all splits have."""
    return {
        name: replace(
            run,
            val_auroc={
                group: mean_areas([runs[name].val_auroc[group] for runs in splits])
                for group in run.val_auroc
            },
        )
        for name, run in splits[0].items()
    }


def mean_areas(areas: Sequence[Areas]) -> Areas:
    shared = [name for name in areas[0] if all(name in other for other in areas)]
    return {name: float(np.mean([other[name] for other in areas])) for name in shared}
