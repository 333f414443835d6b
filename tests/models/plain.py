"""Plain computations that detectors are compared with, in float64; and a saved file, read again."""

import io

import numpy as np
import torch
from torch import nn


def array(parameter):
    return parameter.detach().double().numpy()


def linear(part, x):
    return array(part.weight) @ x + array(part.bias)


def normalise(part, x):
    """LayerNorm."""
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * array(part.weight) + array(part.bias)


def mlp(part, x, slope=0.0):
    """Linear maps and norms, with a ReLU of this slope before each map but the first."""
    is_first = True
    for one in part.modules():
        if isinstance(one, nn.LayerNorm):
            x = normalise(one, x)
        elif isinstance(one, nn.Linear):
            x = linear(one, x if is_first else np.where(x > 0, x, slope * x))
            is_first = False
    return x


def softmax(scores):
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


def attention(part, rows):
    """Each row from all rows, in each head."""
    width = len(rows[0])
    size = width // part.num_heads
    packed = [array(part.in_proj_weight) @ row + array(part.in_proj_bias) for row in rows]
    out = []
    for query in packed:
        heads = []
        for head in range(part.num_heads):
            own = slice(head * size, (head + 1) * size)
            keys = [one[width : 2 * width][own] for one in packed]
            values = [one[2 * width :][own] for one in packed]
            shares = softmax(np.array([query[:width][own] @ k for k in keys]) / np.sqrt(size))
            heads.append(sum(s * v for s, v in zip(shares, values, strict=True)))
        out.append(linear(part.out_proj, np.concatenate(heads)))
    return out


def span_of(trace):
    """Positions of the answer's tokens; of an unknown prompt those of all."""
    start, length = int(trace["prompt_len"]), int(trace["answer_len"])
    return range(len(trace["logprob"])) if start < 0 else range(start, start + length)


def standardise(rows, mean, spread):
    """NaN is the mean."""
    return np.nan_to_num((rows - mean) / np.sqrt(spread + 1e-6))


def reload(content):
    """What a file without code keeps of it."""
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
