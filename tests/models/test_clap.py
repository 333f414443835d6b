"""CLAP: the attention over layers against loops over heads and positions."""

import numpy as np
from plain import array, attention, linear, normalise, standardise


def plain_logit(states, part):
    """The class token behind one block whose normalisations come after the sums."""
    layers = [linear(part.project, one) for one in states] + array(part.layer_embedding)
    tokens = np.concatenate([array(part.class_token)[0], layers])
    block = part.block
    x = normalise(block.norm1, tokens[0] + attention(block.self_attn, tokens)[0])
    wide = np.maximum(linear(block.linear1, x), 0)
    x = normalise(block.norm2, x + linear(block.linear2, wide))
    return linear(part.classifier, x)[0]


def test_the_formula(build, pack, traces):
    """Standardised states of each layer, and the authors' block and classifier."""
    detector = build("clap")
    detector.prepare([pack(traces)])
    found = detector.eval()(pack(traces)).logits
    states = np.stack([trace["hs_last"].double().numpy() for trace in traces])  # (B, L, d)
    states = standardise(states, states.mean(axis=0), states.var(axis=0))
    expected = [plain_logit(one, detector.attend) for one in states]
    np.testing.assert_allclose(found.detach(), expected, atol=1e-4)
