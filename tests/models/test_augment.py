"""Augmentation keeps the shape and the meaning, and is repeated by its seed."""

import itertools

import pytest
import torch

from models.images import AUGMENTATIONS, augment

SHAPES = [(6, 8, 32, 4), (3, 1, 5, 4), (2, 4, 1, 4), (1, 1, 1, 2)]


def images_of(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def seeded(name, images, strength, seed):
    torch.manual_seed(seed)
    return augment(images, name, strength)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_shape_and_finiteness_stay(name):
    """For any strength, and sides of 1; the images themselves are not changed."""
    for shape, strength in itertools.product(SHAPES, (0.0, 0.1, 1.0)):
        images = images_of(shape)
        before = images.clone()
        result = seeded(name, images, strength, 0)
        assert (result.shape, result.dtype) == (images.shape, images.dtype)
        assert result.isfinite().all()
        assert torch.equal(images, before)
        assert strength or torch.equal(result, before)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_the_seed_decides(name):
    """The same seed gives the same images, another gives others; "none" draws nothing."""
    images = images_of(SHAPES[0])
    first = seeded(name, images, 0.3, 0)
    assert torch.equal(first, seeded(name, images, 0.3, 0))
    assert not torch.equal(first, seeded(name, images, 0.3, 1))
    state = torch.get_rng_state()
    assert augment(images, "none", 1.0) is images
    assert torch.equal(torch.get_rng_state(), state)


def test_a_crop_shows_neighbours_in_their_order():
    """Cells come from the image, rows and columns in order, over at least the part that is left."""
    height, width, strength = 8, 32, 0.25
    places = torch.stack(
        torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), dim=-1
    )
    images = places.expand(50, -1, -1, -1).float()
    result = seeded("crop", images, strength, 0)
    rows, columns = result[:, :, :1, 0], result[:, :1, :, 1]
    assert (result[..., 0] == rows).all()
    assert (result[..., 1] == columns).all()
    assert (rows.diff(dim=1) >= 0).all()
    assert (columns.diff(dim=2) >= 0).all()
    shown = columns[:, 0, -1] - columns[:, 0, 0] + 1
    assert (shown >= (1 - strength) * width - 1).all()
    assert shown.min() < width


def test_drop_leaves_out_whole_layers_and_tokens():
    """About as many as the strength says, never all; what stays is unchanged."""
    images = torch.ones(400, 8, 32, 2)
    result = seeded("drop", images, 0.2, 0)
    rows = result.amax((2, 3))  # (B, H)
    columns = result.amax((1, 3))
    assert torch.equal(result, (rows[:, :, None] * columns[:, None, :])[..., None] * images)
    assert rows.mean() == pytest.approx(0.8, abs=0.03)
    assert columns.mean() == pytest.approx(0.8, abs=0.03)
    assert (seeded("drop", images, 1.0, 0).sum((1, 2, 3)) == 2).all()


def test_noise_has_its_standard_deviation():
    """And a mean of 0."""
    change = seeded("noise", torch.zeros(20, 8, 32, 8), 0.3, 0)
    assert change.std() == pytest.approx(0.3, rel=0.02)
    assert change.mean() == pytest.approx(0, abs=0.01)


def test_rand_does_one_thing_to_each_image():
    """A quarter of the images stay as they are, and a quarter have only zeros more."""
    images = 1 + torch.rand(400, 4, 8, 2)
    result = seeded("rand", images, 0.3, 0)
    is_same = (result == images).flatten(1).all(1)
    is_masked = ((result == images) | (result == 0)).flatten(1).all(1)
    assert is_same.float().mean() == pytest.approx(0.25, abs=0.08)
    assert is_masked.float().mean() == pytest.approx(0.5, abs=0.08)
