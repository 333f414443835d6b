"""Every metric, comparison and verdict of a run, computed from its scores.

NumPy arrays in, records out. Thresholds and the best of a group are chosen on validation.
"""

from dataclasses import dataclass, field
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from store.labels.rule import UNLABELLED, label_scores
from store.traces.question_split import SPLITS
from train.data.batches import TrainingData
from train.data.requirements import missing_columns
from train.data.splits import Splits
from train.evaluate.metrics import (
    Areas,
    Labels,
    Questions,
    Scores,
    bootstrap_auroc,
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
    Entry,
    Explained,
    Facts,
    Metrics,
    PairedTest,
    SplitCounts,
    Verdict,
    mean_record,
)
from train.evaluate.strata import Strata, judge_within, rank_correlation

__all__ = [
    "Scored",
    "ScoredByName",
    "bootstrap_predictions",
    "compare_all",
    "correlate",
    "count_splits",
    "judge",
    "judge_elsewhere",
    "label_sensitivity",
    "read_truth",
]

# majority ranks nothing, its AUROC is 0.5; perplexity ranks as mean_logprob does
NOT_COMPARED = ("majority", "perplexity")
# of the score, around 0.5, the default for labels
LABEL_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7)


@dataclass(frozen=True)
class Scored:
    """Scores of one detector or baseline: probability of hallucination, in the order of the split.

    Attributes
    ----------
    val, test : float64 (n_seeds, n_split)
        One row per training run.
    tokens : dict
        Split -> scores of its tokens, float32 (n_tokens,), one for each training run; empty where
        there are none.
    """

    val: Scores
    test: Scores
    facts: Facts = field(default_factory=lambda: Facts(parameters=0, seconds=0.0))
    tokens: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)


ScoredByName = dict[str, Scored]


def judge(scored: Scored, splits: Splits, strata: Strata | None = None) -> Entry:
    """Metrics of validation and test; each run's threshold is chosen on validation."""
    val_labels = splits.labels_of("val")
    test_labels = splits.labels_of("test")
    questions = splits.questions[splits.test]
    thresholds = [youden_threshold(val_labels, scores) for scores in scored.val]
    val = mean_metrics(val_labels, scored.val, thresholds)
    test = mean_metrics(test_labels, scored.test, thresholds)
    test.auroc_ci = bootstrap_auroc(test_labels, scored.test, questions, splits.seed)
    if strata is not None:
        test.auroc_within, test.auroc_within_ci = judge_within(
            test_labels, scored.test, strata, questions, splits.seed
        )
    return Entry(val=val, test=test, **vars(scored.facts))


def count_splits(splits: Splits) -> SplitCounts:
    """Counts of the splits for the report."""
    counts = {
        split: Counts(
            rows=len(splits.rows(split)),
            questions=len(np.unique(splits.questions[splits.rows(split)])),
            hallucinations=int(splits.labels_of(split).sum()),
        )
        for split in SPLITS
    }
    n_unlabelled = int(np.sum(splits.labels == UNLABELLED))
    return SplitCounts(splits.seed, splits.by, splits.n_outside, **counts, unlabelled=n_unlabelled)


def correlate(models: ScoredByName, baselines: ScoredByName, splits: Splits) -> Explained | None:
    """How far the best control on validation ranks the test rows as the detectors do.

    None without a control.
    """
    controls = {name: scored for name, scored in baselines.items() if scored.facts.control}
    if not controls:
        return None
    areas = val_areas(controls, splits)
    best = max(areas, key=areas.__getitem__)
    correlations = {
        name: rank_correlation(scored.test, controls[best].test) for name, scored in models.items()
    }
    return Explained(best, correlations)


def mean_metrics(labels: Labels, scores: Scores, thresholds: list[float]) -> Metrics:
    """Mean of each metric over the runs (n_seeds, n).

    Of several runs also each one's AUROC and their standard deviation.
    """
    runs = [
        measure(labels, run, threshold) for run, threshold in zip(scores, thresholds, strict=True)
    ]
    metrics = mean_record(runs)
    if len(runs) > 1:
        metrics.auroc_runs = [run.auroc for run in runs]
        metrics.auroc_sd = float(np.std(metrics.auroc_runs, ddof=1))
    return metrics


def compare_all(
    models: ScoredByName, baselines: ScoredByName, splits: Splits
) -> tuple[list[PairedTest[str]], Verdict | None]:
    """Compare detectors with each other and with baselines; the verdict compares the best two.

    Controls are compared with, too, but corrected apart, and no rivals in the verdict: they say
    what a detector may have learned from the question or the length, not which method is better.
    """
    rivals = find_rivals(baselines)
    test = {name: scored.test for name, scored in (models | rivals).items()}
    pairs = [*combinations(models, 2), *product(models, rivals)]
    questions = splits.questions[splits.test]
    proper = {name: scored for name, scored in rivals.items() if not scored.facts.control}
    labels = splits.labels_of("test")
    controls = rivals.keys() - proper.keys()
    comparisons = compare_pairs(labels, test, pairs, questions, splits.seed, controls)
    areas = [val_areas(group, splits) for group in (models, proper)]
    return comparisons, find_verdict(comparisons, *areas)


def find_rivals(baselines: ScoredByName) -> ScoredByName:
    """The baselines to compare with; of several that rank the test rows equally the first."""
    firsts: dict[bytes, str] = {}
    for name, scored in baselines.items():
        if name not in NOT_COMPARED:
            firsts.setdefault(ranking(scored.test.mean(0)), name)
    return {name: baselines[name] for name in firsts.values()}


def val_areas(group: ScoredByName, splits: Splits) -> Areas:
    labels = splits.labels_of("val")
    return {name: mean_auroc(labels, scored.val) for name, scored in group.items()}


def read_truth(data: TrainingData) -> NDArray[np.float32] | None:
    """The column `score` of the test split (n_test,), which labels derive from; None without it."""
    if missing_columns(data, ["score"]):
        return None
    return data.store.read(data.splits.test, columns=["score"]).fixed("score").float().numpy()


def label_sensitivity(scored: ScoredByName, truth: NDArray[np.float32], threshold: float) -> Cut:
    """Test AUROCs if label = 1 iff `truth` (n_test,) < threshold; nothing is trained again.

    Rows whose truth is NaN are left out; an AUROC is None where a single class remains.
    """
    labels = label_scores(truth, threshold)
    is_labelled = labels != UNLABELLED
    labels = labels[is_labelled]
    n_positive = int(labels.sum())
    areas: dict[str, float | None] = dict.fromkeys(scored)
    if 0 < n_positive < len(labels):
        for name, of_name in scored.items():
            areas[name] = mean_auroc(labels, of_name.test[:, is_labelled])
    return Cut(threshold, len(labels), n_positive, areas)


def judge_elsewhere(
    labels: Labels, scores: Scores, threshold: float, questions: Questions, seed: int
) -> Metrics:
    """Every metric of one detector, the threshold being given.

    `labels` (n,) are 0 and 1, both present, `scores` (n,) finite, and `questions` (n,) equal for
    rows of the same question; the threshold was chosen on other rows.

    The 95% intervals of AUROC, F1, MCC and accuracy are of a bootstrap over questions.
    """
    metrics = measure(labels, scores, threshold)
    metrics.auroc_ci = bootstrap_auroc(labels, scores, questions, seed)
    intervals = bootstrap_predictions(labels, scores >= threshold, questions, seed)
    metrics.f1_ci, metrics.mcc_ci, metrics.accuracy_ci = intervals.values()
    return metrics


def bootstrap_predictions(
    labels: Labels,
    predicted: NDArray[np.bool_],
    questions: Questions,
    seed: int,
    n_resamples: int = 1000,
) -> dict[str, list[float]]:
    """95% percentile intervals of F1, MCC and accuracy, by a bootstrap over questions.

    The resamples are those of `bootstrap_auroc` with the same questions and seed; those with a
    single class of labels are left out.

    `labels` (n,) are 0 and 1, both present, `questions` (n,) equal for rows of the same question.
    Returns the low and the high end for "f1", "mcc" and "accuracy".
    """
    cells = count_cells(labels, predicted, questions)  # (n_questions, 4)
    totals = [counts @ cells for counts in drawn_counts(len(cells), seed, n_resamples)]
    metrics = metrics_of_cells(np.concatenate(totals))
    return {name: percentile_interval(samples) for name, samples in metrics.items()}


def count_cells(labels: Labels, predicted: NDArray[np.bool_], questions: Questions) -> Labels:
    """Of each question true negatives, false positives, false negatives, true positives."""
    distinct, question = np.unique(questions, return_inverse=True)
    cell = 2 * labels + predicted
    counts = np.bincount(4 * question + cell, minlength=4 * len(distinct))
    return counts.reshape(-1, 4)


def metrics_of_cells(cells: Labels) -> dict[str, Scores]:
    """F1, MCC (both 0 where undefined) and accuracy of the rows (n, 4) that have both labels."""
    tn, fp, fn, tp = cells.astype(np.float64).T
    has_both = (tn + fp > 0) & (fn + tp > 0)
    tn, fp, fn, tp = (numbers[has_both] for numbers in (tn, fp, fn, tp))
    spread = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return {
        "f1": 2 * tp / (2 * tp + fp + fn),  # defined: there is a label 1
        "mcc": (tp * tn - fp * fn) / np.where(spread > 0, spread, 1),
        "accuracy": (tp + tn) / (tp + tn + fp + fn),
    }
