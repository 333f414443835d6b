"""Means over the tokens of packed traces, against loops."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from models.tokens import (
    answer_or_all_tokens,
    count_by_trace,
    keep_tokens,
    max_by_trace,
    mean_by_trace,
    mean_or_zero,
    mean_over_answer,
    positions,
    softmax_by_trace,
    sum_by_trace,
    trace_of_token,
)
from store import Ragged

NAN = float("nan")


def test_where_a_token_stands():
    """Trace and position of each token, traces of no tokens included."""
    offsets = torch.tensor([0, 2, 2, 5])
    assert trace_of_token(offsets).tolist() == [0, 0, 2, 2, 2]
    assert positions(offsets).tolist() == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("shape", [(), (3,), (3, 2)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_mean_by_trace_is_the_mean_of_each(shape, dtype):
    """Whatever the shape of an item is; NaN for a trace of no tokens."""
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(7, *shape))).to(dtype)
    offsets = torch.tensor([0, 3, 3, 4, 7])
    parts = [values[a:b].float() for a, b in pairwise(offsets)]
    expected = torch.stack(
        [part.mean(dim=0) if len(part) else torch.full(shape, NAN) for part in parts]
    )
    torch.testing.assert_close(mean_by_trace(values, offsets), expected, equal_nan=True)


def test_mean_over_answer_leaves_out_what_is_no_number(pack, traces, set_answer):
    """NaN values do not count, each place of an item for itself."""
    batch = pack(traces[:1])
    column = batch["attn_diag"]
    values = column.values.clone()
    values[2, 1, 0] = NAN
    set_answer(traces[0], 2, 3)
    found = mean_over_answer(pack(traces[:1]), column._replace(values=values))[0]
    np.testing.assert_allclose(found, np.nanmean(values[2:5].numpy(), axis=0), rtol=1e-6)


def test_mean_over_the_first_tokens_of_an_answer(pack, traces, set_answer):
    """As many as are asked for, or as there are."""
    set_answer(traces[0], 2, 3)
    column = pack(traces[:1])["attn_diag"]
    for n_tokens, stop in ((1, 3), (2, 4), (9, 5)):
        found = mean_over_answer(pack(traces[:1]), column, n_tokens)[0]
        torch.testing.assert_close(found, column.values[2:stop].mean(dim=0))


@pytest.mark.parametrize(("prompt_len", "answer_len"), [(-1, 3), (-1, -1), (2, 0), (5, 0), (5, 4)])
def test_no_answer_has_no_mean(prompt_len, answer_len, pack, traces, set_answer):
    """A prompt of unknown length (negative), an empty answer, and one that was cut off."""
    set_answer(traces[0], prompt_len, answer_len)
    assert mean_over_answer(pack(traces[:1]), pack(traces[:1])["attn_diag"]).isnan().all()


@pytest.mark.parametrize("shape", [(), (3,)])
def test_sum_and_maximum_of_each_trace(shape):
    """Of no token the sum is 0, and there is no largest value."""
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(7, *shape))).float()
    offsets = torch.tensor([0, 3, 3, 4, 7])
    parts = [values[a:b] for a, b in pairwise(offsets)]
    sums = torch.stack([part.sum(dim=0) for part in parts])
    largest = [part.amax(dim=0) if len(part) else torch.full(shape, NAN) for part in parts]
    torch.testing.assert_close(sum_by_trace(values, offsets), sums)
    found = max_by_trace(values, offsets)
    torch.testing.assert_close(found, torch.stack(largest), equal_nan=True)


def test_softmax_of_each_trace():
    """It adds up to 1 in each trace that has tokens, for scores of any size."""
    scores = torch.tensor([1.0, 2.0, 3.0, 500.0, -500.0, 500.0])
    offsets = torch.tensor([0, 3, 3, 6])
    expected = torch.cat([scores[:3].softmax(0), scores[3:].softmax(0)])
    torch.testing.assert_close(softmax_by_trace(scores, offsets), expected)


def test_answers(pack, traces, set_answer):
    """Of an unknown prompt all tokens are the answer."""
    traces = [traces[0], traces[4], traces[3], traces[1]]  # 5, 7, 2 and 1 tokens
    for trace, lengths in zip(traces, [(2, 2), (-1, -1), (2, 0), (0, 1)], strict=True):
        set_answer(trace, *lengths)
    batch = pack(traces)
    offsets = batch.ragged("logprob").offsets
    in_answer = [0, 0, 1, 1, 0] + [1] * 7 + [0, 0] + [1]
    assert answer_or_all_tokens(batch, offsets).int().tolist() == in_answer


def test_kept_tokens_stay_with_their_traces():
    """A trace may lose all of its tokens."""
    column = Ragged(torch.arange(12.0).view(6, 2), torch.tensor([0, 3, 5, 5, 6]))
    keep = torch.tensor([True, False, True, False, False, True])
    kept = keep_tokens(column, keep)
    assert kept.offsets.tolist() == [0, 2, 2, 2, 3]
    assert kept.values.tolist() == [[0, 1], [4, 5], [10, 11]]


def test_tokens_are_counted_by_trace():
    """Traces without tokens, or without one that counts, have 0 and a mean of 0."""
    offsets = torch.tensor([0, 2, 2, 5])
    counted = torch.tensor([True, True, False, False, True])
    assert count_by_trace(counted, offsets).tolist() == [2, 0, 1]
    assert count_by_trace(~counted, offsets).tolist() == [0, 0, 2]
    means = mean_or_zero(torch.arange(10.0).view(5, 2).half(), offsets)
    assert means.tolist() == [[1.0, 2.0], [0.0, 0.0], [6.0, 7.0]]
    assert means.dtype == torch.float32
