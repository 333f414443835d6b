"""Pads sequences of token ids to one tensor."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

__all__ = ["pad"]


def pad(
    sequences: Sequence[list[int]],
    side: Literal["left", "right"],
    filler: int,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Pad sequences with fillers: ids, and a mask that is 0 at the fillers; int64 (B, T)."""
    rows = [torch.tensor(ids) for ids in sequences]
    ones = [torch.ones_like(row) for row in rows]
    ids = pad_sequence(rows, batch_first=True, padding_value=filler, padding_side=side)
    mask = pad_sequence(ones, batch_first=True, padding_side=side)
    return ids.to(device), mask.to(device)
