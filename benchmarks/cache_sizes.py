"""How large should the chunk cache be, and what does knowing the order bring?

Compressed rows whose chunks are shared by several rows, under a global shuffle: hit rate and rows/s
for caches from nothing to the whole decoded set. Batches are read one by one, evicting by least
recent use or by next use (Belady), or in windows of as many as the cache's size again allows, which
is what the loader does. `rows_per_cpu_s` counts the processor's seconds of all threads.
"""

import statistics
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness import finish, make_store, parser, pyplot, run
from store import Column, TraceLoader

# rows of 4 KB in chunks of 256 KB
ROW_ITEMS, ITEM_SHAPE, CHUNK_ITEMS, BATCH_SIZE = 8, (256,), 512, 64
SHARES = (0, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
CODECS = ("zstd:1", "blosc:lz4:1:shuffle")


class NextUse(TraceLoader):
    """The loader, each batch read by itself."""

    def _batches_together(self) -> int:
        return 1


class LeastRecent(NextUse):
    """The same without its knowledge of the order."""

    def _visit_times(self, start: int) -> None:
        return None


POLICIES = {"least recent": LeastRecent, "next use": NextUse, "windows": TraceLoader}


def main(args: Namespace) -> None:
    """Every codec, policy and size; then the decoder's own speed."""
    results = []
    for codec in CODECS:
        column = Column("float16", ITEM_SHAPE, "t", codec=codec, chunk_items=CHUNK_ITEMS)
        path = args.dir / f"cache-{args.size_mb}-{codec.split(':')[0]}.zarr"
        store = make_store(path, {"x": column}, lambda: rows(args.size_mb))
        whole = store.n_items("x") * column.item_bytes + column.chunk_items * column.item_bytes
        for share in SHARES:
            for policy, loader_type in POLICIES.items():
                cache_bytes = (
                    max(int(whole * share), CHUNK_ITEMS * column.item_bytes) if share else 0
                )
                results.append(
                    {"codec": codec, "policy": policy, "share": round(share, 3)}
                    | measure(loader_type, path, cache_bytes, args.epochs)
                )
    finish(
        "cache_sizes",
        args.results,
        results,
        lambda picture: plot(results, picture),
        main=("hit_rate", "rows_per_s"),
        named_by=("codec", "policy", "share"),
    )


def rows(size_mb: int) -> Iterator[tuple[str, dict]]:
    """Smooth numbers, which compress as hidden states do: somewhat."""
    rng = np.random.default_rng(0)
    for i in range(size_mb * 10**6 // (ROW_ITEMS * 512)):
        values = rng.normal(size=(ROW_ITEMS, *ITEM_SHAPE)).astype(np.float16).round(1)
        yield f"trace_{i}", {"x": values}


def measure(loader_type: type[TraceLoader], path: Path, cache_bytes: int, epochs: int) -> dict:
    """Rows/s of the median epoch after the first, and the hit rate of those."""
    loader = loader_type(
        path, ["x"], BATCH_SIZE, shuffle=True, cache_bytes=cache_bytes, num_workers=2
    )
    stats, hits, misses = loader.store.cache.stats, 0, 0
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    for number in range(epochs + 1):
        if number == 1:
            hits, misses = stats.hits, stats.misses
        start, cpu_start = time.perf_counter(), time.process_time()
        for _ in loader:
            pass
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    hits, misses = stats.hits - hits, stats.misses - misses
    return {
        "hits": hits,
        "hit_rate": round(hits / (hits + misses), 4),
        "rows_per_s": round(len(loader.store) / statistics.median(seconds[1:])),
        "rows_per_cpu_s": round(len(loader.store) / statistics.median(cpu_seconds[1:])),
    }


def plot(results: list[dict], path: Path) -> None:
    """Hit rate and rows/s over the cache's size."""
    figure, axes = pyplot().subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    for key, axis, label in zip(
        ("hit_rate", "rows_per_cpu_s"), axes, ("hit rate", "rows / processor s"), strict=True
    ):
        for codec in CODECS:
            for policy, style in zip(POLICIES, (":", "--", "-"), strict=True):
                line = [r for r in results if r["codec"] == codec and r["policy"] == policy]
                axis.plot(
                    [r["share"] for r in line],
                    [r[key] for r in line],
                    style,
                    marker=".",
                    label=f"{codec}, {policy}",
                )
        axis.set(xlabel="cache, share of the decoded set", ylabel=label, ylim=(0, None))
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=60, epochs=3))
