"""The order of an epoch: index arithmetic, a pure function of (n, seed, epoch). No I/O, no state between calls.

`permutation(n, seed, epoch)[position]` is the row visited at `position`. Workers, ranks and batch sizes only
cut this one sequence, so they never change it, and resuming costs one integer.
"""

from collections.abc import Iterator, Sized

import numpy as np
from torch.utils.data import Sampler

__all__ = ["GlobalShuffleSampler", "permutation", "rank_positions"]


def permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    """A uniformly random order of `n` rows: int64 `(n,)`.

    The same arguments give the same order for ever; seed and epoch are mixed, never added, so that
    (0, 1) and (1, 0) differ.
    """
    for name, value in (("n", n), ("seed", seed), ("epoch", epoch)):
        if value < 0:
            raise ValueError(f"permutation: expected {name} >= 0, found {value}")
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(n)


def rank_positions(n: int, position: int, rank: int, world_size: int) -> np.ndarray:
    """Positions of the rest of an epoch, from `position` on, that one process visits: int64, ascending.

    The ranks take turns, so that when each has visited k of its positions, the epoch stands at
    `position + k * world_size`, whatever the ranks were before.
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"expected 0 <= rank < world_size, found rank {rank} of {world_size}")
    return np.arange(position + rank, n, world_size)


class GlobalShuffleSampler(Sampler[int]):
    """A true global shuffle for torch's DataLoader: every row once an epoch, anywhere in the epoch.

    As with torch's own distributed sampler, call `set_epoch` before each epoch: without it the order repeats.

    Parameters
    ----------
    data
        A dataset, or its number of rows.
    seed
        Same seed, same orders.
    rank, world_size
        This process and how many there are; each visits its share of the one global order.

    Examples
    --------
    >>> sampler = GlobalShuffleSampler(4, seed=1)
    >>> sorted(sampler)
    [0, 1, 2, 3]
    """

    def __init__(self, data: Sized | int, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        self.n = data if isinstance(data, int) else len(data)
        self.seed, self.rank, self.world_size, self.epoch = seed, rank, world_size, 0
        rank_positions(self.n, 0, rank, world_size)  # refuses a rank that is out of range

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration visits."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(range(self.rank, self.n, self.world_size))

    def __iter__(self) -> Iterator[int]:
        order = permutation(self.n, self.seed, self.epoch)
        return iter(order[rank_positions(self.n, 0, self.rank, self.world_size)].tolist())
