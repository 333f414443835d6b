"""LOS-Net: against the equations of the paper, a step and a head at a time."""

import numpy as np
import pytest
import torch

from models.los_net import MAX_TOKENS, LosNet, read_signature

NAN = float("nan")
LABELS = torch.tensor([1, 0, 1, 0, 1])


def array(parameter):
    return parameter.detach().double().numpy()


def linear(part, x):
    return array(part.weight) @ x + array(part.bias)


def normalise(part, x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * array(part.weight) + array(part.bias)


def softmax(scores):
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


def span_of(trace):
    start, length = int(trace["prompt_len"]), int(trace["answer_len"])
    return range(len(trace["logprob"])) if start < 0 else range(start, start + length)


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


def plain_attention(part, rows, n_heads):
    """Each row from all rows, in each head."""
    width = len(rows[0])
    size = width // n_heads
    packed = [array(part.in_proj_weight) @ row + array(part.in_proj_bias) for row in rows]
    out = []
    for query in packed:
        heads = []
        for head in range(n_heads):
            own = slice(head * size, (head + 1) * size)
            keys = [one[width : 2 * width][own] for one in packed]
            values = [one[2 * width :][own] for one in packed]
            shares = softmax(np.array([query[:width][own] @ k for k in keys]) / np.sqrt(size))
            heads.append(sum(s * v for s, v in zip(shares, values, strict=True)))
        out.append(linear(part.out_proj, np.concatenate(heads)))
    return out


def plain_block(block, rows):
    """Normalisation before the sums, ReLU between the linear maps."""
    normed = [normalise(block.norm1, row) for row in rows]
    attended = plain_attention(block.self_attn, normed, block.self_attn.num_heads)
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


def test_the_rank_of_a_token(pack, traces):
    """Its place among the candidates; K where it is none of them."""
    trace = traces[2]
    trace["topk_id"][1:5] = torch.tensor([7, 3, 5, 1])
    trace["tokens"][1:5] = torch.tensor([7, 1, 5, 2])
    assert read_signature(pack([trace])).rank[:4].tolist() == [0, 3, 2, 4]


def test_long_answers_are_read_up_to_their_hundredth_token(pack, traces, set_answer):
    """Of each trace by itself, tokens without a distribution not counted."""
    n = 130
    long = dict(traces[0])
    for name in ("logprob", "topk_logprob", "topk_id", "tokens"):
        rows = traces[2][name][torch.arange(n) % 8 + 1]
        long[name] = rows.clone()
    long["logprob"][7] = NAN
    set_answer(long, 5, n - 5)
    signature = read_signature(pack([traces[0], long, traces[4]]))
    assert signature.offsets.diff().tolist() == [4, MAX_TOKENS, 6]
    first = [i for i in range(5, n) if i != 7][:MAX_TOKENS]
    actual = (long["logprob"][first].exp() - long["topk_logprob"][first].float().exp().mean(1)) / (
        long["topk_logprob"][first].float().exp().std(1)
    )
    torch.testing.assert_close(signature.actual[4:-6], actual)


def test_nothing_outside_the_answer_is_read(build, pack, traces, set_answer):
    """Other tokens change nothing."""
    set_answer(traces[2], 4, 3)
    detector = build("los_net").eval()
    before = detector(pack(traces)).logits
    trace = traces[2]
    for outside in (3, 7):
        trace["topk_logprob"][outside] = -9.0
        trace["logprob"][outside] = NAN
        trace["tokens"][outside] = 99
    torch.testing.assert_close(detector(pack(traces)).logits, before)
    trace["tokens"][4] = trace["topk_id"][4][3]
    trace["logprob"][4] = -5.0
    assert not torch.allclose(detector(pack(traces)).logits, before)


def test_nothing_to_read(build, pack, traces, set_answer):
    """Empty answers and missing numbers have finite logits and gradients; all empty ones have one
    logit."""
    set_answer(traces[0], 5, 0)
    set_answer(traces[1], -1, 0)
    traces[4]["topk_logprob"][:] = NAN
    detector = build("los_net")
    outputs = detector(pack(traces))
    detector.loss(outputs, LABELS).backward()
    assert all(part.grad.isfinite().all() for part in detector.parameters())
    logits = outputs.logits.detach()
    torch.testing.assert_close(logits[[0, 1, 4]], logits[:1].expand(3))
    for trace in traces:
        set_answer(trace, len(trace["logprob"]), 0)
    logits = detector(pack(traces)).logits
    torch.testing.assert_close(logits, logits[:1].expand(5))


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
