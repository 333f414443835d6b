"""Lookback Lens: from one column, ratios of means over whole maps."""

import numpy as np
import pytest
import torch

from models.lookback_lens import context_ratios, lookback_ratios


def mean_ratio(maps, prompt_len, answer_len):
    """Mean over the answer's tokens of the lookback ratio, (L * H,)."""
    ratios = []
    for t in range(prompt_len, prompt_len + answer_len):
        on_prompt = maps[:, :, t, :prompt_len].mean(axis=2)
        on_answer = maps[:, :, t, prompt_len : t + 1].mean(axis=2)
        ratios.append(on_prompt / (on_prompt + on_answer))
    return np.mean(ratios, axis=0).ravel()


@pytest.mark.parametrize("prompt_len", [1, 2, 3])
def test_ratios_equal_a_loop_over_tokens(prompt_len, pack, traces, set_answer):
    """The features are the means of explicit maps, layer by layer and head by head."""
    longer = [trace for trace in traces if len(trace["logprob"]) > prompt_len]
    for trace in longer:
        set_answer(trace, prompt_len, len(trace["logprob"]) - prompt_len)
    found = lookback_ratios(pack(longer))
    expected = [mean_ratio(trace["maps"], prompt_len, int(trace["answer_len"])) for trace in longer]
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-4)


def test_what_follows_the_answer_does_not_count(pack, traces, set_answer):
    """The answer is `answer_len` tokens, even where the trace goes on."""
    set_answer(traces[2], 3, 2)
    np.testing.assert_allclose(
        lookback_ratios(pack(traces[2:3]))[0, 0], mean_ratio(traces[2]["maps"], 3, 2), rtol=1e-4
    )


@pytest.mark.parametrize(("prompt_len", "answer_len"), [(-1, 5), (0, 5), (5, 0)])
def test_nan_without_prompt_or_answer(prompt_len, answer_len, pack, traces, set_answer):
    """An unknown prompt (negative), none at all, and an empty answer have no ratio; their
    neighbours do."""
    set_answer(traces[0], prompt_len, answer_len)
    found = lookback_ratios(pack(traces[:3]))
    assert found[0].isnan().all()
    assert found[1].isnan().all()  # one token, which is the prompt
    assert found[2].isfinite().all()


def test_mass_rounded_above_one_stays_a_ratio(pack, traces):
    """Half precision may make the prompt's share a little more than all there is."""
    traces[0]["attn_pmass"] += 0.001
    found = lookback_ratios(pack(traces[:1]))
    assert ((found >= 0) & (found <= 1)).all()


def test_ratios_of_the_context_equal_a_loop_over_tokens(pack, traces, set_answer):
    """Between means over its tokens and over the answer's; the rest of the prompt is in neither."""
    trace = traces[2]
    set_answer(trace, 5, 4)
    maps = trace["maps"]
    trace["attn_cmass"] = torch.from_numpy(maps[..., 1:4].sum(3).transpose(2, 0, 1).copy())
    trace["context_len"] = torch.tensor(3)
    ratios = []
    for t in range(5, 9):
        on_context = maps[:, :, t, 1:4].mean(axis=2)
        on_answer = maps[:, :, t, 5 : t + 1].mean(axis=2)
        ratios.append(on_context / (on_context + on_answer))
    found = context_ratios(pack([trace]))[0, 0]
    np.testing.assert_allclose(found, np.mean(ratios, axis=0).ravel(), rtol=1e-4)


def test_nan_without_a_context(pack, traces):
    """Its mass is not a number then."""
    traces[0]["attn_cmass"] *= torch.nan
    traces[0]["context_len"] = torch.tensor(0)
    found = context_ratios(pack(traces[::2]))
    assert found[0].isnan().all()
    assert found[1:].isfinite().all()
