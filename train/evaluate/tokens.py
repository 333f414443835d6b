"""Metrics of scores of tokens: do they find where in an answer the hallucination is?

NumPy arrays in, records out. Only tokens with a label count; a span is a maximal run of
neighbouring ones. The threshold of a method is the score with the largest F1 over the tokens of
validation, applied as chosen: hallucinated iff score >= threshold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.data.batches import TrainingData
from train.data.token_labels import find_unusable, has_token_labels, read_token_labels
from train.evaluate.intervals import auprc_interval, auroc_interval
from train.evaluate.metrics import Scores, auprc, auroc, check_scores
from train.evaluate.results import TokenCounts, TokenMetrics, mean_record

__all__ = [
    "TokenTruth",
    "best_f1_threshold",
    "describe_tokens",
    "largest_by_trace",
    "measure_tokens",
    "read_token_truth",
    "span_ends",
    "span_metrics",
]

TokenScores = NDArray[np.floating]  # of all tokens of a split
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class TokenTruth:
    """The labelled tokens of a split."""

    places: Integers  # int64 (n,): of each labelled token among all tokens of the split, ascending
    labels: Integers  # int64 (n,): 1 and 0
    traces: Integers  # int64 (n,): position of its trace among the traces of the split, ascending
    questions: Integers  # int64 (n_traces,): of each trace of the split
    trace_labels: Integers  # int64 (n_traces,): of each trace of the split

    def keep(self, chosen: Bools) -> "TokenTruth":
        """Some of the tokens (n,)."""
        kept = {name: getattr(self, name)[chosen] for name in ("places", "labels", "traces")}
        return replace(self, **kept)


def read_token_truth(data: TrainingData) -> dict[str, TokenTruth] | None:
    """Split ("val", "test") -> its labelled tokens; None where they cannot be judged."""
    if not has_token_labels(data) or find_unusable(data) is not None:
        return None
    truth = {}
    for split in ("val", "test"):
        tokens = read_token_labels(data, split)
        places = np.flatnonzero(tokens.is_labelled)
        truth[split] = TokenTruth(
            places,
            tokens.labels[places].astype(np.int64),
            tokens.traces[places],
            data.splits.questions[data.splits.rows(split)],
            data.splits.labels_of(split),
        )
    return truth


def describe_tokens(truth: TokenTruth) -> TokenCounts:
    starts, _ = span_ends(truth.labels == 1, truth)
    return TokenCounts(
        traces=len(np.unique(truth.traces)),
        tokens=len(truth.labels),
        hallucinated=int(truth.labels.sum()),
        spans=len(starts),
    )


def measure_tokens(
    val: Sequence[TokenScores], test: Sequence[TokenScores], truth: dict[str, TokenTruth]
) -> TokenMetrics:
    """Metrics of the scores of tokens, means over training runs; the threshold is of their mean.

    `val` and `test` have the scores (n_tokens,) of all tokens of the split for each run; tokens
    whose score is not finite are left out, and counted. `truth` is that of `read_token_truth`.
    A field `left_out` says why there are none.
    """
    for split, runs_of_split in (("val", val), ("test", test)):
        for scores in runs_of_split:
            labels = without_missing(scores, truth[split])[0].labels
            if len(np.unique(labels)) < 2:
                return TokenMetrics(left_out=f"{split} split: scores of one class of tokens only")
    runs = [measure_run(*scores, truth) for scores in zip(val, test, strict=True)]
    metrics = mean_record(runs)
    val_truth, mean_scores = without_missing(np.mean(val, axis=0), truth["val"])
    metrics.threshold = best_f1_threshold(val_truth.labels, mean_scores)
    kept = [without_missing(scores, truth["test"]) for scores in test]
    questions = kept[0][0].questions[kept[0][0].traces]
    of_runs = kept[0][0].labels, np.array([scores for _, scores in kept]), questions
    metrics.auroc_ci = auroc_interval(*of_runs)
    metrics.auprc_ci = auprc_interval(*of_runs)
    n_missing = len(truth["test"].labels) - len(kept[0][0].labels)
    metrics.tokens_without_score = n_missing or None
    return metrics


def measure_run(val: TokenScores, test: TokenScores, truth: dict[str, TokenTruth]) -> TokenMetrics:
    val_truth, val_scores = without_missing(val, truth["val"])
    test_truth, test_scores = without_missing(test, truth["test"])
    threshold = best_f1_threshold(val_truth.labels, val_scores)
    return TokenMetrics(
        val_auroc=auroc(val_truth.labels, val_scores),
        auroc=auroc(test_truth.labels, test_scores),
        auprc=auprc(test_truth.labels, test_scores),
        base_rate=float(test_truth.labels.mean()),
        **span_metrics(test_scores >= threshold, test_truth),
        threshold=threshold,
        trace_auroc=trace_auroc(test_scores, test_truth),
    )


def without_missing(scores: TokenScores, truth: TokenTruth) -> tuple[TokenTruth, Scores]:
    """The tokens with a label and a score, and their scores as float64."""
    of_labelled = scores[truth.places].astype(np.float64)
    is_there = np.isfinite(of_labelled)
    return truth.keep(is_there), of_labelled[is_there]


def best_f1_threshold(labels: Integers, scores: Scores) -> float:
    """The score t whose rule `score >= t` has the largest F1 of tokens; the highest of several."""
    check_scores(labels, scores)
    thresholds, rank = np.unique(-scores, return_inverse=True)
    n_found = np.cumsum(np.bincount(rank, labels))
    n_predicted = np.cumsum(np.bincount(rank))
    f1 = 2 * n_found / (n_predicted + labels.sum())
    return float(-thresholds[np.argmax(f1)])


def span_metrics(predicted: Bools, truth: TokenTruth) -> dict[str, Any]:
    """How well predicted spans (n,) of tokens and annotated ones overlap.

    `f1` is of tokens: the F1 of RAGTruth's span detection (arXiv:2401.00396) with tokens in place
    of characters. `span_f1` is of spans, one counting as found if it shares a token with one of the
    others. `iou` is the intersection over the union of the tokens of a trace, 1 where both are
    empty, the mean over traces (Mu-SHROOM's, arXiv:2504.11975, with tokens in place of characters).
    """
    actual = truth.labels == 1
    both = predicted & actual
    return {
        "f1": f1_of(both.sum(), predicted.sum(), both.sum(), actual.sum()),
        "span_f1": f1_of(
            n_overlapping(predicted, actual, truth),
            len(span_ends(predicted, truth)[0]),
            n_overlapping(actual, predicted, truth),
            len(span_ends(actual, truth)[0]),
        ),
        "iou": mean_iou(predicted, actual, truth),
    }


def f1_of(n_right: int, n_predicted: int, n_found: int, n_actual: int) -> float:
    """Harmonic mean of n_right / n_predicted and n_found / n_actual; 0 if nothing was found."""
    if n_right == 0 or n_found == 0:
        return 0.0
    precision = n_right / n_predicted
    recall = n_found / n_actual
    return float(2 * precision * recall / (precision + recall))


def span_ends(marked: Bools, truth: TokenTruth) -> tuple[Integers, Integers]:
    """Where the spans of marked tokens (n,) begin, and where they end, each (n_spans,).

    A span ends where a token is not marked, has no label, or is of another trace.
    """
    adjoins = (np.diff(truth.places) == 1) & (np.diff(truth.traces) == 0)  # the next token
    goes_on = marked[:-1] & marked[1:] & adjoins
    starts = np.flatnonzero(marked & ~np.append(False, goes_on)[: len(marked)])
    stops = np.flatnonzero(marked & ~np.append(goes_on, False)[: len(marked)]) + 1
    return starts, stops


def n_overlapping(marked: Bools, other: Bools, truth: TokenTruth) -> int:
    """Number of spans of marked tokens that hold a token of the others."""
    starts, stops = span_ends(marked, truth)
    n_before = np.append(0, np.cumsum(other))
    return int(np.sum(n_before[stops] > n_before[starts]))


def mean_iou(predicted: Bools, actual: Bools, truth: TokenTruth) -> float:
    _, trace = np.unique(truth.traces, return_inverse=True)
    intersection = np.bincount(trace, predicted & actual)
    union = np.bincount(trace, predicted | actual)
    ratio = np.ones(len(union))
    np.divide(intersection, union, out=ratio, where=union > 0)
    return float(ratio.mean())


def trace_auroc(scores: Scores, truth: TokenTruth) -> float | None:
    """AUROC of the largest score of each trace for the labels of traces; None for one class."""
    traces, largest = largest_by_trace(scores, truth)
    labels = truth.trace_labels[traces]
    return auroc(labels, largest) if len(np.unique(labels)) == 2 else None


def largest_by_trace(scores: Scores, truth: TokenTruth) -> tuple[Integers, Scores]:
    """The traces that have a token, ascending, and the largest score of each."""
    traces, starts = np.unique(truth.traces, return_index=True)
    return traces, np.maximum.reduceat(scores, starts)
