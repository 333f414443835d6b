"""Finished runs tested on stores: those that they were not trained on, or their own test split.

Nothing is trained or chosen here: weights, layers and thresholds are those of the run. Scores are
the mean over its seeds, as `predict` writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import DETECTORS, PROBES, REFERENCES
from store import TraceStore
from store.labels.rule import UNLABELLED
from store.reports import count
from train.config import Reading
from train.data.batches import TrainingData, open_store
from train.data.questions import Questions, read_questions
from train.data.requirements import check_columns, missing_columns, reader_of
from train.data.splits import label_column, read_labels
from train.errors import DataError
from train.evaluate.calibrate import (
    controlled_risk,
    keep_promise,
    measure_recalibrated,
    risk_threshold,
)
from train.evaluate.findings import measure_elsewhere
from train.evaluate.frame import Frame, Texts
from train.evaluate.metrics import Areas, Scores, auroc, youden_threshold
from train.evaluate.results import Metrics
from train.library.guard import Guard, build_guard
from train.report.render import in_words
from train.run.results import AskedByRun, is_trained, read_asked, read_scores
from train.run.scoring import Scorer, choose_names, load_detector, open_models, read_data

__all__ = [
    "BEST",
    "Evaluation",
    "Rows",
    "Rules",
    "Tested",
    "TestedRun",
    "choose_rows",
    "evaluate_runs",
    "open_run",
]

Integers = NDArray[np.int64]
BEST = "best on validation"


@dataclass(frozen=True)
class TestedRun:
    """What is to be tested of a finished run, and its recorded rows."""

    __test__ = False  # no class of tests, whatever its name looks like

    guard: Guard
    frame: Frame[str]
    asked: AskedByRun


@dataclass(frozen=True)
class Tested:
    """One run on one store."""

    __test__ = False

    # their names
    run: str
    store: str
    own: bool  # whether the store is the run's own: its test split was judged
    # counts of the rows that were judged, and of those without a label
    rows: int
    questions: int
    hallucinations: int
    unlabelled: int
    remarks: list[str]  # what the reader should know of these numbers
    problem: str | None  # why there are no metrics
    # by the name of a detector, probe or baseline
    metrics: dict[str, Metrics] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """What `--json` prints."""

    # name -> path
    runs: dict[str, str]
    stores: dict[str, str]
    best: dict[str, str]  # run -> its best detector on validation, of those that were tested
    results: list[Tested]  # run by run, store by store

    @property
    def is_complete(self) -> bool:
        """Whether each run could be judged on each store."""
        return all(tested.problem is None for tested in self.results)

    @property
    def own(self) -> set[tuple[str, str]]:
        """(run, store) where the store is the run's own."""
        return {(one.run, one.store) for one in self.results if one.own}


def open_run(
    directory: Path, reading: Reading, models_text: str | None, *, with_baselines: bool
) -> TestedRun:
    """Read a finished run; the names are those of a comma-separated text, else all that it has.

    Raises TrainError if there is no finished run, if it has not a name that was asked for, or for a
    wrong setting.
    """
    models = open_models(directory)
    frame = read_scores(directory / "scores.csv", models.results)
    names = choose_names(models, models_text)
    if models_text is None and with_baselines:
        names += [name for name in models.names if name in REFERENCES]
    return TestedRun(build_guard(models, names, reading), frame, read_asked(directory))


def evaluate_runs(runs: dict[str, TestedRun], stores: dict[str, Path], rules: Rules) -> Evaluation:
    """Test each run on each store; every pair is checked before the first is scored.

    Raises TrainError if a store cannot be read by a run.
    """
    pairs = [
        open_pair(run_name, store_name, run, path, rules)
        for run_name, run in runs.items()
        for store_name, path in stores.items()
    ]
    return Evaluation(
        runs={name: str(run.guard.models.directory.path) for name, run in runs.items()},
        stores={name: str(path) for name, path in stores.items()},
        best={name: run.guard.results.best_among(run.guard.names) for name, run in runs.items()},
        results=[measure_pair(pair) for pair in pairs],
    )


@dataclass(frozen=True)
class Pair:
    """A run, and what scores the rows of a store that are judged, which are its test split."""

    run: TestedRun
    scorer: Scorer
    names: list[str]
    tested: Tested  # without metrics


def open_pair(run_name: str, store_name: str, run: TestedRun, path: Path, rules: Rules) -> Pair:
    """Open a store for a run; raises TrainError where the run cannot be tested on it."""
    config, results = run.guard.config, run.guard.results
    store = open_store(path, config)
    names, remarks = readable_names(run.guard, store)
    scorer = replace(run.guard, names=names).read(store, force=rules.force)
    data = scorer.data
    for name in names:
        if name in DETECTORS:
            load_detector(name, config.seed, scorer.models, data)  # raises if it does not fit
    remarks += scorer.remarks
    check_columns(data, "the metrics", ["question_id"], "or add it to the store")
    labels, of_labels = find_labels(data)
    remarks += of_labels
    asked = read_questions(store, config)
    is_own = results.store.uuid == store.uuid
    remarks += [] if is_own else [*asked.remarks(), *run.asked.remarks_on_texts(asked)]
    trace_ids = np.array(list(store.ids), dtype=object)
    chosen = choose_rows(run.frame, run.asked, trace_ids, asked, labels, is_own, rules)
    n_splits = len(results.split_seeds)
    if n_splits:
        remarks.append(
            f"the run has {n_splits} splits: weights, thresholds and own are of "
            "the first; its split-SEED directories are the runs of the others"
        )
    questions = np.unique(asked.keys, return_inverse=True)[1]
    splits = replace(data.splits, test=chosen.rows, labels=labels, questions=questions)
    tested = Tested(
        run=run_name,
        store=store_name,
        own=is_own,
        rows=len(chosen.rows),
        questions=len(np.unique(questions[chosen.rows])),
        hallucinations=int(labels[chosen.rows].sum()),
        unlabelled=chosen.n_unlabelled,
        remarks=[*in_words("chosen_rows", chosen).splitlines(), *remarks],
        problem=None,
    )
    return Pair(run, replace(scorer, data=replace(data, splits=splits)), names, tested)


def readable_names(guard: Guard, store: TraceStore) -> tuple[list[str], list[str]]:
    """Names but those of baselines whose columns the store lacks, and a remark on these."""
    data = read_data(store, [], guard.models)
    lacking = [
        name
        for name in guard.names
        if name in REFERENCES and missing_columns(data, reader_of(name, data).columns)
    ]
    names = [name for name in guard.names if name not in lacking]
    remark = f"without {', '.join(lacking)}, whose columns the store does not have"
    return names, [remark] * bool(lacking)


def find_labels(data: TrainingData) -> tuple[Integers, list[str]]:
    """Labels (n_rows,) by the rule of the run, and a remark where the store has not what it needs.

    A run with --score-threshold makes them of scores; a store without scores has its labels.
    """
    config, remarks = data.config, []
    if config.score_threshold is not None and missing_columns(data, ["score"]):
        remarks.append(
            f"labels as stored: the run's --score-threshold {config.score_threshold:g} does not "
            "apply to a store without scores"
        )
        config = replace(config, score_threshold=None)
    check_columns(data, "the metrics", [label_column(config)], "or add it to the store")
    return read_labels(data.store, config), remarks


def measure_pair(pair: Pair) -> Tested:
    """Score a store's rows with a run, and judge the scores."""
    tested = pair.tested
    if not 0 < tested.hallucinations < tested.rows:
        problem = (
            f"expected both classes, found {tested.hallucinations} hallucinations among "
            f"{count(tested.rows, 'labelled trace')} to judge"
        )
        return replace(tested, problem=problem)
    splits, run = pair.scorer.data.splits, pair.run
    labels, questions = splits.labels_of("test"), splits.questions[splits.test]
    val, test = run.frame.val, run.frame.test
    metrics = {}
    for name, scores in score_names(pair):
        threshold = youden_threshold(val.labels, val.mean(name))
        measured = measure_elsewhere(labels, scores, threshold, questions, splits.seed)
        fitted: dict[str, Any] = measure_recalibrated(val.labels, val.mean(name), labels, scores)
        fitted |= measure_promise(pair, name, labels, scores, questions)
        own_test = auroc(test.labels, test.mean(name))
        metrics[name] = replace(measured, own_test_auroc=own_test, **fitted)
    return replace(tested, metrics=metrics)


def measure_promise(
    pair: Pair, name: str, labels: Integers, scores: Scores, questions: Integers
) -> Areas:
    """What the threshold of --risk does, which is of the run's test split; {} without one."""
    risk = pair.run.guard.config.risk
    if risk is None:
        return {}
    if pair.tested.own:
        return keep_promise(labels, scores, questions, risk, pair.scorer.data.splits.seed)
    test = pair.run.frame.test
    threshold = risk_threshold(test.labels, test.mean(name), test.questions, risk)
    if threshold is None:
        return {}
    found = controlled_risk(labels, scores, questions, threshold)
    return {"risk_threshold": threshold} | found


def score_names(pair: Pair) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Each name with its scores (n,); a baseline whose column is not finite is only remarked on."""
    for name in sorted(pair.names, key=lambda name: (name in REFERENCES, name in PROBES)):
        try:
            yield name, pair.scorer.score(name)
        except DataError as error:
            if name not in REFERENCES:
                raise
            pair.tested.remarks.append(f"without {name}: {error}")


@dataclass(frozen=True)
class Rules:
    """Which rows and stores count."""

    force: bool = False  # also test on traces of another model, other layers or other prompts
    keep_trained: bool = False  # judge questions of the run's train or validation split, too


@dataclass(frozen=True)
class Rows:
    """The rows of a store that judge a run, and why others do not."""

    rows: Integers  # int64 (n,), ascending
    is_own: bool  # whether the store is the run's own
    n_unlabelled: int = 0
    # of the run's own store: labelled rows in its other splits, and in none
    n_seen: int = 0
    n_added: int = 0
    n_relabelled: int = 0  # of its test split: rows with another label than then, or none
    # rows and questions to judge that the run was trained or tuned on, and whether they are judged
    n_trained: int = 0
    n_trained_questions: int = 0
    keeps_trained: bool = False


def choose_rows(
    run: Frame[str],
    trained: AskedByRun,
    trace_ids: Texts,
    asked: Questions,
    labels: Integers,
    is_own: bool,
    rules: Rules,
) -> Rows:
    """The labelled rows of a store whose questions a run was neither trained nor tuned on. Pure.

    Of the run's own store they are of its test split. Questions are known by id and by text.

    `trace_ids`, `asked` and `labels`, int64, -1 where unlabelled, are of all rows of the store, and
    `is_own` says whether the run was trained on it.
    """
    is_labelled = labels != UNLABELLED
    split_by_id = dict(zip(run.trace_ids, run.splits, strict=True)) if is_own else {}
    own_split = np.array([split_by_id.get(one, "") for one in trace_ids], dtype=object)
    label_by_id = dict(zip(run.trace_ids, run.labels, strict=True))
    then = np.array([label_by_id.get(one, UNLABELLED) for one in trace_ids], dtype=np.int64)
    is_tested = is_labelled & (own_split == ("test" if is_own else ""))
    is_known = is_tested & is_trained(trained.find_splits(asked))
    return Rows(
        rows=np.flatnonzero(is_tested & (rules.keep_trained | ~is_known)),
        is_own=is_own,
        n_unlabelled=int(np.sum(~is_labelled)),
        n_seen=int(np.sum(is_labelled & np.isin(own_split, ("train", "val")))),
        n_added=int(np.sum(is_labelled & (own_split == ""))) if is_own else 0,
        n_relabelled=int(np.sum((own_split == "test") & (labels != then))),
        n_trained=int(is_known.sum()),
        n_trained_questions=len(set(asked.keys[is_known])),
        keeps_trained=rules.keep_trained,
    )
