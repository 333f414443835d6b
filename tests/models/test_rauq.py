"""RAUQ: against a loop over layers and tokens of whole maps."""

import math

import numpy as np
import torch

from models.rauq import recurrent_uncertainty


def uncertainty_by_hand(maps, logprob, prompt_len, answer_len, alpha):
    """The algorithm of the paper, token by token, over maps (L, H, T, T)."""
    n_layers, n_heads = maps.shape[:2]
    answer = list(range(prompt_len, prompt_len + answer_len))
    by_layer = []
    for layer in range(n_layers // 3, min(n_layers, math.ceil(2 * n_layers / 3) + 1)):
        means = [
            np.mean([maps[layer, head, t, t - 1] for t in answer[1:]] or [0])
            for head in range(n_heads)
        ]
        head = int(np.argmax(means))
        confidences = [math.exp(logprob[answer[0]])]
        for t in answer[1:]:
            carried = maps[layer, head, t, t - 1] * confidences[-1]
            confidences.append(alpha * math.exp(logprob[t]) + (1 - alpha) * carried)
        by_layer.append(-np.mean(np.log(confidences)))
    return max(by_layer)


def test_scores_equal_the_loop(pack, traces, set_answer):
    """Long and short answers, also of one token, and answers behind which the trace goes on."""
    answers = [(1, 4), None, (3, 5), (1, 1), (2, 2)]
    chosen = [(trace, answer) for trace, answer in zip(traces, answers, strict=True) if answer]
    for trace, answer in chosen:
        set_answer(trace, *answer)
    alphas = (0.0, 0.2, 0.5, 1.0)
    found = recurrent_uncertainty(pack([trace for trace, _ in chosen]), alphas)
    assert found.shape == (4, 4, 1)
    expected = [
        [
            uncertainty_by_hand(trace["maps"], trace["logprob"].tolist(), *answer, alpha)
            for alpha in alphas
        ]
        for trace, answer in chosen
    ]
    np.testing.assert_allclose(found[:, :, 0], expected, rtol=1e-5)


def test_without_a_prompt_the_answer_starts_at_token_1(pack, traces):
    """Nothing predicted token 0, so it has no confidence to begin with."""
    traces[0]["attn_prev"] = torch.full((5, 3, 2), 0.25)
    with_prompt = traces[0] | {"prompt_len": torch.tensor(1), "answer_len": torch.tensor(4)}
    without = traces[0] | {"prompt_len": torch.tensor(0), "answer_len": torch.tensor(5)}
    found = recurrent_uncertainty(pack([with_prompt, without]))
    assert found[0].isfinite().all()
    assert (found[0] == found[1]).all()


def test_a_token_of_no_probability_is_finite(pack, traces):
    """A confidence that float32 rounds to 0 has a logarithm all the same."""
    traces[0]["logprob"] = torch.tensor([float("nan"), -300.0, -300.0, -300.0, -300.0])
    assert recurrent_uncertainty(pack(traces[:1])).isfinite().all()
