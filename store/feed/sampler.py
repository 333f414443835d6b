"""The global shuffle as a sampler for torch's own DataLoader."""

import sys
from collections.abc import Iterator, Sized
from itertools import chain

from torch.utils.data import DistributedSampler

from store.feed.order import EpochOrder, current_rank

__all__ = ["GlobalShuffleSampler"]

BLOCK_ROWS = 65_536  # rows computed at a time


class GlobalShuffleSampler(DistributedSampler):
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
        This process and how many there are; each visits its share of the one global order. None:
        those of `torch.distributed` when an iteration begins, as Lightning expects; or 0 of 1 where
        Accelerate is in use, whose `prepare` shares the batches of any DataLoader by itself.
    drop_last
        Of rows that the ranks cannot share evenly: True leaves out the last `n % world_size`, False
        gives some ranks a row more, and perhaps a batch; None is a ValueError.

    Examples
    --------
    >>> sampler = GlobalShuffleSampler(4, seed=1)
    >>> sorted(sampler)
    [0, 1, 2, 3]
    """

    def __init__(  # without torch's own, which would need the process group now
        self,
        data: Sized | int,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool | None = None,
    ) -> None:
        self.n = data if isinstance(data, int) else len(data)
        self.seed = seed
        self.epoch = 0
        self._given = (rank, world_size)
        self._drop_last = drop_last
        self._positions()  # refuses wrong ranks

    def __len__(self) -> int:
        return len(self._positions())

    def __iter__(self) -> Iterator[int]:
        order = EpochOrder(self.n, self.seed, self.epoch)
        positions = self._positions()
        blocks = range(0, len(positions), BLOCK_ROWS)
        return chain.from_iterable(order[positions[i : i + BLOCK_ROWS]].tolist() for i in blocks)

    def _positions(self) -> range:
        """The positions of this rank; raises ValueError for an uneven share without `drop_last`."""
        accelerate = sys.modules.get("accelerate.state")
        is_shared = accelerate is not None and accelerate.is_initialized()
        given = (0, 1) if is_shared and self._given == (None, None) else self._given
        rank, world_size = current_rank(*given)
        n_over = self.n % world_size
        if n_over and self._drop_last is None:
            raise ValueError(
                f"expected rows that {world_size} ranks can share evenly, found {self.n:,}; "
                f"drop_last=True leaves out {n_over} of them, drop_last=False gives some ranks one "
                "more, and perhaps one more batch"
            )
        return range(rank, self.n - n_over if self._drop_last else self.n, world_size)
