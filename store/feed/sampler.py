"""The global shuffle as a sampler for torch's own DataLoader."""

import operator
import sys
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import DistributedSampler

from store.feed.order import ORDER, EpochOrder, check_progress, current_rank
from store.feed.shares import Shares, Weights, read_weights
from store.read.joined.joined_store import row_cuts
from store.read.store import TraceStore

__all__ = ["GlobalShuffleSampler"]

BLOCK_ROWS = 65_536  # rows computed at a time


class GlobalShuffleSampler(DistributedSampler):
    """A true global shuffle for torch's DataLoader: each row once an epoch, at any position.

    As with torch's own distributed sampler, call `set_epoch` before each epoch: without it the
    order repeats. It is Stateful, as torchdata has it: a state counts the rows that were asked for.

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
        Of rows that the ranks cannot share evenly: True leaves out the last ones, False gives some
        ranks a row more, and perhaps a batch; None is a ValueError.
    weights, replacement
        Of the stores of a `TraceDataset`, as `TraceLoader` has them.

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
        *,
        weights: Weights | None = None,
        replacement: bool = False,
    ) -> None:
        self._shares = None
        if replacement and weights is None:
            raise ValueError("replacement: expected weights with it, found none")
        if weights is not None:
            store = _store_of(data)
            self._shares = Shares(row_cuts(store), read_weights(store, weights), seed, replacement)
        n_rows = data if isinstance(data, int) else len(data)
        self.n = n_rows if self._shares is None else len(self._shares)
        self.seed = operator.index(seed)
        self.epoch = 0
        self._start = 0  # of the next iteration: a position of all ranks
        self._begun = self._position = 0
        self._given = (rank, world_size)
        self._drop_last = drop_last
        self._positions()  # refuses wrong ranks

    def __len__(self) -> int:
        return len(self._positions())

    def __iter__(self) -> Iterator[int]:
        order = EpochOrder(self.n, self.seed, self.epoch)
        positions = self._positions()
        self._begun = self._position = self._start
        self._start = 0
        for i in range(0, len(positions), BLOCK_ROWS):
            rows = order[positions[i : i + BLOCK_ROWS]]
            if self._shares is not None:
                rows = self._shares.visited(self.epoch, rows)
            for row in rows.tolist():
                self._position += positions.step
                yield row

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; that of a loaded state keeps its position."""
        if epoch != self.epoch:
            self.epoch = operator.index(epoch)
            self._start = self._position = 0

    def state_dict(self, n_delivered: int | None = None) -> dict[str, int | str]:
        """Return the position for `load_state_dict`: JSON, equal on all ranks after a step.

        Worker processes ask for rows ahead: with them, say how many rows of this iteration this
        rank's DataLoader has delivered.
        """
        position = self._position
        if n_delivered is not None:
            position = self._begun + operator.index(n_delivered) * self._positions().step
        position = min(position, self.n)
        return {"epoch": self.epoch, "position": position} | self._identity()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the rows of a state; ranks may differ, number of rows and seed may not."""
        self.epoch, position = check_progress(state, self._identity(), self.n)
        self._start = self._position = position

    def _identity(self) -> dict[str, int | str]:
        shares = {} if self._shares is None else {"shares": str(self._shares)}
        return {"n_rows": self.n, "seed": self.seed, "order": ORDER, **shares}

    def _positions(self) -> range:
        """The positions of this rank; raises ValueError for an uneven share without `drop_last`."""
        accelerate = sys.modules.get("accelerate.state")
        is_shared = accelerate is not None and accelerate.is_initialized()
        given = (0, 1) if is_shared and self._given == (None, None) else self._given
        rank, world_size = current_rank(*given)
        n_left = self.n - self._start  # a state may be of other ranks
        n_over = n_left % world_size
        if n_over and self._drop_last is None:
            raise ValueError(
                f"expected rows that {world_size} ranks can share evenly, found {n_left:,}; "
                f"drop_last=True leaves out {n_over} of them, drop_last=False gives some ranks one "
                "more, and perhaps one more batch"
            )
        stop = self.n - n_over if self._drop_last else self.n
        return range(self._start + rank, stop, world_size)


def _store_of(data: Sized | int) -> TraceStore:
    """The store of a `TraceDataset`; raises TypeError for anything else."""
    store = getattr(data, "store", None)
    if not isinstance(store, TraceStore):
        raise TypeError(f"weights: expected a TraceDataset, found {type(data).__name__}")
    return store
