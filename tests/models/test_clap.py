"""CLAP: the attention over layers against loops over heads and positions."""

import numpy as np

from models.clap import N_HEADS, WIDTH


def weights_of(module):
    return {name: value.detach().double().numpy() for name, value in module.named_parameters()}


def normalise(x, scale, offset):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * scale + offset


def attention_of_first(tokens, w):
    """What the first position gets of all positions, head by head."""
    size = WIDTH // N_HEADS
    query, key, value = (
        tokens @ part.T + bias
        for part, bias in zip(
            np.split(w["block.self_attn.in_proj_weight"], 3),
            np.split(w["block.self_attn.in_proj_bias"], 3),
            strict=True,
        )
    )
    heads = []
    for head in range(N_HEADS):
        own = slice(head * size, (head + 1) * size)
        scores = np.array([query[0, own] @ one[own] for one in key]) / np.sqrt(size)
        shares = np.exp(scores - scores.max())
        heads.append((shares / shares.sum()) @ value[:, own])
    out = np.concatenate(heads)
    return w["block.self_attn.out_proj.weight"] @ out + w["block.self_attn.out_proj.bias"]


def plain_logit(states, w):
    """The class token behind one block whose normalisations come after the sums."""
    layers = states @ w["project.weight"].T + w["project.bias"] + w["layer_embedding"]
    tokens = np.concatenate([w["class_token"][0], layers])
    x = tokens[0] + attention_of_first(tokens, w)
    x = normalise(x, w["block.norm1.weight"], w["block.norm1.bias"])
    wide = np.maximum(w["block.linear1.weight"] @ x + w["block.linear1.bias"], 0)
    x = x + w["block.linear2.weight"] @ wide + w["block.linear2.bias"]
    x = normalise(x, w["block.norm2.weight"], w["block.norm2.bias"])
    return (w["classifier.weight"] @ x + w["classifier.bias"])[0]


def test_the_formula(build, pack, traces):
    """Standardised states of each layer, and the authors' block and classifier."""
    detector = build("clap")
    detector.prepare([pack(traces)])
    found = detector.eval()(pack(traces)).logits
    states = np.stack([trace["hs_last"].double().numpy() for trace in traces])  # (B, L, d)
    states = (states - states.mean(axis=0)) / np.sqrt(states.var(axis=0) + 1e-6)
    w = weights_of(detector.attend)
    expected = [plain_logit(one, w) for one in states]
    np.testing.assert_allclose(found.detach(), expected, atol=1e-4)
