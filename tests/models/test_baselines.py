"""Baselines: their features, what they are fitted on, and what validation chooses."""

import numpy as np
import pytest
import torch

from models import BASELINES
from models.baselines import (
    first_logprob,
    max_entropy,
    mean_entropy,
    mean_logprob,
    mean_margin,
    min_logprob,
    perplexity,
    sum_logprob,
    uncertainty,
)


def test_first_token_without_a_logprob_is_left_out(pack, traces):
    """A trace without a prompt starts with NaN; the mean is over the others."""
    traces[0]["prompt_len"], traces[0]["answer_len"] = torch.tensor(0), torch.tensor(5)
    found = mean_logprob(pack(traces))[0, 0, 0]
    torch.testing.assert_close(found, traces[0]["logprob"][1:].mean())


@pytest.mark.parametrize(
    ("features", "column", "reduce"),
    [
        (mean_logprob, "logprob", np.mean),
        (perplexity, "logprob", lambda numbers: np.exp(-np.mean(numbers))),
        (mean_entropy, "entropy", np.mean),
        (sum_logprob, "logprob", sum),
        (min_logprob, "logprob", min),
        (first_logprob, "logprob", lambda numbers: numbers[0]),
        (max_entropy, "entropy", max),
    ],
)
def test_reductions_of_the_answer_equal_python(features, column, reduce, pack, traces, set_answer):
    """Over the answer's tokens and no others; NaN for an answer of no tokens."""
    expected = []
    for trace, (start, n) in zip(traces, [(1, 3), (1, 0), (4, 5), (1, 1), (3, 0)], strict=True):
        set_answer(trace, start, n)
        numbers = [float(trace[column][t]) for t in range(start, start + n)]
        expected.append(reduce(numbers) if n else np.nan)
    np.testing.assert_allclose(features(pack(traces))[:, 0, 0], expected, rtol=1e-6)


def test_margin_of_the_two_likeliest_tokens(pack, traces, set_answer):
    """The mean of the differences of their probabilities; NaN where only one is kept."""
    for trace in traces:
        set_answer(trace, 1, len(trace["logprob"]) - 1)
    expected = []
    for trace in traces:
        best = np.exp(trace["topk_logprob"][1:, :2].double().numpy())
        expected.append(np.mean(best[:, 0] - best[:, 1]) if len(best) else np.nan)
    np.testing.assert_allclose(mean_margin(pack(traces))[:, 0, 0], expected, rtol=1e-5)
    for trace in traces:
        trace["topk_logprob"] = trace["topk_logprob"][:, :1]
    assert mean_margin(pack(traces)).isnan().all()


def five_numbers(values):
    """Sum, mean, least, largest and first of some numbers; NaN without any."""
    if not len(values):
        return [np.nan] * 5
    return [sum(values), sum(values) / len(values), min(values), max(values), values[0]]


def test_uncertainty_is_all_of_the_numbers(pack, traces, set_answer):
    """Five of each column's over the answer, then its length and the log-probability of its end."""
    answers = [(1, 3), (1, 0), (4, 5), (1, 1), (3, 0)]
    for trace, answer in zip(traces, answers, strict=True):
        set_answer(trace, *answer)
    found = uncertainty(pack(traces))
    assert found.shape == (5, 1, 22)
    for trace, (start, n), numbers in zip(traces, answers, found[:, 0], strict=True):
        candidates = np.exp(trace["topk_logprob"].double().numpy())
        columns = [
            trace["logprob"].double().numpy(),
            trace["entropy"].double().numpy(),
            candidates[:, 0] - candidates[:, 1],
            candidates.sum(axis=1),
        ]
        of_answer = [column[start : start + n] for column in columns]
        expected = [number for values in of_answer for number in five_numbers(values)]
        expected += [n, float(trace["eos_logprob"])]
        np.testing.assert_allclose(numbers, expected, rtol=1e-5)


def test_uncertainty_without_the_end(pack, traces):
    """A store without its log-probability has NaN there, and the rest as with it."""
    batch = pack(traces)
    expected = uncertainty(batch)
    del batch.columns["eos_logprob"]
    found = uncertainty(batch)
    assert found[:, :, -1].isnan().all()
    torch.testing.assert_close(found[:, :, :-1], expected[:, :, :-1], equal_nan=True)


def test_majority_is_the_share_of_hallucinations_in_train():
    """A constant gets the base rate of the training labels as its probability."""
    labels = np.array([1, 1, 1, 0])
    fitted = BASELINES["majority"].fit(
        torch.zeros(4, 1, 1), labels, torch.zeros(2, 1, 1), np.array([0, 1])
    )
    found = fitted.predict(torch.zeros(101, 1, 1))
    np.testing.assert_allclose(found, 0.75, atol=1e-4)
    assert len(set(found)) == 1  # bit for bit, so that it ranks nothing
