"""The order of an epoch: index arithmetic, a pure function of (n, seed, epoch, position). No I/O,
no state.

`permutation(n, seed, epoch)[position]` is the row visited at `position`. Workers, ranks and batch
sizes only cut this one sequence, so they never change it, and resuming costs one integer.

Up to `LISTED_ROWS` rows an epoch's order is drawn as a list. Beyond, a list would cost gigabytes a
process, so each position is mapped on its own by a keyed permutation: a Feistel network over two
digits in base ceil(sqrt(n)), walked until it falls inside n (Black and Rogaway 2002, "Ciphers with
arbitrary finite domains").
"""

import math
from collections.abc import Iterator, Sequence, Sized

import numpy as np
from torch.utils.data import Sampler

from store.format.values import is_integer

__all__ = ["Batches", "EpochOrder", "GlobalShuffleSampler", "permutation", "rank_positions"]

LISTED_ROWS = 10_000_000
ROUNDS = 8
BLOCK_ROWS = 65_536  # positions mapped at a time


def permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    """A uniformly random order of `n` rows: int64 `(n,)`.

    The same arguments give the same order for ever; seed and epoch are mixed, never added, so that
    (0, 1) and (1, 0) differ.
    """
    return EpochOrder(n, seed, epoch)[range(n)]


class EpochOrder:
    """The order of one epoch: `order[positions]` are the rows visited at a range of positions.

    Parameters
    ----------
    n, seed, epoch
        As for `permutation`.
    shuffle
        If not, every row is visited at its own position.
    """

    def __init__(self, n: int, seed: int, epoch: int, shuffle: bool = True) -> None:
        for name, value in (("n", n), ("seed", seed), ("epoch", epoch)):
            if value < 0:
                raise ValueError(f"permutation: expected {name} >= 0, found {value}")
        self.n, self._listed, self._keys = n, None, None
        if shuffle and n <= LISTED_ROWS:
            self._listed = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(n)
        elif shuffle:
            self._keys = np.random.SeedSequence([seed, epoch]).generate_state(ROUNDS, np.uint64)

    def __getitem__(self, positions: range) -> np.ndarray:
        """Rows at `positions`, each from 0 to n - 1: int64 `(k,)`, a copy."""
        if self._listed is not None:
            return self._listed[positions.start : positions.stop : positions.step].copy()
        numbers = np.arange(positions.start, positions.stop, positions.step)
        return numbers if self._keys is None else keyed_rows(numbers, self.n, self._keys)


def keyed_rows(positions: np.ndarray, n: int, keys: np.ndarray) -> np.ndarray:
    """Map each position to its row: a bijection of 0..n-1, int64 `(k,)`, that the keys choose,
    uint64 `(rounds,)`."""
    base = np.uint64(math.isqrt(max(0, n - 1)) + 1)
    rows = positions.astype(np.uint64)
    outside = np.arange(len(rows))
    while len(outside):
        rows[outside] = _feistel(rows[outside], base, keys)
        outside = outside[rows[outside] >= n]
    return rows.astype(np.int64)


def _feistel(values: np.ndarray, base: np.uint64, keys: np.ndarray) -> np.ndarray:
    """A bijection of 0..base^2-1: in each round one digit is moved by a hash of the other."""
    high, low = np.divmod(values, base)
    for key in keys:
        high, low = low, (high + _mix(low + key)) % base
    return high * base + low


def _mix(x: np.ndarray) -> np.ndarray:
    """Hash 64-bit numbers to 63 bits, so that sums do not wrap: splitmix64 (Steele, Lea and Flood
    2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) >> np.uint64(1)


def rank_positions(n: int, position: int, rank: int, world_size: int) -> range:
    """Positions of the rest of an epoch, from `position` on, that one process visits.

    The ranks take turns, so that when each has visited k of its positions, the epoch stands at
    `position + k * world_size`, whatever the ranks were before.
    """
    if not (is_integer(rank) and is_integer(world_size) and 0 <= rank < world_size):
        raise ValueError(f"expected 0 <= rank < world_size, found rank {rank} of {world_size}")
    return range(position + rank, n, world_size)


def n_batches(n_rows: int, batch_size: int, drop_last: bool) -> int:
    """Batches that so many rows make; a last one that is not full counts unless it is left out."""
    return n_rows // batch_size if drop_last else -(-n_rows // batch_size)


class Batches(Sequence):
    """The rows of every batch, worked out when asked for: `batches[i]` is int64 `(batch_size,)`, or
    shorter at the end.

    Parameters
    ----------
    order
        The epoch's order.
    positions
        Those to visit.
    batch_size
        Rows a batch.
    drop_last
        Leave out a last batch that is not full.
    rows
        What the order is of, int64 `(n,)`; None: of all rows.
    """

    def __init__(
        self,
        order: EpochOrder,
        positions: range,
        batch_size: int,
        drop_last: bool = False,
        rows: np.ndarray | None = None,
    ) -> None:
        self.order, self.positions, self.batch_size, self.rows = order, positions, batch_size, rows
        self._n = n_batches(len(positions), batch_size, drop_last)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> np.ndarray:
        if not 0 <= i < self._n:
            raise IndexError(f"expected a batch from 0 to {self._n - 1}, found {i}")
        return self.visits(i * self.batch_size, (i + 1) * self.batch_size)

    def visits(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows of the visits `start:stop`, whatever batch they are in: int64."""
        rows = self.order[self.positions[start:stop]]
        return rows if self.rows is None else self.rows[rows]


class GlobalShuffleSampler(Sampler[int]):
    """A true global shuffle for torch's DataLoader: every row once an epoch, anywhere in the epoch.

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
        self.seed, self.rank, self.world_size, self.epoch = seed, rank, world_size, 0
        self._positions()  # refuses a rank that is out of range

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration visits."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._positions())

    def __iter__(self) -> Iterator[int]:
        blocks = Batches(EpochOrder(self.n, self.seed, self.epoch), self._positions(), BLOCK_ROWS)
        return (row for block in blocks for row in block.tolist())

    def _positions(self) -> range:
        return rank_positions(self.n, 0, self.rank, self.world_size)
