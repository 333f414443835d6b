"""Pooling of states to images, against loops over cells."""

import math

import numpy as np
import pytest
import torch

from models.images import pool_images

D = 5
LENGTHS = (0, 7, 1, 12, 0, 3, 30, 0)


def by_loops(states, n_layers, n_tokens):
    """The image (H, W, d) of one trace (T, L, d), a cell at a time."""
    T, L, d = states.shape
    image = np.zeros((n_layers, n_tokens, d), np.float16)
    if T == 0:
        return image
    for h in range(n_layers):
        for w in range(n_tokens):
            token, layer = w * T // n_tokens, h * L // n_layers
            token_stop = max(token + 1, (w + 1) * T // n_tokens)
            layer_stop = max(layer + 1, (h + 1) * L // n_layers)
            image[h, w] = states[token:token_stop, layer:layer_stop].max(axis=(0, 1))
    return image


def packed(traces):
    offsets = torch.tensor([0, *map(len, traces)]).cumsum(0)
    return torch.from_numpy(np.concatenate(traces)), offsets


def random_traces(n_read, lengths=LENGTHS):
    """States of which some are NaN."""
    rng = np.random.default_rng(0)
    traces = [rng.normal(size=(n, n_read, D)).astype(np.float16) for n in lengths]
    for trace in traces:
        trace[rng.random(trace.shape) < 0.01] = np.nan
    return traces


@pytest.mark.parametrize("size", [(1, 1), (2, 6), (3, 4), (5, 100), (8, 12)])
@pytest.mark.parametrize("n_read", [1, 3, 8, 11])
def test_cells_are_those_of_loops(n_read, size):
    """For traces without tokens, shorter and longer than the image, and fewer and more layers; NaN
    reaches its cell only."""
    traces = random_traces(n_read)
    images = pool_images(*packed(traces), *size)
    assert images.dtype == torch.float16
    expected = np.stack([by_loops(trace, *size) for trace in traces])
    np.testing.assert_array_equal(images.numpy(), expected)
    assert not pool_images(*packed(random_traces(n_read, (0, 0))), *size).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_large_numbers_stay_finite_and_others_do_not(dtype):
    """Beyond float16 is its largest number; NaN and infinity are seen by the loss."""
    values = torch.tensor([1e5, -1e5, torch.nan, torch.inf, -torch.inf, 2.0], dtype=dtype)
    values = values.view(6, 1, 1)
    cells = pool_images(values, torch.arange(7), 1, 1).flatten().tolist()
    assert cells[:2] == [65504.0, -65504.0]
    assert math.isnan(cells[2])
    assert cells[3:] == [math.inf, -math.inf, 2.0]
