"""A map-style dataset over a store, for torch's own DataLoader.

Works with every start method of worker processes: it pickles as the store's path, and workers share
the page cache. The DataLoader's default collate function gives packed batches.
"""

from collections.abc import Sequence
from typing import Any, overload

from torch.utils.data import Dataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map  # documented as extensible

from store.feed.worker_memory import worker_arena
from store.read.arrays.read_options import ReadOptions
from store.read.batches.batch import Batch, Row
from store.read.joined.joined_store import Stores, open_joined
from store.read.plan import ManyRows, Rows, Select, is_many

__all__ = ["TraceDataset"]


class TraceDataset(Dataset):
    """The rows of a store: `len`, `[row]`, and whole batches at once through `__getitems__`.

    Parameters
    ----------
    store
        Path or address of a store, or an open one.
    columns
        Names to read; all if None.
    select
        Slices of item axes, see `TraceStore.read`.
    cache_bytes
        Decoded chunks of compressed columns to keep, in each worker; see `TraceStore.open`.

    Examples
    --------
    >>> dataset = TraceDataset("traces.zarr", ["tokens", "label"])  # doctest: +SKIP
    >>> sampler = GlobalShuffleSampler(dataset)  # doctest: +SKIP
    >>> DataLoader(dataset, 32, sampler=sampler, num_workers=2)  # doctest: +SKIP
    """

    def __init__(
        self,
        store: Stores,
        columns: Sequence[str] | None = None,
        select: Select | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self.store = open_joined(store, cache_bytes)
        self._plan = self.store.plan(columns, select)  # a wrong name fails here, not in a worker

    def __len__(self) -> int:
        return len(self.store)

    @overload
    def __getitem__(self, row: int) -> Row: ...

    @overload
    def __getitem__(self, row: ManyRows) -> Batch: ...

    def __getitem__(self, row: Any) -> Row | Batch:
        """One row, -1 for the last, as column name -> tensor or string; of several a batch."""
        return self.__getitems__(row) if is_many(row) else self.__getitems__([row])[0]

    def __getitems__(self, rows: Rows) -> Batch:
        """Rows as one packed batch, in the order given."""
        arena = worker_arena() if get_worker_info() else None
        options = None if arena is None else ReadOptions(arena.empty, required=True)
        return self.store.read_batch(self._plan, self.store.check_rows(rows), options)


def collate(rows: Batch | Sequence[Row], *, collate_fn_map: dict | None = None) -> Batch:
    """Pack rows into a batch; a batch of `__getitems__` is returned unchanged."""
    return rows if isinstance(rows, Batch) else Batch.from_rows(rows)


default_collate_fn_map[Row] = collate
