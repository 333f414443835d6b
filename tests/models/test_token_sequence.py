"""The answer as a sequence: against loops over traces and tokens."""

import numpy as np
import pytest
from plain import array, linear, span_of, standardise
from scipy.special import erf

from models import DETECTORS
from models.token_sequence import middle_layers


def gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2


def numbers_of(trace):
    """Of each token of a trace (T, 2 + K + 1), and NaN where one is missing."""
    candidates = trace["topk_logprob"].double().numpy()
    margin = np.exp(candidates[:, 0]) - np.exp(candidates[:, 1])
    columns = [trace["logprob"].double().numpy(), trace["entropy"].double().numpy()]
    return np.column_stack([*columns, candidates, margin])


def statistics(rows):
    return np.nanmean(rows, axis=0), np.nanvar(rows, axis=0)


def plain_token(reader, here, before, numbers):
    """One token's vector: its states, those before it, its numbers, through the MLP."""
    width = len(array(reader.numbers.bias))
    weight, bias = array(reader.project.weight), array(reader.project.bias)
    x = weight[:width] @ here + bias[:width] + linear(reader.numbers, numbers)
    if before is not None:
        x = x + weight[width:] @ before + bias[width:]
    return gelu(linear(reader.token[2], gelu(x)))


def plain_logits(detector, traces, layers):
    states = [t["hidden_states"][:, layers].flatten(1).double().numpy() for t in traces]
    numbers = [numbers_of(t) for t in traces]
    # the states right before an answer are read, so they count
    read = [[i - 1 for i in span_of(t)[:1] if i] + list(span_of(t)) for t in traces]
    of_states = statistics(np.concatenate([s[i] for s, i in zip(states, read, strict=True)]))
    own = [list(span_of(t)) for t in traces]
    of_numbers = statistics(np.concatenate([n[i] for n, i in zip(numbers, own, strict=True)]))
    logits = []
    for trace, state, number in zip(traces, states, numbers, strict=True):
        rows = [standardise(row, *of_states) for row in state]
        tokens = [
            plain_token(
                detector.reader,
                rows[i],
                rows[i - 1] if i else None,
                standardise(number[i], *of_numbers),
            )
            for i in span_of(trace)
        ]
        scores = np.exp([linear(detector.reader.score, token)[0] for token in tokens])
        attended = sum(s * t for s, t in zip(scores / scores.sum(), tokens, strict=True))
        pooled = np.concatenate([attended, np.max(tokens, axis=0)])
        logits.append(linear(detector.classifier, gelu(linear(detector.head[0], pooled)))[0])
    return logits


def test_the_formula(build, pack, traces, set_answer):
    """Tokens of answers of several places and lengths, the first token of a trace among them."""
    traces = [traces[0], traces[1], traces[2], traces[4]]
    for trace, lengths in zip(traces, [(2, 2), (0, 1), (-1, 0), (4, 3)], strict=True):
        set_answer(trace, *lengths)
    detector = build("token_sequence")
    detector.prepare([pack(traces)])
    found = detector.eval()(pack(traces)).logits
    expected = plain_logits(detector, traces, middle_layers(3))
    np.testing.assert_allclose(found.detach(), expected, atol=1e-4)


@pytest.mark.parametrize("n_candidates", [1, 2, 4])
def test_any_number_of_candidates(n_candidates, pack, traces):
    """A single one has no margin."""
    shapes = {"hidden_states": (3, 8), "topk_logprob": (n_candidates,)}
    for trace in traces:
        trace["topk_logprob"] = trace["topk_logprob"][:, :n_candidates]
    detector = DETECTORS["token_sequence"].build(shapes, {"dropout": 0.0, "input_scale": None})
    assert detector(pack(traces)).logits.isfinite().all()
