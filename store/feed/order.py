"""The order of an epoch: index arithmetic, a pure function of (n, seed, epoch, position).

`permutation(n, seed, epoch)[position]` is the row visited at `position`. Workers, ranks and batch
sizes only cut this one sequence, so they never change it, and resuming costs one integer.

Up to `LISTED_ROWS` rows an epoch's order is drawn as a list. Beyond, a list would cost gigabytes a
process, so each position is mapped on its own by a keyed permutation: a Feistel network over two
digits in base ceil(sqrt(n)), walked until it falls inside n (Black and Rogaway 2002, "Ciphers with
arbitrary finite domains"). `docs/format.md` (section 15) defines both, with test vectors.
"""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from store.format.values import is_integer

__all__ = [
    "MAX_EPOCH",
    "ORDER",
    "Batches",
    "BlockOrder",
    "EpochOrder",
    "check_progress",
    "current_rank",
    "n_batches",
    "permutation",
]

MAX_EPOCH = 2**29  # visits are counted over all epochs, exactly in float64
ORDER = 1  # the definition of orders, which states name; every change needs another number
LISTED_ROWS = 10_000_000
ROUNDS = 8


def check_progress(
    state: Mapping[str, Any], identity: Mapping[str, object], n: int
) -> tuple[int, int]:
    """The epoch of a state and its position among `n` visits.

    Raises ValueError if it is of another order than `identity` says, or has no such position.
    """
    for key, expected in {"shares": None, **identity}.items():
        found = state.get(key)
        if found != expected:
            raise ValueError(f"state_dict: expected {key} {expected!r}, found {found!r}")
    for key, most in (("position", n), ("epoch", MAX_EPOCH)):
        value = state.get(key)
        if not is_integer(value) or not 0 <= value <= most:
            raise ValueError(f"state_dict: expected {key} from 0 to {most}, found {value!r}")
    return int(state["epoch"]), int(state["position"])


def permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    """A uniformly random order of `n` rows: int64 `(n,)`.

    The same arguments give the same order for ever; seed and epoch are mixed, never added, so that
    (0, 1) and (1, 0) differ.
    """
    return EpochOrder(n, seed, epoch)[range(n)]


class EpochOrder:
    """The order of one epoch: `order[positions]` are the rows visited at a range of positions.

    Without `shuffle`, every row is visited at its own position. Beyond `listed` rows each position
    is mapped on its own.
    """

    def __init__(
        self, n: int, seed: int, epoch: int, shuffle: bool = True, listed: int | None = None
    ) -> None:
        if min(n, seed, epoch) < 0:
            raise ValueError(
                f"permutation: expected n, seed and epoch >= 0, found {n}, {seed} and {epoch}"
            )
        self.n = n
        self._listed: np.ndarray | None = None
        self._keys: np.ndarray | None = None
        if shuffle and n <= (LISTED_ROWS if listed is None else listed):
            # RandomState is frozen (NEP 19); what Generator makes of the same bits may change
            frozen = np.random.RandomState(np.random.PCG64([seed, epoch]))
            self._listed = frozen.permutation(n)
        elif shuffle:
            self._keys = np.random.SeedSequence([seed, epoch]).generate_state(ROUNDS, np.uint64)

    def __getitem__(self, positions: range) -> np.ndarray:
        """Rows at `positions`, each from 0 to n - 1: int64 `(k,)`, a copy."""
        numbers = np.arange(positions.start, positions.stop, positions.step)
        if self._listed is not None:
            return self._listed[numbers]
        return numbers if self._keys is None else keyed_rows(numbers, self.n, self._keys)

    def positions_of(self, rows: np.ndarray) -> np.ndarray:
        """Where in the epoch rows are visited, int64 `(k,)`: the inverse of `order[positions]`."""
        if self._listed is not None:
            return np.argsort(self._listed)[rows]
        return rows if self._keys is None else keyed_rows(rows, self.n, self._keys, back=True)


class BlockOrder(EpochOrder):
    """An order for cold disks: blocks of neighbours come in random order, and `buffer // block` of
    them that follow each other, a window, are mixed with each other.

    Each position is mapped on its own: it is permuted within its window, and the blocks are
    permuted. Two rows that follow each other are of one block with a probability of about
    `block / buffer`, of a true shuffle `block / n`. Where rows of one block correlate by rho, the
    variance of the mean of a batch of b rows is `1 + rho * (b - 1) * block / buffer` of that of a
    true shuffle.
    """

    def __init__(self, n: int, seed: int, epoch: int, block: int, buffer: int) -> None:
        super().__init__(n, seed, epoch, listed=-1)
        self._entropy = [seed, epoch]
        self._block = max(1, min(block, n))  # of a larger one, most places would have no row
        self._window = buffer // self._block * self._block
        self._n_blocks = -(-n // self._block)

    def __getitem__(self, positions: range) -> np.ndarray:
        """See `EpochOrder`."""
        rows = np.arange(positions.start, positions.stop, positions.step)
        outside = np.arange(len(rows))
        while len(outside):  # again where the last block, which is not full, has no row
            rows[outside] = self._mixed(rows[outside])
            outside = outside[rows[outside] >= self.n]
        return rows

    def _mixed(self, positions: np.ndarray) -> np.ndarray:
        """A bijection of the places of full blocks."""
        places = np.empty_like(positions)
        windows = positions // self._window
        for window in np.unique(windows).tolist():
            is_inside = windows == window
            first = window * self._window
            n = min(self._window, self._n_blocks * self._block - first)
            # from 1 on: a last zero would not change the keys
            seed = np.random.SeedSequence([*self._entropy, window + 1])
            keys = seed.generate_state(ROUNDS, np.uint64)
            places[is_inside] = first + keyed_rows(positions[is_inside] - first, n, keys)
        return self._rows_at(places)

    def _rows_at(self, places: np.ndarray) -> np.ndarray:
        """The rows at places, before those of a window are mixed."""
        assert self._keys is not None
        blocks = keyed_rows(places // self._block, self._n_blocks, self._keys)
        return blocks * self._block + places % self._block

    def positions_of(self, rows: np.ndarray) -> np.ndarray:
        """Raise NotImplementedError: nothing needs the inverse."""
        raise NotImplementedError("an order of blocks has no inverse")

    def announced(self, positions: range) -> np.ndarray:
        """The rows of the windows, rising, that are to be in memory one window after these
        positions: of those after the windows that begin here, and of the first one."""
        first, last = (-(-end // self._window) for end in (positions.start, positions.stop))
        begin = (first + 1 if positions.start else 0) * self._window
        rows = self._rows_at(np.arange(begin, min((last + 1) * self._window, self.n)))
        return np.sort(rows[rows < self.n])


def keyed_rows(
    positions: np.ndarray, n: int, keys: np.ndarray, *, back: bool = False
) -> np.ndarray:
    """Map positions to rows, int64 `(k,)`, by the bijection of 0..n-1 that `keys` choose.

    The keys are uint64 `(rounds,)`; `back` maps rows to positions.
    """
    network = _feistel_back if back else _feistel
    base = math.isqrt(max(0, n - 1)) + 1
    rows = network(positions.astype(np.uint64), base, keys)
    outside = np.flatnonzero(rows >= n)
    while len(outside):
        rows[outside] = network(rows[outside], base, keys)
        outside = outside[rows[outside] >= n]
    return rows.astype(np.int64)


def _feistel(values: np.ndarray, base: int, keys: np.ndarray) -> np.ndarray:
    """A bijection of 0..base^2-1: each round shifts one digit by a hash of the other."""
    high = values // base
    low = values - high * base
    for key in keys:
        high, low = low, _rest(_mix(low + key) + high, base)
    return high * base + low


def _feistel_back(values: np.ndarray, base: int, keys: np.ndarray) -> np.ndarray:
    """The inverse of `_feistel`."""
    high = values // base
    low = values - high * base
    for key in keys[::-1]:
        high, low = _rest(low + base - _rest(_mix(high + key), base), base), high
    return high * base + low


def _rest(x: np.ndarray, base: int) -> np.ndarray:
    """The remainders, in place: NumPy divides three times as fast as it takes them."""
    x -= x // base * base
    return x


def _mix(x: np.ndarray) -> np.ndarray:
    """Hash 64-bit numbers to 63 bits, in place, so that sums do not wrap.

    The hash is splitmix64 (Steele, Lea and Flood 2014).
    """
    x ^= x >> 30
    x *= 0xBF58476D1CE4E5B9
    x ^= x >> 27
    x *= 0x94D049BB133111EB
    x ^= x >> 31
    x >>= 1
    return x


def current_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This process and how many there are: as given, or now in `torch.distributed`, or 0 of 1."""
    if rank is None and world_size is None:
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1
    if not (is_integer(rank) and is_integer(world_size) and 0 <= rank < world_size):
        raise ValueError(
            f"expected 0 <= rank < world_size, or neither, found rank {rank} of {world_size}"
        )
    return rank, world_size


def n_batches(n_rows: int, batch_size: int, drop_last: bool) -> int:
    """Number of batches of `n_rows` rows; a last one that is not full counts unless dropped."""
    return n_rows // batch_size if drop_last else -(-n_rows // batch_size)


class Batches:
    """The rows of every batch of one rank, computed on access; all ranks have as many batches.

    `batches[i]` is int64 `(batch_size,)`, the last one possibly shorter. Ranks take turns at the
    positions from `start` on, and steps of `world_size * batch_size` of them; `drop_last` leaves
    out a last step that is not full. If the last step has fewer rows than there are ranks, each
    rank lends it one of the step before, so that no batch is empty; unless it `lends`, batch i has
    the visits from `i * batch_size` on. Without a step before, or with one row a batch, `n_empty`
    ranks have an empty last batch.

    The order permutes places, both int64 `(n,)`, at which `rows` says what stands; else all rows.
    """

    def __init__(
        self,
        order: EpochOrder,
        batch_size: int,
        drop_last: bool = False,
        rows: Callable[[np.ndarray], np.ndarray] | None = None,
        start: int = 0,
        ranks: tuple[int, int] = (0, 1),
        lends: bool = True,
    ) -> None:
        self.order = order
        self.batch_size = batch_size
        self.rows = rows
        self.start = start
        self.rank, self.world_size = ranks
        self.positions = range(start + self.rank, order.n, self.world_size)
        self._n_visits = len(self.positions)
        n_least, n_over = divmod(order.n - start, self.world_size)
        self._n = n_batches(order.n - start, self.world_size * batch_size, drop_last)
        is_short = self._n > 0 and n_least == (self._n - 1) * batch_size
        self._lent = int(is_short and lends and min(self._n, batch_size) > 1)
        self.n_empty = self.world_size - n_over if is_short and not self._lent else 0

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> np.ndarray:
        if not 0 <= i < self._n:
            raise IndexError(f"expected a batch from 0 to {self._n - 1}, found {i}")
        return self.rows_of(i, i + 1)

    def first_visit(self, i: int) -> int:
        """Visits of this rank before batch `i`; of `len(self)`, all that its batches have."""
        lent = self._lent if i == self._n - 1 else 0
        return min(i * self.batch_size - lent, self._n_visits)

    def position(self, i: int) -> int:
        """Where in the epoch all ranks are after `i` batches, the last one not among them."""
        return self.start + self.first_visit(i) * self.world_size

    def rows_of(self, first: int, stop: int) -> np.ndarray:
        """Rows of the batches `first:stop`, one after the other: int64."""
        return self.visits(self.first_visit(first), self.first_visit(stop))

    def sample(self, first: int, stop: int, n: int) -> np.ndarray:
        """About `n` rows of the batches `first:stop`, at even distances: int64."""
        start, end = self.first_visit(first), self.first_visit(stop)
        return self.visits(start, end, max(1, (end - start) // n))

    def announced(self, first: int, stop: int) -> np.ndarray | None:
        """The rows, int64, that are to be read from the disk when the batches `first:stop` come
        into reach; None: those of these batches."""
        if not isinstance(self.order, BlockOrder):
            return None
        visits = slice(self.first_visit(first), self.first_visit(stop))
        return self.order.announced(self.positions[visits])

    def visits(self, start: int = 0, stop: int | None = None, step: int = 1) -> np.ndarray:
        """Rows of the visits `start:stop:step`, across batches: int64."""
        rows = self.order[self.positions[start:stop:step]]
        return rows if self.rows is None else self.rows(rows)
