"""LLM-Check: log-determinants of whole maps and of Gram matrices, and scores of logits."""

import math

import numpy as np
import pytest
import torch

from models.baselines import max_entropy, perplexity
from models.llm_check import FLOOR, RIDGE, attention_score, hidden_score, logit_scores


def test_score_is_the_log_determinant(pack, traces):
    """The score of a layer is the mean over heads of numpy.linalg.slogdet, by token."""
    found = attention_score(pack(traces))
    assert found.shape == (5, 3, 1)
    for trace, scores in zip(traces, found[:, :, 0], strict=True):
        sign, logdet = np.linalg.slogdet(trace["maps"])  # (L, H)
        assert (sign == 1).all()
        np.testing.assert_allclose(
            scores, (logdet / trace["maps"].shape[-1]).mean(axis=1), rtol=1e-5, atol=1e-6
        )


def test_one_token_attends_to_itself(pack, traces):
    """log 1 = 0."""
    assert not attention_score(pack(traces[1:2])).any()


def test_what_half_precision_rounds_to_zero(pack, traces):
    """A diagonal of 0 counts as the smallest number that float16 holds."""
    assert torch.tensor(FLOOR).half() > 0
    assert torch.tensor(FLOOR / 2).half() == 0
    traces[1]["attn_diag"] = torch.zeros(1, 3, 2).half()
    np.testing.assert_allclose(attention_score(pack(traces[1:2])), np.log(FLOOR))


def mean_log_singular_value(states):
    """Of the Gram matrix of states (n, d) in float64, each centred over its own numbers."""
    n, d = states.shape
    centre = np.eye(d) - np.ones((d, d)) / d
    gram = states @ centre @ states.T + RIDGE * np.eye(n)
    return np.log(np.linalg.svd(gram, compute_uv=False)).mean()


def test_hidden_score_is_the_mean_log_singular_value(pack, traces, set_answer):
    """Of the answer's states of each layer, also where there are more of them than numbers in
    one."""
    answers = [(1, 4), (1, 0), (0, 9), (1, 1), (3, 4)]
    for trace, answer in zip(traces, answers, strict=True):
        set_answer(trace, *answer)
    found = hidden_score(pack(traces))
    assert found.shape == (5, 3, 1)
    for trace, (start, n), scores in zip(traces, answers, found[:, :, 0], strict=True):
        states = trace["hidden_states"][start : start + n].double().numpy()
        expected = [
            mean_log_singular_value(states[:, layer]) if n else np.nan for layer in range(3)
        ]
        np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_hidden_score_of_equal_states(pack, traces):
    """A Gram matrix of one rank has the ridge on its other dimensions."""
    traces[0]["hidden_states"] = traces[0]["hidden_states"][:1].expand(5, -1, -1).contiguous()
    state = traces[0]["hidden_states"][0, 0].double().numpy()
    norm = ((state - state.mean()) ** 2).sum()
    expected = (math.log(4 * norm + RIDGE) + 3 * math.log(RIDGE)) / 4
    assert hidden_score(pack(traces[:1]))[0, 0, 0].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("prompt_len", [-1, 5])
def test_hidden_score_without_an_answer(prompt_len, pack, traces, set_answer):
    """NaN for a prompt of unknown length, and for one that is the whole trace."""
    set_answer(traces[0], prompt_len, 3)
    assert hidden_score(pack(traces[:1])).isnan().all()


@pytest.mark.parametrize("n_candidates", [1, 3, 60])
def test_logit_scores_equal_a_loop(n_candidates, pack, traces, set_answer):
    """Perplexity, largest entropy, and the mean entropy over at most 50 candidates,
    renormalised."""
    rng = np.random.default_rng(0)
    answers = [(1, 4), (1, 0), (2, 5), (1, 1), (3, 4)]
    for trace, answer in zip(traces, answers, strict=True):
        set_answer(trace, *answer)
        falling = -np.sort(5 * rng.random((len(trace["logprob"]), n_candidates)), axis=1)
        trace["topk_logprob"] = torch.from_numpy(falling).half()
        trace["topk_logprob"][0] = float("nan")
    batch = pack(traces)
    found = logit_scores(batch)
    assert found.shape == (5, 3, 1)
    torch.testing.assert_close(found[:, :1], perplexity(batch), equal_nan=True)
    torch.testing.assert_close(found[:, 1:2], max_entropy(batch), equal_nan=True)
    for trace, (start, n), score in zip(traces, answers, found[:, 2, 0], strict=True):
        entropies = []
        for logprobs in trace["topk_logprob"][start : start + n, :50].double().numpy():
            shares = np.exp(logprobs) / np.exp(logprobs).sum()
            entropies.append(-sum(p * math.log(p) for p in shares))
        expected = np.mean(entropies) if n else np.nan
        np.testing.assert_allclose(score, expected, rtol=1e-4, atol=1e-6)


def test_a_candidate_of_no_probability_adds_nothing(pack, traces):
    """Half precision has none for it; 0 log 0 is 0."""
    traces[0]["topk_logprob"][:, -1] = -float("inf")
    assert logit_scores(pack(traces[:1])).isfinite().all()
