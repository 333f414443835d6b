"""How much an epoch fetches through a cache that cannot hold it, over the least that could be."""

import heapq
import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mirroring import Node
from oracle import write_store

from store import Column, Schema, TraceLoader
from store.remote.cache.chunk_index import BLOCK

N_ROWS, N_PLANES, CHUNK_ITEMS = 2400, 4, 16
CHUNK_BYTES = CHUNK_ITEMS * 512 * 2
SCHEMA = Schema(
    {
        "states": Column(
            "float16", (N_PLANES, 512), axis="tokens", axis_names=("layers", "hidden"),
            split=("layers",), chunk_items=CHUNK_ITEMS, shard_items=50 * CHUNK_ITEMS,
        )
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def shared_chunks(tmp_path_factory):
    """A store of 2400 rows of few tokens, whose chunks have several rows; and their offsets."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 8, N_ROWS).tolist()
    rows = [
        (f"id{i}", {"states": rng.standard_normal((n, N_PLANES, 512)).astype(np.float16)})
        for i, n in enumerate(lengths)
    ]
    path = write_store(tmp_path_factory.mktemp("remote") / "shared.zarr", SCHEMA, rows)
    return path, np.append(0, np.cumsum(lengths)).tolist()


def least_fetched(accesses: list[list[int]], n_held: int) -> int:
    """Chunks that Belady's cache fetches, which knows all accesses and holds so many."""
    next_uses: list[list[float]] = []
    last: dict[int, int] = {}
    for time_, chunks in reversed([*enumerate(accesses)]):
        next_uses.append([last.get(chunk, math.inf) for chunk in chunks])
        last |= dict.fromkeys(chunks, time_)
    held: dict[int, float] = {}
    by_use: list[tuple[float, int]] = []
    n = 0
    for chunks, uses in zip(accesses, reversed(next_uses), strict=True):
        for chunk, use in zip(chunks, uses, strict=True):
            n += chunk not in held
            while chunk not in held and len(held) >= n_held:
                found, latest = heapq.heappop(by_use)
                if held.get(latest) == -found:
                    del held[latest]
            held[chunk] = use
            heapq.heappush(by_use, (-use, chunk))
    return n


def read_slowly(loader: TraceLoader, pause_s: float) -> list[int]:
    """The rows of an epoch, in order."""
    rows = []
    for batch in loader:
        rows += batch.rows.tolist()
        time.sleep(pause_s)
    return rows


@pytest.mark.parametrize("share, pause_s", [(0.25, 0.01), (0.5, 0.0)])
def test_an_epoch_fetches_little_more_than_it_must(tmp_path, shared_chunks, share, pause_s):
    """Each chunk is needed by many batches, and reading ahead must not have it fetched for each.

    Also where batches are asked for slowly, so that all is fetched ahead that may be.
    """
    path, offsets = shared_chunks
    node = Node(tmp_path / "cache", path)
    n_chunks = -(-offsets[-1] // CHUNK_ITEMS) * N_PLANES
    limit = int(share * n_chunks * CHUNK_BYTES)
    with node.running():
        store = node.open(limit)
        loader = TraceLoader(store, ["states"], batch_size=8, shuffle=True)
        rows = read_slowly(loader, pause_s)
        fetched = store.mirror.stats()["fetched_bytes"]
    accesses = [
        [*range(offsets[row] // CHUNK_ITEMS, -(-offsets[row + 1] // CHUNK_ITEMS))] for row in rows
    ]
    slots = limit // (-(-CHUNK_BYTES // BLOCK) * BLOCK) // N_PLANES
    least = least_fetched(accesses, slots) * N_PLANES * CHUNK_BYTES
    assert fetched < 1.15 * least  # mostly 1.07 to 1.10; twice to 2.6 times as much without a bound


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory):
    """A store of rows that have nearly all of their chunks for themselves: 16 MB."""
    rng = np.random.default_rng(0)
    column = Column("float16", (512,), axis="tokens", chunk_items=16, shard_items=3200)
    rows = [
        (f"id{i}", {"states": np.zeros((n, 512), np.float16)})
        for i, n in enumerate(rng.integers(20, 60, 400))
    ]
    return write_store(
        tmp_path_factory.mktemp("remote") / "long.zarr", Schema({"states": column}), rows
    )


def fetched_by(node: Node, limit: int, seeds: list[int]) -> int:
    """What readers fetch that read at once, each an epoch in an order of its own."""

    def read(seed: int) -> None:
        loader = TraceLoader(node.open(limit), ["states"], batch_size=8, shuffle=True, seed=seed)
        assert sum(len(batch.rows) for batch in loader) == 400

    with node.running() as server, ThreadPoolExecutor(len(seeds)) as pool:
        list(pool.map(read, seeds))
        return server.queue.counts["fetched_bytes"]


def test_readers_that_share_a_cache_fetch_less_than_apart(tmp_path, long_rows):
    """What one has not read yet is not over because another is ahead."""
    limit = 900_000
    seeds = [1, 2, 3, 4]
    apart = sum(fetched_by(Node(tmp_path / f"{n}", long_rows), limit, [n]) for n in seeds)
    shared = fetched_by(Node(tmp_path / "shared", long_rows), 4 * limit, seeds)
    assert shared < 0.95 * apart
