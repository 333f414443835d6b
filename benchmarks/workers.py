"""What do workers bring?

Threads of TraceLoader, and processes of torch's DataLoader over the same 1 MB rows. The anchors of
processes are the same DataLoader over np.memmap rows packed with torch.cat; TraceLoader, which has
no process between the file and the batch; and our dataset with batches of plain tensors, which
torch copies through fresh shared memory, where ours are read into the worker's arena.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.data import MEGABYTE_ROWS, ragged_store
from benchmarks.flat_copy import FlatCopy
from benchmarks.harness import Epoch, alternate, epoch_of, loader_epoch, parser, run
from benchmarks.tables import finish, ratios
from store import Batch, GlobalShuffleSampler, TraceDataset

BATCH_SIZE = 32
MAPPED = "DataLoader, memmap + cat, 2 processes"
PLAIN = "DataLoader, plain tensors, 2 processes"
IN_PROCESS = "TraceLoader, 0 threads"


def main(args: Namespace) -> None:
    """Run threads 0 to 4 and processes 0 to 2."""
    store = ragged_store(args.dir, args.size_mb, *MEGABYTE_ROWS)
    flat = FlatCopy(store)
    contenders = {
        MAPPED: processes(MappedRows(flat), 2, torch.cat),
        PLAIN: processes(PlainTensors(store.path, ["x"]), 2),
    }
    for n in (0, 1, 2):
        contenders[f"DataLoader, ours, {n} processes"] = processes(
            TraceDataset(store.path, ["x"]), n
        )
    for n in (0, 1, 2, 4):
        contenders[f"TraceLoader, {n} threads"] = loader_epoch(
            store.path, BATCH_SIZE, num_workers=n
        )
    seconds = alternate(contenders, args.epochs)
    rows = ratios(seconds, len(flat), flat.n_bytes, MAPPED, PLAIN, IN_PROCESS)
    finish("workers", args.output, rows)


class MappedRows(Dataset):
    """Rows of a flat map, as one writes it by hand."""

    def __init__(self, flat: FlatCopy) -> None:
        self.path, self.offsets, self.shape = flat.path, flat.offsets, flat.items.shape
        self.items: np.memmap | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> torch.Tensor:
        if self.items is None:
            self.items = np.memmap(self.path, np.float16, "c").reshape(self.shape)
        return torch.from_numpy(self.items[self.offsets[row] : self.offsets[row + 1]])


class PlainTensors(TraceDataset):
    """Our dataset without the workers' arenas: batches are ordinary memory, sent as torch does."""

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        """Rows as one packed batch, in the order given."""
        return self.store.read_batch(self._plan, self.store.check_rows(rows))


def processes(dataset: Dataset, n: int, collate: Callable | None = None) -> Epoch:
    sampler = GlobalShuffleSampler(dataset)
    loader = DataLoader(
        dataset,
        BATCH_SIZE,
        sampler=sampler,
        num_workers=n,
        collate_fn=collate,
        persistent_workers=n > 0,
    )
    return epoch_of(loader)


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=1000, epochs=5))
