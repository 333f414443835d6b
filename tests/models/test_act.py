"""The detectors of images: moments, projection, formats of memory, augmentation, gradients."""

import pytest
import torch

from models.detector import REDUCED
from models.images import pool_images
from store import Batch

LABELS = torch.tensor([1, 0, 1, 0, 0])

both = pytest.mark.parametrize("name", ["act_conv", "act_vit"])


@both
def test_features_that_are_brought_are_those_that_are_computed(name, build, pack, traces):
    """Loss and gradients are equal bit for bit, and no column is needed beside them."""
    batch = pack(traces)
    values, offsets = batch.ragged("hidden_states")
    detector = build(name)
    reduced = detector.reduce(batch)
    assert torch.equal(reduced, pool_images(values, offsets, 2, 6))
    results = []
    for brought in (batch, Batch(batch.rows, {REDUCED: reduced})):
        detector = build(name)
        torch.manual_seed(1)
        loss = detector.loss(detector(brought), LABELS)
        loss.backward()
        results.append([loss, *(p.grad for p in detector.parameters())])
    assert all(map(torch.equal, *results))


@both
def test_formats_of_memory_differ_by_rounding(name, build, pack, traces):
    """The network is given the one asked for, channels last; auto on a CPU is off. Logits and
    gradients are those of the other format."""
    results = []
    for setting, is_last in (("on", True), ("off", False), ("auto", False)):
        detector = build(name, channels_last=setting, image_tokens=9, dropout=0.0)
        found = []
        detector.patches.register_forward_pre_hook(lambda _, images, f=found: f.append(images[0]))
        logits = detector(pack(traces)).logits
        assert found[0].is_contiguous(memory_format=torch.channels_last) == is_last
        assert found[0].is_contiguous() != is_last
        logits.square().sum().backward()
        results.append([logits, *(p.grad for p in detector.parameters())])
    for on, off, auto in zip(*results, strict=True):
        torch.testing.assert_close(on, off, rtol=1e-4, atol=1e-5)
        assert torch.equal(off, auto)


@both
def test_augmentation_is_for_training_and_by_seed(name, build, pack, traces):
    """Scores are those without it; a step draws by its seed."""
    batch = pack(traces)
    plain = build(name, dropout=0.0)
    logits = []
    for seed in (1, 1, 2):
        changed = build(name, dropout=0.0, augment="noise", augment_strength=0.5)
        torch.manual_seed(seed)
        logits.append(changed(batch).logits)
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])
    assert torch.equal(plain.eval()(batch).logits, changed.eval()(batch).logits)


@both
@pytest.mark.parametrize("size", [(1, 1), (1, 40), (3, 5), (1024, 2)])
def test_any_size_of_image_has_finite_gradients(name, size, build, pack, traces):
    """Also one cell, one layer, more tokens than the traces have, more layers than there are."""
    detector = build(name, image_layers=size[0], image_tokens=size[1], augment="rand")
    assert detector.size == (min(3, size[0]), size[1])
    for part in (traces, traces[1:2]):  # the second is one token
        loss = detector.loss(detector(pack(part)), LABELS[: len(part)])
        loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in detector.parameters())
