"""LOS-Net: against the equations of the paper, a step and a head at a time."""

import numpy as np
import pytest
import torch
from plain import array, attention, linear, normalise, span_of

from models.los_net import MAX_TOKENS, LosNet, read_signature

NAN = float("nan")
LABELS = torch.tensor([1, 0, 1, 0, 1])


def plain_steps(trace):
    """Of each step: standardised candidates, the standardised probability of its token, the
    log-probabilities of both, and the token's rank."""
    steps = []
    for i in span_of(trace):
        logprob = float(trace["logprob"][i])
        others = trace["topk_logprob"][i].double().numpy()
        p = np.exp(others)
        if np.isnan(logprob) or np.isnan(p).any():
            continue
        mean, spread = p.mean(), p.std(ddof=1)
        ids = trace["topk_id"][i].tolist()
        token = int(trace["tokens"][i])
        rank = ids.index(token) if token in ids else len(ids)
        logprobs = np.maximum([logprob, *others], -20)
        steps.append(((p - mean) / spread, (np.exp(logprob) - mean) / spread, logprobs, rank))
    return steps[:MAX_TOKENS]


def plain_block(block, rows):
    """Normalisation before the sums, ReLU between the linear maps."""
    normed = [normalise(block.norm1, row) for row in rows]
    attended = attention(block.self_attn, normed)
    x = [a + b for a, b in zip(rows, attended, strict=True)]
    between = [np.maximum(linear(block.linear1, normalise(block.norm2, row)), 0) for row in x]
    back = [linear(block.linear2, row) for row in between]
    return [a + b for a, b in zip(x, back, strict=True)]


def plain_logit(detector, trace, traces):
    """The log-probabilities are standardised by those of all traces at the same place."""
    encoder = detector.encoder
    rows = [array(encoder.class_token)]
    for place, (candidates, actual, logprobs, rank) in enumerate(plain_steps(trace)):
        others = [steps[place][2] for steps in map(plain_steps, traces) if len(steps) > place]
        spread = np.std(others, axis=0)
        scaled = (logprobs - np.mean(others, axis=0)) / np.where(spread > 0, spread, 1)
        by_rank = actual * 2 * (0.5 - rank / len(candidates)) * array(encoder.by_rank)
        taken = by_rank + actual * array(encoder.by_probability)
        step = np.concatenate([linear(encoder.project, candidates), taken])
        mapped = array(encoder.by_logprobs.weight) @ scaled
        rows.append(step + mapped * array(encoder.of_place.weight)[place])
    rows = [row + array(encoder.position.weight)[i] for i, row in enumerate(rows)]
    for block in encoder.blocks.layers:
        rows = plain_block(block, rows)
    return linear(detector.classifier, normalise(encoder.blocks.norm, rows[0]))[0]


def test_the_formula(build, pack, traces, set_answer):
    """Answers of several places and lengths, the first token and an empty answer among them."""
    for trace, lengths in zip(traces, [(2, 3), (0, 1), (-1, 0), (2, 0), (4, 2)], strict=True):
        set_answer(trace, *lengths)
    detector = build("los_net").eval()
    detector.prepare([pack(traces)])
    expected = [plain_logit(detector, trace, traces) for trace in traces]
    np.testing.assert_allclose(detector(pack(traces)).logits.detach(), expected, atol=1e-4)


def test_long_answers_are_read_up_to_their_hundredth_token(pack, traces, set_answer):
    """Of each trace by itself, tokens without a distribution not counted."""
    n = 130
    long = dict(traces[0])
    for name in ("logprob", "topk_logprob", "topk_id", "tokens"):
        long[name] = traces[2][name][torch.arange(n) % 8 + 1]
    long["logprob"][7] = NAN
    set_answer(long, 5, n - 5)
    signature = read_signature(pack([traces[0], long, traces[4]]))
    assert signature.offsets.diff().tolist() == [4, MAX_TOKENS, 6]
    expected = [actual for _, actual, *_ in plain_steps(long)]
    np.testing.assert_allclose(signature.actual[4:-6], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, -2.0, -float("inf")])
@pytest.mark.parametrize("n_candidates", [1, 4])
def test_candidates_without_spread(value, n_candidates, pack, traces):
    """Equal candidates, of probability 0 even, and a single one are finite."""
    for trace in traces:
        trace["topk_logprob"] = torch.full((len(trace["tokens"]), n_candidates), value)
        trace["topk_id"] = trace["topk_id"][:, :n_candidates]
    detector = LosNet(n_candidates)
    outputs = detector(pack(traces))
    detector.loss(outputs, LABELS).backward()
    assert outputs.logits.isfinite().all()
    assert all(part.grad.isfinite().all() for part in detector.parameters())
