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
def test_reductions_of_each_trace(shape, dtype):
    """Whatever the shape of an item is. Of no token the sum is 0, and there is no mean and no
    largest value, or a mean of 0."""
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(7, *shape))).to(dtype)
    offsets = torch.tensor([0, 3, 3, 4, 7])
    parts = [values[a:b].float() for a, b in pairwise(offsets)]
    sums = torch.stack([part.sum(0) for part in parts])
    means = sums / torch.tensor([3, 0, 1, 3]).view(-1, *[1] * len(shape))
    largest = [part.amax(0) if len(part) else torch.full(shape, NAN) for part in parts]
    torch.testing.assert_close(sum_by_trace(values.float(), offsets), sums)
    torch.testing.assert_close(mean_by_trace(values, offsets), means, equal_nan=True)
    torch.testing.assert_close(mean_or_zero(values, offsets), means.nan_to_num())
    found = max_by_trace(values.float(), offsets)
    torch.testing.assert_close(found, torch.stack(largest), equal_nan=True)


def test_mean_over_answer_leaves_out_what_is_no_number(pack, traces):
    """NaN values do not count, each place of an item for itself; of the first tokens as many as are
    asked for, or as there are."""
    traces[0]["attn_diag"][2, 1, 0] = NAN
    column = pack(traces[:1])["attn_diag"]
    traces[0]["prompt_len"], traces[0]["answer_len"] = torch.tensor(1), torch.tensor(3)
    for n_tokens, stop in ((None, 4), (2, 3), (9, 4)):
        found = mean_over_answer(pack(traces[:1]), column, n_tokens)[0]
        expected = np.nanmean(column.values[1:stop].numpy(), axis=0)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


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
    """Traces without tokens, or without one that counts, have 0."""
    offsets = torch.tensor([0, 2, 2, 5])
    counted = torch.tensor([True, True, False, False, True])
    assert count_by_trace(counted, offsets).tolist() == [2, 0, 1]
    assert count_by_trace(~counted, offsets).tolist() == [0, 0, 2]
