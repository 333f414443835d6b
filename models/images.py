"""Traces as images: hidden states over layers x tokens, pooled to one size, d channels a cell.

Cells do not overlap where there is more than fits: cell j of W over T tokens holds the tokens from
floor(j T / W) to floor((j + 1) T / W), and their maximum a channel. Where there is less, cells
repeat what they fall on, so that a trace of one token fills the image with it. The same goes for
the layers. The maximum is exact in any precision, so an image is the same bits on any device.
"""

import torch
from torch import Tensor

__all__ = ["pool_images", "window_starts_and_stops"]


def pool_images(values: Tensor, offsets: Tensor, n_layers: int, n_tokens: int) -> Tensor:
    """Maximum of each channel over the cells of an image of each trace, (B, H, W, d) float16.

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
