"""LLM-Check and AttnLogDet: log-determinants of whole maps and of Gram matrices; one number, the
entropy of the first block, of a map."""

import numpy as np
import torch

from models.attention_entropy import first_block
from models.attn_logdet import every_head
from models.llm_check import FLOOR, RIDGE, attention_score, hidden_score


def test_scores_are_log_determinants(pack, traces):
    """numpy.linalg.slogdet of each map, by token: of each head, and the mean over heads."""
    found, by_head = attention_score(pack(traces)), every_head(pack(traces))
    assert found.shape == (5, 3, 1)
    assert by_head.shape == (5, 1, 3 * 2)
    for trace, scores, heads in zip(traces, found[:, :, 0], by_head[:, 0], strict=True):
        sign, logdet = np.linalg.slogdet(trace["maps"])  # (L, H)
        assert (sign == 1).all()
        logdet /= trace["maps"].shape[-1]
        np.testing.assert_allclose(scores, logdet.mean(axis=1), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(heads, logdet.ravel(), rtol=1e-5, atol=1e-6)


def test_the_entropy_of_the_first_block(pack, traces, set_answer):
    """The mean over heads, of the answer's last token alone, even where the trace goes on."""
    trace = traces[2]
    set_answer(trace, 3, 4)
    row = trace["maps"][0, :, 6, :7]
    expected = -(row * np.log(row)).sum(1).mean()
    np.testing.assert_allclose(first_block(pack([trace])), [[[expected]]], rtol=1e-5)


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
    """Of the answer's states of each layer, also where there are more of them than numbers in one,
    and where they are equal: then the ridge is on the other dimensions."""
    answers = [(1, 4), (1, 0), (0, 9), (1, 1), (3, 4)]
    for trace, answer in zip(traces, answers, strict=True):
        set_answer(trace, *answer)
    traces[0]["hidden_states"] = traces[0]["hidden_states"][:1].expand(5, -1, -1).contiguous()
    found = hidden_score(pack(traces))
    assert found.shape == (5, 3, 1)
    for trace, (start, n), scores in zip(traces, answers, found[:, :, 0], strict=True):
        states = trace["hidden_states"][start : start + n].double().numpy()
        expected = [
            mean_log_singular_value(states[:, layer]) if n else np.nan for layer in range(3)
        ]
        np.testing.assert_allclose(scores, expected, rtol=1e-5)
