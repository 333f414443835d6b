"""Augmentation of images of activations that keeps what they mean, for training only.

Images are features of one size, layers x tokens with C channels a cell of mean 0 and variance 1
over the channels, as `models.act` computes them. A layer or a token less, a part of the answer, or
a little noise leaves a right answer right; flips and rotations would not.

Everything is drawn with torch's CPU generator but for the noise, which is drawn on the device.
"""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["AUGMENTATIONS", "augment"]


def crop(images: Tensor, strength: float) -> Tensor:
    """A part of each image, of at least 1 - strength of each side, stretched to the whole size."""
    n_images, height, width, _ = images.shape
    row = crop_positions(n_images, height, strength).to(images.device)  # (B, H)
    column = crop_positions(n_images, width, strength).to(images.device)  # (B, W)
    number = torch.arange(n_images, device=images.device)
    return images[number[:, None, None], row[:, :, None], column[:, None, :]]


def crop_positions(n_images: int, size: int, strength: float) -> Tensor:
    """Positions (n_images, size) int64 along a side of which each image shows a part."""
    part = 1 - strength * torch.rand(n_images, 1)
    start = (1 - part) * torch.rand(n_images, 1)
    centre = (torch.arange(size) + 0.5) / size
    return ((start + part * centre) * size).long().clamp(max=size - 1)


def drop(images: Tensor, strength: float) -> Tensor:
    """Whole layers and tokens become 0, each with probability `strength`; never all of them."""
    n_images, height, width, _ = images.shape
    rows = is_kept(n_images, height, strength).to(images.device)
    columns = is_kept(n_images, width, strength).to(images.device)
    return images * (rows[:, :, None] & columns[:, None, :])[..., None]


def is_kept(n_images: int, size: int, strength: float) -> Tensor:
    """Which positions stay, (n_images, size) bool; one at least."""
    draws = torch.rand(n_images, size)
    return (draws >= strength) | (draws == draws.amax(1, keepdim=True))


def noise(images: Tensor, strength: float) -> Tensor:
    """Add normal noise of this standard deviation; each cell has a variance of 1."""
    return images + strength * torch.randn_like(images)


def rand(images: Tensor, strength: float) -> Tensor:
    """To each image one of: nothing, `crop`, `drop`, `noise`; all of the one strength.

    RandAugment's idea (arXiv:1909.13719), a choice at random with one strength instead of a learned
    policy, with one operation an image instead of two.
    """
    chosen = torch.randint(1 + len(OPERATIONS), (len(images), 1, 1, 1)).to(images.device)
    result = images
    for number, operation in enumerate(OPERATIONS.values(), start=1):
        result = torch.where(chosen == number, operation(images, strength), result)
    return result


OPERATIONS: dict[str, Callable[[Tensor, float], Tensor]]
OPERATIONS = {"crop": crop, "drop": drop, "noise": noise}
AUGMENTATIONS = OPERATIONS | {"rand": rand}


def augment(images: Tensor, name: str, strength: float) -> Tensor:
    """Images (B, H, W, C) of the same size, augmented by one of `AUGMENTATIONS`, or by "none"."""
    return images if name == "none" else AUGMENTATIONS[name](images, strength)
