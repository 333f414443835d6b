"""Pooling of states to images, against loops over cells."""

import math

import numpy as np
import pytest
import torch

from models.images import pool_images, window_starts_and_stops

D = 5
LENGTHS = (7, 1, 12, 3, 30)


def by_loops(states, n_layers, n_tokens):
    """The image (H, W, d) of one trace (T, L, d), a cell at a time."""
    T, L, d = states.shape
    image = np.zeros((n_layers, n_tokens, d), np.float16)
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
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, n_read, D)).astype(np.float16) for n in lengths]


@pytest.mark.parametrize("size", [(1, 1), (2, 6), (3, 4), (5, 100), (8, 12)])
@pytest.mark.parametrize("n_read", [1, 3, 8, 11])
def test_cells_are_those_of_loops(n_read, size):
    """For traces shorter and longer than the image, and fewer and more layers."""
    traces = random_traces(n_read)
    images = pool_images(*packed(traces), *size)
    assert images.dtype == torch.float16
    expected = np.stack([by_loops(trace, *size) for trace in traces])
    np.testing.assert_array_equal(images.numpy(), expected)


@pytest.mark.parametrize("n_windows", [1, 2, 5, 32])
def test_windows_hold_every_item_once_where_there_are_enough(n_windows):
    """They follow each other without a gap, and their sizes differ by one at most."""
    lengths = torch.tensor([n_windows, n_windows + 1, 3 * n_windows + 2])
    starts, stops = window_starts_and_stops(lengths, n_windows)
    assert torch.equal(starts[:, 1:], stops[:, :-1])
    assert (starts[:, 0] == 0).all()
    assert torch.equal(stops[:, -1], lengths)
    sizes = stops - starts
    assert (sizes.amax(1) - sizes.amin(1) <= 1).all()


def test_a_trace_does_not_see_its_neighbours():
    """Also at the ends of the packed values; a trace without tokens is 0."""
    traces = random_traces(3, (0, 4, 0, 9, 0))
    images = pool_images(*packed(traces), 2, 6)
    assert not images[[0, 2, 4]].any()
    for i in (1, 3):
        assert torch.equal(images[i : i + 1], pool_images(*packed([traces[i]]), 2, 6))
    assert not pool_images(*packed(random_traces(3, (0, 0))), 2, 6).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_large_numbers_stay_finite_and_others_do_not(dtype):
    """Beyond float16 is its largest number; NaN and infinity are seen by the loss."""
    values = torch.tensor([1e5, -1e5, torch.nan, torch.inf, -torch.inf, 2.0], dtype=dtype)
    values = values.view(6, 1, 1)
    cells = pool_images(values, torch.arange(7), 1, 1).flatten().tolist()
    assert cells[:2] == [65504.0, -65504.0]
    assert math.isnan(cells[2])
    assert cells[3:] == [math.inf, -math.inf, 2.0]


def test_nan_in_one_token_reaches_its_cell_only():
    """The maximum is not taken around it."""
    traces = random_traces(2, (12,))
    traces[0][5, 0, 2] = np.nan
    images = pool_images(*packed(traces), 2, 4)
    assert images.isnan().nonzero().tolist() == [[0, 0, 1, 2]]
