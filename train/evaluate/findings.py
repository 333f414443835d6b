"""Every metric, comparison and verdict of a run, computed from its scores.

NumPy arrays in, records out; of the store only ids are read. Thresholds and the best of a group are
chosen on validation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from store.labels.rule import UNLABELLED, label_scores
from store.traces.question_split import SPLITS
from train.data.batches import TrainingData
from train.data.questions import Asked
from train.data.splits import Splits
from train.evaluate.calibrate import fit_temperature, keep_promise, measure_recalibrated
from train.evaluate.frame import Frame
from train.evaluate.intervals import auroc_interval, metric_intervals, share_interval
from train.evaluate.metrics import (
    Labels,
    QuestionNumbers,
    Scores,
    drawn_counts,
    mean_auroc,
    measure,
    percentile_interval,
    ranking,
    youden_threshold,
)
from train.evaluate.paired_tests import compare_pairs, find_verdict
from train.evaluate.results import (
    Counts,
    Cut,
    Entries,
    Entry,
    Facts,
    LeftOut,
    Metrics,
    PairedTest,
    SplitCounts,
    Transfer,
    Verdict,
    mean_record,
)

__all__ = [
    "Scored",
    "ScoredByName",
    "bootstrap_predictions",
    "build_frame",
    "compare_all",
    "count_splits",
    "label_sensitivity",
    "measure_elsewhere",
    "measure_left_out",
    "measure_method",
]

# majority ranks nothing, its AUROC is 0.5; perplexity ranks as mean_logprob does
NOT_COMPARED = ("majority", "perplexity")
# of the score, around 0.5, the default for labels
LABEL_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7)
LEFT_OUT = ("left out", "in domain")


@dataclass(frozen=True)
class Scored:
    """Probabilities of hallucination by one detector or baseline, in the order of the split."""

    # float64 (n_seeds, n_split): one row per training run
    val: Scores
    test: Scores
    facts: Facts = field(default_factory=lambda: Facts(parameters=0, seconds=0.0))
    # split -> scores of its tokens, float32 (n_tokens,), one for each training run; empty where
    # there are none
    tokens: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)
    # what was learned besides the split of the run, from a store that was followed
    followed: Sequence[Asked] = ()


ScoredByName = dict[str, Scored]


def build_frame(scored: ScoredByName, data: TrainingData) -> Frame[str]:
    """The frame of the labelled traces of a run: those of train, of val, and of test."""
    splits = data.splits
    rows = np.concatenate([splits.rows(split) for split in SPLITS])
    n_train = len(splits.train)
    return Frame(
        trace_ids=np.array([data.store.ids[row] for row in rows.tolist()], dtype=object),
        splits=np.repeat(SPLITS, [len(splits.rows(split)) for split in SPLITS]).astype(object),
        labels=splits.labels[rows],
        question_ids=splits.asked.keys[rows],
        scores={
            name: np.hstack([np.full((len(one.val), n_train), np.nan), one.val, one.test])
            for name, one in scored.items()
        },
        seed=splits.seed,
    )


def measure_method(frame: Frame[str], name: str, facts: Facts, risk: float | None = None) -> Entry:
    """Metrics of validation and test; what is chosen or recalibrated for a run is so on validation.

    Metrics are means over the runs, each at its own threshold and temperature. Those in the entry
    are of the mean score, which `predict` and `evaluate` use. `risk` is the share of hallucinations
    that another threshold of the mean score is to let through at most. It is of test: validation,
    which has chosen, would promise too much.
    """
    val, test = frame.val, frame.test
    runs = test.scores[name]
    thresholds = [youden_threshold(val.labels, scores) for scores in val.scores[name]]
    mean_score = val.mean(name)
    threshold = youden_threshold(val.labels, mean_score)
    on_val = mean_metrics(val.labels, val.scores[name], thresholds)
    fitted = [
        measure_recalibrated(val.labels, of_val, test.labels, run)
        for of_val, run in zip(val.scores[name], runs, strict=True)
    ]
    chosen = {"threshold": threshold, "temperature": fit_temperature(val.labels, mean_score)}
    if risk is not None:
        chosen |= keep_promise(test.labels, test.mean(name), test.questions, risk, frame.seed)
    on_test = with_intervals(
        mean_metrics(test.labels, runs, thresholds, fitted),
        test.labels,
        runs,
        test.questions,
        frame.seed,
    )
    return Entry(
        val=replace(on_val, threshold=threshold),
        test=replace(on_test, **cast(dict[str, Any], chosen)),
        **vars(facts),
    )


def count_splits(splits: Splits) -> SplitCounts:
    counts = {
        split: Counts(
            rows=len(splits.rows(split)),
            questions=len(np.unique(splits.questions[splits.rows(split)])),
            hallucinations=int(splits.labels_of(split).sum()),
        )
        for split in SPLITS
    }
    n_unlabelled = int(np.sum(splits.labels == UNLABELLED))
    return SplitCounts(
        seed=splits.seed,
        by=splits.by,
        outside=splits.n_outside,
        **counts,
        unlabelled=n_unlabelled,
        joined=splits.asked.n_joined,
        without_text=splits.asked.n_without_text(splits.test),
    )


def with_intervals(
    metrics: Metrics, labels: Labels, scores: Scores, questions: QuestionNumbers, seed: int
) -> Metrics:
    """The metrics with the intervals of those that have one, of scores (n,) or (n_runs, n)."""
    intervals = metric_intervals(labels, scores, questions, seed)
    known: dict[str, Any] = {
        f"{name}_ci": interval
        for name, interval in intervals.items()
        if getattr(metrics, name) is not None
    }
    return replace(metrics, **known)


def mean_metrics(
    labels: Labels, scores: Scores, thresholds: list[float], fitted: Sequence[dict[str, Any]] = ()
) -> Metrics:
    """Mean of each metric over the runs (n_seeds, n), and of the fields `fitted` of each.

    Of several runs also each one's AUROC and their standard deviation.
    """
    runs = [
        measure(labels, run, threshold) for run, threshold in zip(scores, thresholds, strict=True)
    ]
    if fitted:
        runs = [replace(run, **fields) for run, fields in zip(runs, fitted, strict=True)]
    metrics = mean_record(runs)
    if len(runs) > 1:
        metrics.auroc_runs = [run.auroc for run in runs]
        metrics.auroc_sd = float(np.std(metrics.auroc_runs, ddof=1))
    return metrics


def compare_all(
    models: Entries, baselines: Entries, test: Frame[str], margin: float
) -> tuple[list[PairedTest[str]], Verdict | None]:
    """Compare detectors with each other and with baselines; the verdict compares the best two.

    Controls are compared with, too, but corrected apart, and no rivals of the best: they say what a
    detector may have learned from the question or the length, not which method is better. `margin`
    is the smallest difference of AUROC that is of interest.
    """
    firsts: dict[bytes, str] = {}  # of those that rank the test rows equally
    for name in baselines:
        if name not in NOT_COMPARED:
            firsts.setdefault(ranking(test.mean(name)), name)
    rivals = {name: baselines[name] for name in firsts.values()}
    controls = [name for name, entry in rivals.items() if entry.control]
    pairs = [*combinations(models, 2), *product(models, rivals)]
    scores = {name: test.scores[name] for name in [*models, *rivals]}
    comparisons = compare_pairs(test.labels, scores, pairs, test.questions, test.seed, controls)
    return comparisons, find_verdict(comparisons, models, rivals, margin)


def label_sensitivity(test: Frame[str], truth: NDArray[np.float32], threshold: float) -> Cut:
    """Test AUROCs if label = 1 iff `truth` (n_test,) < threshold; nothing is trained again.

    Rows whose truth is NaN are left out; an AUROC is None where a single class remains.
    """
    labels = label_scores(truth, threshold)
    is_labelled = labels != UNLABELLED
    labels = labels[is_labelled]
    n_positive = int(labels.sum())
    areas: dict[str, float | None] = dict.fromkeys(test.scores)
    if 0 < n_positive < len(labels):
        for name, runs in test.scores.items():
            areas[name] = mean_auroc(labels, runs[:, is_labelled])
    return Cut(threshold, len(labels), n_positive, areas)


def measure_elsewhere(
    labels: Labels, scores: Scores, threshold: float, questions: QuestionNumbers, seed: int
) -> Metrics:
    """Every metric of one detector at a threshold that was chosen on other rows.

    The 95% intervals are those of `intervals`; of F1 and MCC of a bootstrap.
    """
    metrics = measure(labels, scores, threshold)
    metrics = with_intervals(metrics, labels, scores, questions, seed)
    predicted = scores >= threshold
    intervals = bootstrap_predictions(labels, predicted, questions, seed)
    metrics.f1_ci, metrics.mcc_ci = intervals.values()
    metrics.accuracy_ci = share_interval(predicted == labels, questions)
    return metrics


def bootstrap_predictions(
    labels: Labels,
    predicted: NDArray[np.bool_],
    questions: QuestionNumbers,
    seed: int,
    n_resamples: int = 1000,
) -> dict[str, list[float]]:
    """95% percentile intervals of F1 and MCC, by a bootstrap over questions.

    The resamples are those of `auroc_samples` with the same questions and seed; those with a single
    class of labels are left out. Returns the low and the high end for "f1" and "mcc".
    """
    distinct, question = np.unique(questions, return_inverse=True)
    cell = 4 * question + 2 * labels + predicted
    cells = np.bincount(cell, minlength=4 * len(distinct)).reshape(-1, 4)
    totals = [counts @ cells for counts in drawn_counts(len(cells), seed, n_resamples)]
    metrics = metrics_of_cells(np.concatenate(totals))
    return {name: percentile_interval(samples) for name, samples in metrics.items()}


def metrics_of_cells(cells: Labels) -> dict[str, Scores]:
    """F1 and MCC, both 0 where undefined, of the rows (n, 4) that have both labels.

    They are true negatives, false positives, false negatives, true positives.
    """
    tn, fp, fn, tp = cells.astype(np.float64).T
    has_both = (tn + fp > 0) & (fn + tp > 0)
    tn, fp, fn, tp = (numbers[has_both] for numbers in (tn, fp, fn, tp))
    spread = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return {
        "f1": 2 * tp / (2 * tp + fp + fn),  # defined: there is a label 1
        "mcc": (tp * tn - fp * fn) / np.where(spread > 0, spread, 1),
    }


def measure_left_out(value: str, without: Frame[str], every: Frame[str]) -> LeftOut:
    """Judge a run without a value, and one on all, by the traces of the value.

    `without` is the test split of the run without it; in domain are those of its traces that are in
    the test split of `every`. The difference is of these.
    """
    in_domain = every.take(every.rows_of(np.intersect1d(without.trace_ids, every.test.trace_ids)))
    same = without.take(without.rows_of(in_domain.trace_ids))
    labels, questions, seed = in_domain.labels, in_domain.questions, in_domain.seed
    methods = {}
    for name in filter(every.scores.__contains__, without.scores):
        left_out = without.labels, without.scores[name]
        ci = auroc_interval(*left_out, without.questions)
        methods[name] = found = Transfer(mean_auroc(*left_out), ci)
        if 0 < labels.sum() < len(labels):
            runs = in_domain.scores[name]
            found.in_domain_auroc = mean_auroc(labels, runs)
            found.in_domain_auroc_ci = auroc_interval(labels, runs, questions)
            scores = dict(zip(LEFT_OUT, (same.scores[name], runs), strict=True))
            (paired,) = compare_pairs(labels, scores, [LEFT_OUT], questions, seed)
            found.difference, found.difference_ci = paired.difference, paired.ci
    n_questions = len(np.unique(without.questions))
    counts = Counts(len(without), n_questions, int(without.labels.sum()))
    return LeftOut(value, counts, len(in_domain), methods)
