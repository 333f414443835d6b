"""Does reading a compressed column cost more than numcodecs alone?

Rows are about 1 MB of real hidden states. The anchors decode the same chunks in the same order with
numcodecs, one after the other into a batch that is reused, on as many threads: bare, and with the
CRC32C after each chunk checked. The loader checks it as well, copies the parts of chunks that rows
share, and keeps no chunk.

`cpu_x_bare_numcodecs` is the median ratio of the processor's seconds of the process in each turn:
what other programs do at the same time disturbs it less than the clock.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from queue import SimpleQueue

import numpy as np
from crc32c import crc32c
from numcodecs import blosc, zstd

from benchmarks.data import example_store, make_store
from benchmarks.harness import Epoch, clocks, loader_epoch, parser, run, take_turns
from benchmarks.tables import finish, median_ratio, ratios
from store import Column, TraceStore, permutation

ROW_BYTES, BATCH_SIZE = 1_000_000, 16
ANCHOR = "bare numcodecs"
CODECS = {"zstd": "zstd:1", "blosc": "blosc:lz4:1:shuffle"}


def main(args: Namespace) -> None:
    """Each codec on one thread and on two."""
    results = []
    example = example_store(args.dir)
    states = example.schema.columns["hidden_states"]
    for kind, codec in CODECS.items():
        column = Column(states.dtype, states.item_shape, "t", codec=codec)
        path = args.dir / f"decode-{args.size_mb}-{kind}.zarr"
        store = make_store(path, {"x": column}, lambda: rows(example, args.size_mb))
        n_bytes = store.n_items("x") * column.item_bytes
        for n in (1, 2):
            contenders = {
                ANCHOR: bare(store, kind, n, check=False),
                "numcodecs, crc32c": bare(store, kind, n, check=True),
                "ours": loader_epoch(store, BATCH_SIZE, n, cache_bytes=0),
            }
            turns = take_turns({name: warmed(one) for name, one in contenders.items()}, args.epochs)
            seconds = {name: [wall for wall, _ in times] for name, times in turns.items()}
            cpu = {name: [busy for _, busy in times] for name, times in turns.items()}
            for row in ratios(seconds, len(store), n_bytes, ANCHOR):
                speed = round(median_ratio(cpu[ANCHOR], cpu[row["contender"]]), 3)
                label = {"codec": codec, "threads": n}
                results.append(label | row | {"cpu_x_bare_numcodecs": speed})
    named_by = ("codec", "threads", "contender")
    finish("decode", args.results, results, "median_GB_per_s", "x_bare_numcodecs", named_by)


def warmed(epoch: Epoch) -> Callable[[int], tuple[float, float]]:
    """Seconds of the clock and of the processor of an epoch, with one before it."""

    def turn(number: int) -> tuple[float, float]:
        epoch(number)
        return clocks(partial(epoch, number))

    return turn


def rows(example: TraceStore, size_mb: int) -> Iterator[tuple[str, dict]]:
    """The example's hidden states, over and over, cut into rows of different lengths."""
    states = example.read(range(len(example)), ["hidden_states"])["hidden_states"].values.numpy()
    rng, mean, at = np.random.default_rng(0), ROW_BYTES // states[0].nbytes, 0
    for i in range(max(1, size_mb * 10**6 // ROW_BYTES)):
        n = int(rng.integers(mean - mean // 5, mean + mean // 5 + 1))
        yield f"trace_{i}", {"x": states[np.arange(at, at + n) % len(states)]}
        at += n


def bare(store: TraceStore, kind: str, n_threads: int, check: bool) -> Epoch:
    """Decode what the loader decodes, with nothing around it."""
    array, offsets = store.reader.column("x"), np.r_[0, np.cumsum(store.lengths("x"))]
    layout = array.layout
    k, n_bytes = layout.chunk_items, layout.chunk_bytes
    decompress = zstd.decompress if kind == "zstd" else blosc.decompress
    packed = []
    for number in range(layout.n_shards(array.n_items)):
        shard = array.shard(number)
        # 4 bytes of checksum
        packed += [shard.data[at : at + n - 4] for at, n in shard.entries[:, 0].tolist()]
    chunks = [range(a // k, -(-b // k)) for a, b in pairwise(offsets)]
    most = sum(sorted(map(len, chunks))[-BATCH_SIZE:])
    buffers: SimpleQueue = SimpleQueue()
    for _ in range(n_threads):
        buffers.put(np.zeros(most * n_bytes, np.uint8))

    def read(batch: list[int]) -> None:
        buffer = buffers.get()
        for at, chunk in enumerate(chunk for row in batch for chunk in chunks[row]):
            if check:
                crc32c(packed[chunk])
            decompress(packed[chunk], buffer[at * n_bytes : (at + 1) * n_bytes])
        buffers.put(buffer)

    def epoch(number: int) -> None:
        order = permutation(len(chunks), 0, number).tolist()
        starts = range(0, len(order), BATCH_SIZE)
        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(read, (order[i : i + BATCH_SIZE] for i in starts)))

    return epoch


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=1000))
