"""Shares of an epoch: how often each of several stores is visited, and which of its rows then.

An epoch with shares has places instead of rows: the first `counts[0]` are of store 0, and so on.
The order of the epoch permutes the places; here each place has its row, or its token. Index
arithmetic as in `order.py`, and as little memory: `docs/format.md` (section 15) defines it.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from numbers import Real

import numpy as np

from store.feed.order import ROUNDS, keyed_rows
from store.read.joined.joined_ids import bare_name, store_names
from store.read.store import TraceStore

__all__ = ["Shares", "Weights", "read_weights"]

Weights = Mapping[str, float] | Sequence[float]
"""A number above 0 of each store, in their order, or by their names: those that ids begin with
where two stores share one."""


def read_weights(store: TraceStore, weights: Weights) -> list[float]:
    """The weight of each store of `open_joined`.

    Raises ValueError unless each store has one weight, a finite number above 0.
    """
    places = [part.location.rstrip("/") for part in store.parts]
    if isinstance(weights, Mapping):
        weights = _in_order(places, weights)
    if len(weights) != len(places):
        raise ValueError(f"weights: expected {len(places)}, one a store, found {len(weights)}")
    for place, weight in zip(places, weights, strict=True):
        if not (isinstance(weight, Real) and 0 < weight < math.inf):
            raise ValueError(f"weights: expected a number above 0 for {place}, found {weight!r}")
    return list(map(float, weights))


def _in_order(places: list[str], weights: Mapping[str, float]) -> list[float]:
    """Weights by name in the order of the stores."""
    by_name = {bare_name(name): weight for name, weight in weights.items()}
    names = store_names(places)
    if sorted(by_name) != sorted(names) or len(by_name) < len(weights):
        raise ValueError(
            f"weights: expected one of each of {', '.join(names)}, found {', '.join(weights)}"
        )
    return [by_name[name] for name in names]


class Shares:
    """The visits of each store in an epoch.

    Without `replacement` no row comes twice in an epoch, which ends when one store has had all of
    its rows. With it, an epoch has as many visits as there are rows, and the rows of a store whose
    share is larger than the store come several times, each as often as the others, to within one.

    Parameters
    ----------
    cuts
        int64 `(n_stores + 1,)`: store i has the rows, or tokens, from `cuts[i]` to `cuts[i + 1]`.
    weights
        Of each store, above 0; what they sum to does not matter.

    Raises
    ------
    ValueError
        A store has nothing to visit.
    """

    def __init__(
        self, cuts: np.ndarray, weights: Sequence[float], seed: int, replacement: bool = False
    ) -> None:
        self.cuts = cuts
        self.seed = seed
        sizes = np.diff(cuts).tolist()
        if not all(sizes):
            raise ValueError(
                f"weights: expected rows of every store, found none of store {sizes.index(0)}; "
                "leave it out"
            )
        largest = min(n / weight for n, weight in zip(sizes, weights, strict=True))
        scale = sum(sizes) / sum(weights) if replacement else largest
        wanted = [max(1, math.floor(weight * scale + 0.5)) for weight in weights]
        self.counts = wanted if replacement else list(map(min, wanted, sizes))
        self._firsts = np.cumsum([0, *self.counts])

    def __len__(self) -> int:
        return sum(self.counts)

    def __str__(self) -> str:
        return " ".join(map(str, self.counts))

    def visited(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """The rows or tokens of places of an epoch, both int64 `(k,)`.

        A store is passed through in one order after another. Epochs follow each other in one of
        these passes, as many as it has rows for, and what is left of it is not visited; or several
        passes are in one epoch.
        """
        numbers = np.empty(len(places), np.int64)
        stores = self._firsts.searchsorted(places, "right") - 1
        for store in np.unique(stores).tolist():
            here = np.flatnonzero(stores == store)
            numbers[here] = self._of_store(epoch, store, places[here] - self._firsts[store])
        return numbers

    def _of_store(self, epoch: int, store: int, visits: np.ndarray) -> np.ndarray:
        """The rows of visits of a store, which are counted from the beginning of the epoch."""
        first, stop = self.cuts[store : store + 2].tolist()
        n = stop - first
        count = self.counts[store]
        n_epochs, n_passes = max(1, n // count), -(-count // n)
        before, later = divmod(epoch, n_epochs)
        passes, positions = np.divmod(later * count + visits, n)
        passes += before * n_passes
        rows = np.empty(len(visits), np.int64)
        for number in np.unique(passes).tolist():
            here = np.flatnonzero(passes == number)
            rows[here] = keyed_rows(positions[here], n, _keys(self.seed, number, store))
        return first + rows


@lru_cache(maxsize=1024)
def _keys(seed: int, number: int, store: int) -> np.ndarray:
    """The keys of a pass through a store, uint64 `(rounds,)`."""
    return np.random.SeedSequence([seed, number, store + 1]).generate_state(ROUNDS, np.uint64)
