"""A batch of traces as the model gets it: where its prompts, answers and padding lie.

Layers of a model may be on different devices, so masks and indices are made on the device of what
they are for.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Layout", "answer_mask", "last_places", "token_mask"]


class Layout(NamedTuple):
    """Where the tokens of B traces lie, padded on the right to T.

    Attributes
    ----------
    lengths
        Tokens of each trace.
    prompt_lens
        Tokens of each prompt, at least one.
    """

    lengths: tuple[int, ...]
    prompt_lens: tuple[int, ...]

    @property
    def width(self) -> int:
        """T, the length of the longest trace."""
        return max(self.lengths)

    def between(self, starts: Sequence[int], ends: Sequence[int], device: torch.device) -> Tensor:
        """Whether a token lies in `starts[i]` to `ends[i] - 1` of its trace, bool (B, T)."""
        positions = torch.arange(self.width, device=device)
        first = torch.tensor(starts, device=device)[:, None]
        end = torch.tensor(ends, device=device)[:, None]
        return (positions >= first) & (positions < end)


# every layer of a pass asks for these, on at most a few devices


@lru_cache(maxsize=8)
def last_places(lengths: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Trace and position of the last of so many tokens of each trace, int64 (B,) both."""
    return torch.arange(len(lengths), device=device), torch.tensor(lengths, device=device) - 1


@lru_cache(maxsize=4)
def answer_mask(layout: Layout, device: torch.device) -> Tensor:
    """What is a token of an answer, bool (B, T)."""
    return layout.between(layout.prompt_lens, layout.lengths, device)


@lru_cache(maxsize=4)
def token_mask(layout: Layout, device: torch.device) -> Tensor:
    """What is no padding, bool (B, T)."""
    return layout.between([0] * len(layout.lengths), layout.lengths, device)
