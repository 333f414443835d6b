"""Which codec and chunk size suit which column of real traces?

For each column: bytes saved, and the speed of one core, with the codecs that other Zarr readers
know. By default the traces are those of the embedded example; `--store` takes your own, whose
hidden states may compress otherwise.
"""

import statistics
from argparse import Namespace
from collections.abc import Callable

import numpy as np

from benchmarks.data import example_store
from benchmarks.harness import clocks, parser, run
from benchmarks.tables import GB, finish
from store import TraceStore
from store.cli.arguments import path as path_argument
from store.format.codecs import parse_codec

CODECS = (
    "zstd:1",
    "zstd:3",
    "blosc:lz4:1:shuffle",
    "blosc:lz4:1:bitshuffle",
    "blosc:zstd:1:bitshuffle",
)
CHUNK_KB = (64, 256, 1024)


def main(args: Namespace) -> None:
    """Every column with every codec at every chunk size."""
    store = TraceStore.open(args.store) if args.store else example_store(args.dir)
    results = []
    for name, column in store.schema.columns.items():
        data = head(store, name, args.size_mb * 10**6)
        if len(data) < 1024 * CHUNK_KB[0]:  # small columns have nothing to save
            continue
        for kb in CHUNK_KB:
            for codec in CODECS:
                itemsize = column.storage_dtype.itemsize
                label = {"column": name, "dtype": column.dtype, "chunk_KB": kb, "codec": codec}
                results.append(label | measure(data, codec, kb * 1024, itemsize, args.epochs))
    finish("codecs", args.output, results, "column", "chunk_KB", "codec")


def head(store: TraceStore, name: str, n_bytes: int) -> np.ndarray:
    """The first bytes of a column."""
    column = store.schema.columns[name]
    if column.is_text:
        return np.empty(0, np.uint8)
    per_row = max(1, store.n_items(name) * column.item_bytes // max(1, len(store)))
    batch = store.read(range(min(len(store), n_bytes // per_row + 1)), [name])[name]
    values = batch.values if column.axis else batch
    return values.contiguous().numpy().reshape(-1).view(np.uint8)[:n_bytes]


def measure(data: np.ndarray, name: str, chunk_bytes: int, itemsize: int, epochs: int) -> dict:
    """Ratio, and the median speed of compressing and decompressing all whole chunks."""
    codec, chunk_bytes = parse_codec(name), min(chunk_bytes, len(data))
    chunks = [data[i : i + chunk_bytes] for i in range(0, len(data) - chunk_bytes + 1, chunk_bytes)]
    n_bytes, out = len(chunks) * chunk_bytes, np.empty(chunk_bytes, np.uint8)
    packed = [np.frombuffer(codec.encode(chunk, itemsize), np.uint8) for chunk in chunks]
    encode_s = median_s(lambda: [codec.encode(chunk, itemsize) for chunk in chunks], epochs)
    decode_s = median_s(
        lambda: [codec.decode(chunk, out, lambda: name) for chunk in packed], epochs
    )
    return {
        "ratio": round(n_bytes / sum(map(len, packed)), 3),
        "encode_GB_per_s": round(n_bytes / encode_s / GB, 3),
        "decode_GB_per_s": round(n_bytes / decode_s / GB, 3),
    }


def median_s(work: Callable[[], object], epochs: int) -> float:
    """Seconds that it takes, the median of a few turns."""
    return statistics.median(clocks(work)[0] for _ in range(epochs))


OPTIONS = {"--store": (path_argument, "a store of yours (default: the embedded example)")}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=16, epochs=3, options=OPTIONS))
