"""A batch of traces as the model gets it: where its prompts, answers and padding lie."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Layout"]


class Layout(NamedTuple):
    """Where the tokens of B traces lie, padded on the right to T.

    Attributes
    ----------
    lengths
        Tokens of each trace.
    prompt_lens
        Tokens of each prompt, at least one.
    device
        Where the model's outputs are.
    """

    lengths: tuple[int, ...]
    prompt_lens: tuple[int, ...]
    device: torch.device

    @property
    def width(self) -> int:
        """T, the length of the longest trace."""
        return max(self.lengths)

    def rows(self) -> Tensor:
        """Numbers of the traces, int64 (B,)."""
        return torch.arange(len(self.lengths), device=self.device)

    def last(self, lengths: Sequence[int]) -> Tensor:
        """Positions of the last of so many tokens, int64 (B,)."""
        return torch.tensor(lengths, device=self.device) - 1

    def between(self, starts: Sequence[int], ends: Sequence[int]) -> Tensor:
        """Whether a token lies in `starts[i]` to `ends[i] - 1` of its trace, bool (B, T)."""
        positions = torch.arange(self.width, device=self.device)
        first = torch.tensor(starts, device=self.device)[:, None]
        end = torch.tensor(ends, device=self.device)[:, None]
        return (positions >= first) & (positions < end)
