"""What does leaving the `.pt` loaders bring? The same 256 KB rows under a shuffle, three ways.

The old ways keep rows in `.pt` files of 250: a map-style dataset with a cache of the two files used
last, under a shuffle, and an iterable one with a shuffle buffer of 1,000 rows. The first decodes a
file for nearly every row, so it is stopped after a few batches and its speed is that of those.
"""

import random
import statistics
import time
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from benchmarks.data import made_once, make_store, random_rows
from benchmarks.harness import parser, run, take_turns
from benchmarks.tables import finish, median_ratio
from store import Column, TraceLoader, TraceStore

SHAPE, FILE_ROWS, BATCH_SIZE, BUFFER_ROWS = (32, 4096), 250, 32, 1000
ROW_BYTES = 2 * 32 * 4096


def main(args: Namespace) -> None:
    """Alternate the three."""
    n_rows = args.size_mb * 10**6 // ROW_BYTES
    path = args.dir / f"legacy-{args.size_mb}.zarr"
    rows = partial(random_rows, n_rows, SHAPE)
    store = make_store(path, {"x": Column("float16", SHAPE)}, rows)
    files = write_files(store, args.dir / f"legacy-{args.size_mb}-pt")
    cached = DataLoader(CachedFiles(files, n_rows), BATCH_SIZE, shuffle=True)
    ours = TraceLoader(store, ["x"], BATCH_SIZE, shuffle=True)
    threads = TraceLoader(store, ["x"], BATCH_SIZE, shuffle=True, num_workers=2)
    contenders = {
        "LRU(2) of .pt, shuffled": seconds_a_row(cached, n_batches=4),
        "iterable .pt, buffer": seconds_a_row(DataLoader(ShuffleBuffer(files), BATCH_SIZE)),
        "ours": seconds_a_row(ours),
        "ours, 2 threads": seconds_a_row(threads),
    }
    seconds = take_turns(contenders, args.epochs)
    lru, buffer = list(seconds.values())[:2]
    found = [
        {
            "contender": name,
            "rows_per_s": round(1 / statistics.median(times), 1),
            "x_LRU": round(median_ratio(lru, times), 1),
            "x_iterable": round(median_ratio(buffer, times), 1),
        }
        for name, times in seconds.items()
    ]
    finish("legacy", args.output, found)


def write_files(store: TraceStore, directory: Path) -> list[Path]:
    """The store's rows as `.pt` files of `FILE_ROWS`."""

    def write(path: Path, start: int) -> None:
        block = range(start, min(start + FILE_ROWS, len(store)))
        torch.save({"sequences": store.read(block, ["x"])["x"]}, path)

    return [
        made_once(directory / f"batch_{start:06}.pt", partial(write, start=start))
        for start in range(0, len(store), FILE_ROWS)
    ]


class CachedFiles(Dataset):
    """Map-style, with the two files used last in memory."""

    def __init__(self, paths: list[Path], n_rows: int) -> None:
        self.paths, self.n_rows = paths, n_rows
        self.cache: OrderedDict[int, torch.Tensor] = OrderedDict()

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, row: int) -> torch.Tensor:
        number, inside = divmod(row, FILE_ROWS)
        if number not in self.cache:
            self.cache[number] = torch.load(self.paths[number], weights_only=True)["sequences"]
            if len(self.cache) > 2:
                self.cache.popitem(last=False)
        self.cache.move_to_end(number)
        return self.cache[number][inside]


class ShuffleBuffer(IterableDataset):
    """Streams the files and draws from a buffer: no global shuffle."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[torch.Tensor]:
        buffer: list[torch.Tensor] = []
        for path in random.sample(self.paths, len(self.paths)):
            for row in torch.load(path, weights_only=True)["sequences"]:
                if len(buffer) < BUFFER_ROWS:
                    buffer.append(row)
                    continue
                i = random.randrange(BUFFER_ROWS)  # noqa: S311 - an order, no secret
                yield buffer[i]
                buffer[i] = row
        random.shuffle(buffer)
        yield from buffer


def seconds_a_row(loader: object, n_batches: int | None = None) -> Callable[[int], float]:
    """Of an epoch, or of its first batches."""

    def turn(number: int) -> float:
        start = time.perf_counter()
        n_rows = sum(map(len, islice(loader, n_batches)))
        return (time.perf_counter() - start) / n_rows

    return turn


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=1000, epochs=3))
