"""The global shuffle as a sampler for torch's own DataLoader."""

from collections.abc import Iterator, Sized
from itertools import chain

from torch.utils.data import Sampler

from store.feed.order import Batches, EpochOrder, rank_positions

__all__ = ["GlobalShuffleSampler"]

BLOCK_ROWS = 65_536  # rows computed at a time


class GlobalShuffleSampler(Sampler[int]):
    """A true global shuffle for torch's DataLoader: each row once an epoch, at any position.

    As with torch's own distributed sampler, call `set_epoch` before each epoch: without it the
    order repeats.

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

    def __init__(
        self, data: Sized | int, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        self.n = data if isinstance(data, int) else len(data)
        self.seed = seed
        self.epoch = 0
        self._positions = rank_positions(self.n, 0, rank, world_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration visits."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[int]:
        blocks = Batches(EpochOrder(self.n, self.seed, self.epoch), self._positions, BLOCK_ROWS)
        return chain.from_iterable(blocks[i].tolist() for i in range(len(blocks)))
