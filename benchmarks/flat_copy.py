"""The rows of a store in one flat file: what ceilings, and what one writes by hand, read."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.data import made_once
from store import TraceStore, permutation

__all__ = ["FlatCopy", "copy_rows", "copy_share"]


class FlatCopy:
    """The rows of a store in one flat file beside it, mapped.

    Attributes
    ----------
    items
        np.memmap `(n_items, *item_shape)`.
    offsets
        int64 `(n_rows + 1,)`.
    """

    def __init__(self, store: TraceStore, column: str = "x") -> None:
        described = store.schema.columns[column]

        def write(path: Path) -> None:
            with path.open("wb") as file:
                file.writelines(np.ascontiguousarray(trace[column]).data for trace in store)

        self.path = made_once(store.path.with_suffix(f".{column}.flat"), write)
        lengths = [len(trace[column]) if described.axis else 1 for trace in store]
        self.offsets = np.r_[0, np.cumsum(lengths)]
        self.dtype, self.item_shape = described.storage_dtype, described.item_shape
        self.items = self.mapped()
        self.n_bytes = self.path.stat().st_size

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def mapped(self) -> np.memmap:
        """A new map of the items, of whose pages the process has none yet."""
        return np.memmap(self.path, self.dtype, "r").reshape(-1, *self.item_shape)

    def batches(self, epoch: int, batch_size: int) -> list[list[int]]:
        """The global shuffle that every contender reads, cut into batches."""
        order = permutation(len(self), 0, epoch).tolist()
        return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]

    def ceiling(self, batch_size: int, n_threads: int = 1) -> Callable[[int], None]:
        """Memcpy of each batch's rows from the map into one buffer that is used again: as fast as
        it gets, on one core or on several.

        Threads share a batch by bytes, cut within a row where need be. NumPy copies without the
        interpreter's lock.
        """
        most = int(np.sort(np.diff(self.offsets))[-batch_size:].sum())
        buffer = np.empty((most, *self.items.shape[1:]), self.items.dtype)
        buffer[:] = 0
        items, offsets = np.asarray(self.items), self.offsets.tolist()

        def copy_shared(rows: list[int]) -> None:
            n = sum(offsets[row + 1] - offsets[row] for row in rows)
            cuts = [n * i // n_threads for i in range(n_threads + 1)]
            others = [
                pool.submit(copy_share, buffer, items, offsets, rows, cuts[i], cuts[i + 1])
                for i in range(1, n_threads)
            ]
            copy_share(buffer, items, offsets, rows, 0, cuts[1])
            for other in others:
                other.result()

        pool = ThreadPoolExecutor(n_threads)  # its threads start when they are needed

        def epoch(number: int) -> None:
            for rows in self.batches(number, batch_size):
                if n_threads == 1:
                    copy_rows(buffer, items, offsets, rows)
                else:
                    copy_shared(rows)

        return epoch

    def concatenate(self, batch_size: int) -> Callable[[int], None]:
        """What one writes by hand: np.memmap and np.concatenate."""

        def epoch(number: int) -> None:
            for rows in self.batches(number, batch_size):
                # held until the next one has come, as a training loop does
                batch = self.expected(rows)  # noqa: F841

        return epoch

    def expected(self, rows: Sequence[int]) -> np.ndarray:
        """The packed batch of these rows."""
        return np.concatenate([self.row(row) for row in rows])

    def row_bytes(self) -> Iterator[bytes]:
        """The rows as values of bytes, one after the other."""
        return (self.row(row).tobytes() for row in range(len(self)))

    def row(self, row: int) -> np.ndarray:
        """The items of a row, a view of the map."""
        return self.items[self.offsets[row] : self.offsets[row + 1]]


def copy_rows(
    buffer: np.ndarray, items: np.ndarray, offsets: Sequence[int], rows: Sequence[int]
) -> None:
    """Copy rows into a buffer, one after the other."""
    at = 0
    for row in rows:
        start, stop = offsets[row], offsets[row + 1]
        buffer[at : at + stop - start] = items[start:stop]
        at += stop - start


def copy_share(
    buffer: np.ndarray,
    items: np.ndarray,
    offsets: Sequence[int],
    rows: Sequence[int],
    first: int,
    last: int,
) -> None:
    """The same, but only items `first` to `last` of what the buffer then holds."""
    at = 0
    for row in rows:
        start, n = offsets[row], offsets[row + 1] - offsets[row]
        a, b = max(first - at, 0), min(last - at, n)
        if a < b:
            buffer[at + a : at + b] = items[start + a : start + b]
        at += n
