"""Images of a trace's states: pooled to one size, and augmented in training."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["AUGMENTATIONS", "augment", "pool_images", "window_starts_and_stops"]


def pool_images(values: Tensor, offsets: Tensor, n_layers: int, n_tokens: int) -> Tensor:
    """Maximum of each channel over the cells of an image of each trace, (B, H, W, d) float16.

    Cells do not overlap where there is more than fits: cell j of W over T tokens holds the tokens
    from floor(j T / W) to floor((j + 1) T / W). Where there is less, cells repeat what they fall
    on, so that a trace of one token fills the image with it. The same goes for the layers. The
    maximum is exact in any precision, so an image is the same bits on any device.

    `values` (n_values, L, d) are the states of the tokens of all traces, any float; `offsets`
    (B + 1,) int64 is where each trace starts; H and W are at least 1.

    NaN where a state is NaN, infinite where one is; finite numbers beyond float16 are its largest.
    0 for a trace without tokens. Of the dtype of `values` where they need a gradient.
    """
    n_traces = len(offsets) - 1
    if not len(values):
        return values.new_zeros(n_traces, n_layers, n_tokens, values.shape[2], dtype=torch.float16)
    images = pool_tokens(pool_layers(values, n_layers), offsets, n_tokens)
    images[offsets.diff() == 0] = 0
    # a gradient in float16 would lose small numbers
    return images if values.requires_grad else to_half(images)


def pool_layers(values: Tensor, n_layers: int) -> Tensor:
    """Maximum over windows of layers: (n_values, L, d) -> (n_values, H, d)."""
    n_read = torch.tensor([values.shape[1]], device=values.device)
    starts, stops = window_starts_and_stops(n_read, n_layers)  # (1, H)
    return max_of_windows(values, starts[0], stops[0], dim=1)


def pool_tokens(rows: Tensor, offsets: Tensor, n_tokens: int) -> Tensor:
    """Maximum over windows of the tokens of each trace: (n_values, H, d) -> (B, H, W, d)."""
    n_values, n_layers, _ = rows.shape
    starts, stops = window_starts_and_stops(offsets.diff(), n_tokens)  # (B, W)
    sizes = stops - starts
    # a trace without tokens may start where the packed values end
    starts = (starts + offsets[:-1, None]).clamp(max=n_values - 1)
    # gathered in the order of the result from (n_values * H, d), where a token is H further
    layer = torch.arange(n_layers, device=rows.device)[:, None]  # (H, 1)
    first = n_layers * starts[:, None] + layer  # (B, H, W)
    last = first + n_layers * sizes[:, None]
    found = max_of_windows(rows.flatten(0, 1), first.flatten(), last.flatten(), 0, n_layers)
    return found.view(*first.shape, -1)


def window_starts_and_stops(lengths: Tensor, n_windows: int) -> tuple[Tensor, Tensor]:
    """First item of each window over sequences of `lengths` (B,), and the one after its last.

    Both are (B, n_windows) int64. Windows of a sequence that is long enough share no item; of a
    shorter one they have one item each, which neighbours share.
    """
    edges = torch.arange(n_windows + 1, device=lengths.device)
    edges = edges * lengths[:, None] // n_windows  # (B, n_windows + 1)
    starts = edges[:, :-1]
    return starts, torch.maximum(edges[:, 1:], starts + 1)


def max_of_windows(
    values: Tensor, starts: Tensor, stops: Tensor, dim: int, step: int = 1
) -> Tensor:
    """Maximum over each window along `dim`: of its items at start, start + step, ... below stop.

    One pass for each item of the longest window. While most windows have another item, all take
    part, the others with their last one again, and the passes share their memory: fresh memory
    costs the CPU more than the maximum. Then a pass is of the windows that have one.
    """
    found = values.index_select(dim, starts)
    item = torch.empty_like(found)
    n_items = (stops - starts) // step
    for i in range(1, int(n_items.max())):
        longer = (n_items > i).nonzero().squeeze(1)
        if 2 * len(longer) > len(starts):
            at = torch.minimum(starts + i * step, stops - step)
            if values.requires_grad:  # of memory that is used again there is no gradient
                found = torch.maximum(found, values.index_select(dim, at))
                continue
            torch.index_select(values, dim, at, out=item)
            torch.maximum(found, item, out=found)
        else:
            more = values.index_select(dim, starts[longer] + i * step)
            found.index_copy_(dim, longer, torch.maximum(found.index_select(dim, longer), more))
    return found


def to_half(values: Tensor) -> Tensor:
    """As float16: finite numbers beyond its range become its largest, infinite ones stay."""
    if values.dtype == torch.float16:
        return values
    largest = torch.finfo(torch.float16).max
    values = values.float()  # bfloat16 has no number that is `largest`
    return torch.where(values.isinf(), values, values.clamp(-largest, largest)).half()


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
    """Images (B, H, W, C) of the same size, augmented by one of `AUGMENTATIONS`, or by "none".

    A cell has mean 0 and variance 1 over its C channels. A layer or a token less, a part of the
    answer, or a little noise leaves a right answer right; flips and rotations would not. Everything
    is drawn with torch's CPU generator but for the noise, which is drawn on the device.
    """
    return images if name == "none" else AUGMENTATIONS[name](images, strength)
