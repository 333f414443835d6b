"""What scores are worth: every metric, comparison and verdict of a run, from scores that are
already there.

NumPy arrays in, JSON-able values out. Whatever is chosen (thresholds, the best of a group) is
chosen on validation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.data.batches import TrainingData
from train.data.requirements import KINDS, kind_of
from train.data.split import UNLABELLED, Splits, label_scores
from train.evaluate.metrics import (
    bootstrap_auroc,
    mean_auroc,
    ranking_metrics,
    same_ranking,
    threshold_metrics,
    youden_threshold,
)
from train.evaluate.paired_tests import compare_pairs, find_verdict

__all__ = ["Scored", "compare_all", "judge", "label_sensitivity", "read_truth"]

# the one ranks nothing: it has 0.5; the other ranks as mean_logprob does
NOT_COMPARED = ("majority", "perplexity")
# of the score, around the 0.5 that labels are made with
LABEL_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7)


@dataclass(frozen=True)
class Scored:
    """Scores of one detector or baseline: probability of hallucination, in the order of the split.

    Attributes
    ----------
    val, test : float64 (n_seeds, n_split)
        One row per training run.
    facts : dict
        What the results say beside the metrics, JSON-able.
    """

    val: NDArray[np.float64]
    test: NDArray[np.float64]
    facts: dict[str, Any] = field(default_factory=dict)


def judge(scored: Scored, splits: Splits) -> dict[str, Any]:
    """Metrics of both splits; each run's threshold is chosen on validation and applied, as chosen,
    to test."""
    thresholds = [youden_threshold(splits.labels[splits.val], scores) for scores in scored.val]
    labels, questions = splits.labels[splits.test], splits.questions[splits.test]
    test = mean_metrics(labels, scored.test, thresholds)
    test["auroc_ci"] = list(bootstrap_auroc(labels, scored.test, questions, splits.seed))
    return {
        "val": mean_metrics(splits.labels[splits.val], scored.val, thresholds),
        "test": test,
        **scored.facts,
    }


def mean_metrics(
    labels: NDArray[np.int64], scores: NDArray[np.float64], thresholds: list[float]
) -> dict[str, Any]:
    """Mean of each metric over the runs (n_seeds, n); with several of them also `auroc_sd` and each
    one's AUROC."""
    runs = [
        {
            **ranking_metrics(labels, run),
            **threshold_metrics(labels, run, threshold),
            "threshold": threshold,
        }
        for run, threshold in zip(scores, thresholds, strict=True)
    ]
    metrics: dict[str, Any] = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
    if len(runs) > 1:
        metrics["auroc_runs"] = [run["auroc"] for run in runs]
        metrics["auroc_sd"] = float(np.std(metrics["auroc_runs"], ddof=1))
    return metrics


def compare_all(
    models: dict[str, Scored], baselines: dict[str, Scored], splits: Splits
) -> dict[str, Any]:
    """Compare the detectors with each other and with the baselines; the verdict is on the best of
    either."""
    rivals = find_rivals(baselines)
    test = {name: scored.test for name, scored in (models | rivals).items()}
    pairs = [*combinations(models, 2), *product(models, rivals)]
    comparisons = compare_pairs(
        splits.labels[splits.test], test, pairs, splits.questions[splits.test], splits.seed
    )
    val = [
        {name: mean_auroc(splits.labels[splits.val], scored.val) for name, scored in group.items()}
        for group in (models, rivals)
    ]
    return {"comparisons": comparisons, "verdict": find_verdict(comparisons, *val)}


def find_rivals(baselines: dict[str, Scored]) -> dict[str, Scored]:
    """The baselines to compare with: of several that rank the test rows in the same way the
    first."""
    rivals: dict[str, Scored] = {}
    for name, scored in baselines.items():
        known = any(
            same_ranking(scored.test.mean(0), other.test.mean(0)) for other in rivals.values()
        )
        if name not in NOT_COMPARED and not known:
            rivals[name] = scored
    return rivals


def read_truth(data: TrainingData) -> NDArray[np.float32] | None:
    """Read the column `score` of the test split (n_test,), of which labels are made; None where the
    store has none."""
    column = data.store.schema.columns.get("score")
    if column is None or kind_of(column) != KINDS["score"]:
        return None
    return data.store.read(data.splits.test, columns=["score"])["score"].float().numpy()


def label_sensitivity(
    scored: dict[str, Scored], truth: NDArray[np.float32], threshold: float
) -> dict[str, Any]:
    """Test AUROCs, nothing trained again, if label = 1 iff `truth` (n_test,) < threshold.

    Rows whose truth is NaN are left out; an AUROC is None where one class remains.
    """
    labels = label_scores(truth, threshold)
    known = labels != UNLABELLED
    labels = labels[known]
    both = 0 < labels.sum() < len(labels)
    areas = {
        name: mean_auroc(labels, one.test[:, known]) if both else None
        for name, one in scored.items()
    }
    return {
        "threshold": threshold,
        "rows": len(labels),
        "hallucinations": int(labels.sum()),
        "auroc": areas,
    }
