"""Standardisation by a sample of training traces, against NumPy over all rows at once."""

import numpy as np
import pytest
import torch

from models import DETECTORS
from models import standardise as module
from models.standardise import EPSILON, LIMIT, LayerGate, Standardise, build_scale, observing


def batches(*sizes):
    """Rows of 3 features whose means and spreads are far apart."""
    rng = np.random.default_rng(0)
    scale, offset = np.array([0.01, 1.0, 300.0]), np.array([5.0, 0.0, -200.0])
    rows = [rng.normal(size=(size, 3)) * scale + offset for size in sizes]
    return [torch.from_numpy(one).float() for one in rows]


@pytest.mark.parametrize("at_once", [2**22, 7])
def test_statistics_are_those_of_all_rows(at_once, monkeypatch):
    """Of batches of any size, empty ones included, as if they had been one."""
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    parts = batches(5, 1, 0, 8, 30)
    layer = Standardise(3)
    for part in parts:
        layer.update(part)
    rows = torch.cat(parts).double().numpy()
    np.testing.assert_allclose(layer.mean, rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(layer.var, rows.var(axis=0), rtol=1e-3)
    expected = (rows - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + EPSILON)
    np.testing.assert_allclose(layer(torch.cat(parts)), expected, rtol=1e-2, atol=1e-3)


def test_an_axis_of_one_has_one_statistic():
    """Images (n, layers, tokens, d): of each layer and channel, over traces and tokens."""
    rng = np.random.default_rng(0)
    images = rng.normal(3, 2, size=(40, 2, 6, 4)).astype(np.float32)
    images[..., 1] *= 100
    layer = Standardise(2, 1, 4, fills=False)
    for part in torch.from_numpy(images).split(9):
        layer.update(part)
    mean = images.mean(axis=(0, 2), keepdims=True)
    spread = images.std(axis=(0, 2), keepdims=True)
    expected = (images - mean) / spread
    np.testing.assert_allclose(layer(torch.from_numpy(images)), expected, rtol=1e-3, atol=1e-4)


def test_only_a_sample_changes_the_statistics():
    """Not training, and not evaluation; a sample does while it is observed."""
    first, second = batches(8, 20)
    layer = Standardise(3)
    layer.train()(first)
    assert not layer.count.any()
    with observing(layer):
        layer(first)
    assert layer.count.tolist() == [8.0] * 3
    layer(second)
    assert layer.count.tolist() == [8.0] * 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_constant_features_become_zero(dtype):
    """One row, or the same row many times, is its own mean; another value is not magnified."""
    layer = Standardise(3)
    row = torch.tensor([[2.0, 0.0, -400.0]], dtype=dtype)
    for rows in (row, row.expand(9, 3)):
        layer.update(rows)
        assert layer(rows).abs().max() == 0.0
    assert layer(row + 2)[0, :2].tolist() == [2.0, 2.0]


def test_missing_values_count_for_nothing():
    """NaN becomes the mean; infinities and far values become the limit, the finite rest stays."""
    layer = Standardise(2)
    inf, nan = float("inf"), float("nan")
    rows = torch.tensor([[1.0, nan], [3.0, nan], [nan, nan], [inf, nan], [-inf, nan]])
    layer.update(rows)
    found = layer(rows)
    assert layer.mean.tolist() == [2.0, 0.0]
    assert layer.var.tolist() == [1.0, 1.0]  # of a feature that was never there: as it began
    torch.testing.assert_close(found[:, 0], torch.tensor([-1.0, 1.0, 0.0, LIMIT, -LIMIT]))
    assert found[:, 1].tolist() == [0.0] * 5
    assert layer(torch.tensor([[1e9, 0.0]]))[0, 0] == LIMIT


def test_faults_pass_where_nothing_is_filled():
    """NaN and infinities stay what they are, so that the trace they are of can be named."""
    layer = Standardise(1, fills=False)
    layer.update(torch.tensor([[1.0], [3.0], [float("nan")]]))
    found = layer(torch.tensor([[float("nan")], [float("inf")], [1e3]]))
    assert found[0].isnan()
    assert found[1].isinf()
    assert found[2].item() == pytest.approx(998, rel=1e-5)


@pytest.mark.parametrize("fills", [True, False])
def test_scales_by_name(fills):
    """As they are, or each state by its own mean and spread; what is missing is 0 or passes."""
    states = torch.randn(5, 2, 4, dtype=torch.float64) * 3 + 1
    states[0] = torch.nan
    raw, norm = (build_scale(name, 2, 4, fills=fills)(states) for name in ("raw", "norm"))
    torch.testing.assert_close(raw[1:], states[1:].float())
    torch.testing.assert_close(norm[1:].mean(-1), torch.zeros(4, 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(norm[1:].var(-1, correction=0), torch.ones(4, 2), atol=1e-3, rtol=0)
    assert raw[0].isnan().all() == norm[0].isnan().all() == (not fills)
    assert isinstance(build_scale("standard", 4), Standardise)
    with pytest.raises(ValueError, match="input_scale: expected one of raw, standard, norm, found"):
        build_scale("other", 2, 4)


def test_a_missing_number_leaves_the_others_of_its_state():
    """Normalised by itself, a state without its first number is one whose first number is 0."""
    states = torch.tensor([[torch.nan, 0.1, 0.4, 0.2], [torch.nan, 0.3, 0.1, 0.6]])
    found = build_scale("norm", 4)(states)
    torch.testing.assert_close(found, torch.nn.functional.layer_norm(states.nan_to_num(), (4,)))
    assert build_scale("norm", 4)(torch.tensor([[torch.inf, 1.0, 2.0, 3.0]])).tolist() == [
        [0.0] * 4
    ]


def test_a_gate_finds_the_layer_that_counts():
    """Before training it weighs all layers alike; the weights add up to the number of layers."""
    states = torch.randn(64, 3, 4, generator=torch.Generator().manual_seed(0))
    gate = LayerGate(3)
    assert torch.equal(gate(states), states)
    optimizer = torch.optim.Adam(gate.parameters(), lr=1e-3)
    for _ in range(30):
        optimizer.zero_grad()
        (gate(states).sum(1) - states[:, 1]).square().mean().backward()
        optimizer.step()
    weights = gate(torch.ones(1, 3, 1)).flatten()
    assert weights.sum().item() == pytest.approx(3)
    assert weights.argmax() == 1


def test_only_training_drops_standardised_numbers():
    """Of several layers; of one layer, and of states as they are, nothing is dropped."""
    states = torch.randn(8, 2, 4, generator=torch.Generator().manual_seed(0))
    scale = build_scale("standard", 2, 4)
    assert (scale.train()(states) == 0).float().mean() == pytest.approx(0.5, abs=0.2)
    for whole in (scale.eval(), build_scale("raw", 2, 4).train()):
        torch.testing.assert_close(whole(states), states)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_without_dropout_no_number_is_dropped(build, dropout):
    """In no detector that reads several layers."""
    detectors = [build(n, dropout=dropout, input_scale="standard") for n in DETECTORS]
    gates = [
        sum(isinstance(part, torch.nn.Dropout) and part.p > 0 for part in one.scale)
        for one in detectors
        if any(isinstance(part, LayerGate) for part in one.modules())
    ]
    assert len(gates) >= 7
    assert set(gates) == {int(dropout > 0)}
