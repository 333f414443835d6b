"""Metrics of tokens and spans against loops, and against scikit-learn's areas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from train.evaluate.results import TokenCounts, TokenMetrics
from train.evaluate.tokens import (
    TokenTruth,
    best_f1_threshold,
    describe_tokens,
    largest_by_trace,
    measure_tokens,
    span_ends,
    span_metrics,
)

TOKENS = st.lists(  # traces of (label, prediction) tokens
    st.lists(st.tuples(st.sampled_from([-1, 0, 1]), st.booleans()), min_size=1, max_size=8),
    min_size=1,
    max_size=5,
)


def make_truth(traces):
    """The labelled tokens of traces, each a list of labels."""
    labels = np.concatenate(traces)
    places = np.flatnonzero(labels >= 0)
    owner = np.repeat(np.arange(len(traces)), [len(one) for one in traces])
    questions = np.arange(len(traces))
    trace_labels = np.array([int(1 in one) for one in traces])
    return TokenTruth(places, labels[places], owner[places], questions, trace_labels)


def spans_by_loop(marked):
    """Sets of positions: maximal runs of True."""
    spans, current = [], set()
    for position, is_marked in enumerate([*marked, False]):
        if is_marked:
            current.add(position)
        elif current:
            spans.append(current)
            current = set()
    return spans


def by_loops(traces):
    """F1 of tokens, F1 of spans and mean IoU of traces of (label, prediction) tokens."""
    n_both = n_predicted = n_actual = 0
    right, predicted_spans, found, actual_spans, ratios = 0, 0, 0, 0, []
    for trace in traces:
        predicted = [label >= 0 and one for label, one in trace]
        actual = [label == 1 for label, _ in trace]
        a = {i for i, one in enumerate(predicted) if one}
        b = {i for i, one in enumerate(actual) if one}
        n_both += len(a & b)
        n_predicted += len(a)
        n_actual += len(b)
        ours, theirs = spans_by_loop(predicted), spans_by_loop(actual)
        predicted_spans += len(ours)
        actual_spans += len(theirs)
        right += sum(any(one & other for other in theirs) for one in ours)
        found += sum(any(one & other for other in ours) for one in theirs)
        if any(label >= 0 for label, _ in trace):
            ratios.append(len(a & b) / len(a | b) if a | b else 1.0)
    f1 = 2 * n_both / (n_predicted + n_actual) if n_both else 0.0
    precision = right / predicted_spans if predicted_spans else 0.0
    recall = found / actual_spans if actual_spans else 0.0
    span_f1 = 2 * precision * recall / (precision + recall) if precision and recall else 0.0
    return {"f1": f1, "span_f1": span_f1, "iou": float(np.mean(ratios))}


@given(TOKENS)
def test_overlap_of_spans_against_loops(traces):
    """Whatever the labels and predictions: no spans, whole traces, tokens without a label."""
    truth = make_truth([np.array([label for label, _ in trace]) for trace in traces])
    if not len(truth.labels):
        return
    predicted = np.concatenate([[one for _, one in trace] for trace in traces])[truth.places]
    assert span_metrics(predicted, truth) == pytest.approx(by_loops(traces))
    starts, stops = span_ends(predicted, truth)
    marked = [[label >= 0 and one for label, one in trace] for trace in traces]
    expected = [len(span) for trace in marked for span in spans_by_loop(trace)]
    assert (stops - starts).tolist() == expected


def test_spans_end_with_their_trace():
    """Two neighbouring hallucinated tokens of two traces are two spans."""
    truth = make_truth([np.array([-1, 0, 1]), np.array([1, 0]), np.array([1, -1, 1])])
    assert describe_tokens(truth) == TokenCounts(traces=3, tokens=6, hallucinated=4, spans=4)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), min_size=2, max_size=20))
def test_the_threshold_has_the_best_f1(tokens):
    """No other score gives a larger one, and a higher score of the same F1 does not exist."""
    labels, scores = map(np.array, zip(*tokens, strict=True))
    if len(set(labels)) < 2:
        return
    threshold = best_f1_threshold(labels, scores.astype(float))
    by_threshold = {t: f1_score(labels, scores >= t) for t in scores}
    best = max(by_threshold.values())
    assert threshold == max(t for t, f1 in by_threshold.items() if f1 == pytest.approx(best))


def test_intervals_are_of_questions_not_tokens():
    """Copies of one token in a question say nothing more: the intervals hardly shrink."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 40)
    scores = labels + 1.5 * rng.normal(size=40)
    widths = []
    for copies in (1, 20):
        truth = make_truth([np.full(copies, label) for label in labels])
        copied = [np.repeat(scores, copies)]
        entry = measure_tokens(copied, copied, {"val": truth, "test": truth})
        widths.append([np.ptp(entry.auroc_ci), np.ptp(entry.auprc_ci)])
        assert entry.auroc_ci[0] < roc_auc_score(labels, scores) < entry.auroc_ci[1]
        assert entry.auprc_ci[0] < average_precision_score(labels, scores) < entry.auprc_ci[1]
    assert widths[0] == pytest.approx(widths[1], rel=0.05)


def test_everything_of_a_method():
    """Means over the runs; the threshold of each is chosen on validation; a trace has the largest
    score of its labelled tokens."""
    rng = np.random.default_rng(2)
    truth, scores = {}, {}
    for split in ("val", "test"):
        traces = [rng.integers(0, 2, 6) * rng.integers(0, 2) for _ in range(30)]
        labels = np.concatenate([np.append(-1, one) for one in traces])
        truth[split] = make_truth([np.append(-1, one) for one in traces])
        scores[split] = [labels + rng.normal(size=len(labels)) for _ in range(2)]
    entry = measure_tokens(scores["val"], scores["test"], truth)
    mean_scores = np.mean(scores["val"], axis=0)[truth["val"].places]
    assert entry.threshold == best_f1_threshold(truth["val"].labels, mean_scores)
    expected = {"auroc": [], "f1": [], "trace_auroc": []}
    for val, test in zip(scores["val"], scores["test"], strict=True):
        of_labelled = test[truth["test"].places]
        threshold = best_f1_threshold(truth["val"].labels, val[truth["val"].places])
        expected["auroc"].append(roc_auc_score(truth["test"].labels, of_labelled))
        expected["f1"].append(f1_score(truth["test"].labels, of_labelled >= threshold))
        owners = truth["test"].traces
        largest = [max(of_labelled[owners == trace]) for trace in np.unique(owners)]
        found_traces, found = largest_by_trace(of_labelled, truth["test"])
        assert found.tolist() == largest
        of_traces = truth["test"].trace_labels[found_traces]
        expected["trace_auroc"].append(roc_auc_score(of_traces, largest))
    for key, values in expected.items():
        assert getattr(entry, key) == pytest.approx(np.mean(values))
    assert entry.auroc_ci[0] < entry.auroc < entry.auroc_ci[1]
    assert entry.auprc_ci[0] < entry.auprc < entry.auprc_ci[1]
    assert entry.tokens_without_score is None


def test_tokens_without_a_score_are_left_out_and_counted():
    """NaN, as at a token that nothing predicted; nothing is judged where a class has no score."""
    traces = [np.array([1, 0, 0, 1])] * 4
    truth = {"val": make_truth(traces), "test": make_truth(traces)}
    scores = np.tile([np.nan, 0.1, 0.2, 0.9], 4)
    entry = measure_tokens([scores], [scores], truth)
    assert entry.tokens_without_score == 4
    assert entry.auroc == 1
    assert entry.f1 == 1
    nothing = np.where(np.tile([1, 0, 0, 1], 4), np.nan, 0.5)
    said = "test split: scores of one class of tokens only"
    assert measure_tokens([scores], [nothing], truth) == TokenMetrics(left_out=said)
