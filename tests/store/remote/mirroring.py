"""A store at an address whose objects are files of this machine, and its mirror in this process."""

import asyncio
import contextlib
import inspect
import os
import re
import threading
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from store import Column, Schema, TraceStore
from store.remote.cache.fetcher.server import Server, listen
from store.remote.cache.location import prepare_dir

N_ROWS = 60  # of the tests in mirror/
URL = "s3://bucket/traces.zarr"
SCHEMA = Schema(
    {
        "states": Column(
            "float16", (4, 64), axis="tokens", axis_names=("layers", "hidden"),
            chunk_items=50, shard_items=500,
        ),
        "split": Column(
            "float16", (4, 64), axis="tokens", axis_names=("layers", "hidden"), split=("layers",),
            chunk_items=51, shard_items=510,
        ),
        "zipped": Column("int32", (32,), axis="tokens", codec="zstd", chunk_items=64,
                         shard_items=640),
        "label": Column("int8"),
        "question": Column("utf8"),
    }
)  # fmt: skip


def make_rows(n_rows: int) -> list[tuple[str, dict]]:
    """Rows of 0 to 99 tokens, of random numbers."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n_rows):
        n = int(rng.integers(0, 100))
        states = rng.standard_normal((2, n, 4, 64)).astype(np.float16)
        zipped = rng.integers(0, 9, (n, 32)).astype(np.int32)
        row = {"states": states[0], "split": states[1], "zipped": zipped}
        rows.append((f"id{i}", row | {"label": np.int8(i % 2), "question": f"text {i}"}))
    return rows


class Head(NamedTuple):
    size: int


class Files:
    """Objects of a directory.

    Attributes
    ----------
    asked
        (key, start, end) -> how often.
    spoil
        (key, data) -> the bytes of an answer, or raises.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: Counter = Counter()
        self.spoil = lambda key, data: data

    def get(self, key: str, max_bytes: int = 0) -> bytes:
        return self.spoil(key, (self.root / key).read_bytes())

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        self.asked[key, start, end] += 1
        with (self.root / key).open("rb") as file:
            file.seek(start)
            return memoryview(self.spoil(key, file.read(end - start)))

    def get_ranges(self, key, starts, ends):
        return [self.get_range(key, *both) for both in zip(starts, ends, strict=True)]

    async def fetch_ranges(self, key, starts, ends):
        return await asyncio.to_thread(self.get_ranges, key, starts, ends)

    def get_tail(self, key: str, n_bytes: int) -> tuple[memoryview, int]:
        size = (self.root / key).stat().st_size
        return self.get_range(key, max(0, size - n_bytes), size), size

    def heads(self, keys) -> dict[str, Head]:
        return {key: head for key, head in self.list().items() if key in keys}

    def list(self, prefix: str = "") -> dict[str, Head]:
        files = [path for path in self.root.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.root)): Head(path.stat().st_size) for path in files}


class Node:
    """A cache directory, and the fetching process of it, which runs in threads of this one."""

    def __init__(self, cache_dir: Path, root: Path) -> None:
        self.cache_dir = cache_dir
        self.files = Files(root)
        prepare_dir(cache_dir)

    @contextlib.contextmanager
    def running(self):
        listener = listen(self.cache_dir)
        server = Server(self.cache_dir, listener, lambda url, settings: self.files)
        self.server = server
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()

    def do(self, work, *args):
        """What the fetching process makes of a call of a function, or of a coroutine."""

        async def call():
            found = work(*args)
            return await found if inspect.isawaitable(found) else found

        return asyncio.run_coroutine_threadsafe(call(), self.server.loop).result()

    def set_limits(self, *limits: int) -> None:
        """Have the cache take one limit after the other."""
        self.do(lambda: [*map(self.server.set_limit, limits)])

    def open(self, limit: int | None = 100_000_000, **options) -> TraceStore:
        return TraceStore.open(URL, limit, cache_dir=self.cache_dir, **options)


def least_limit(node: Node) -> int:
    """Bytes that the cache needs."""
    with pytest.raises(ValueError, match="at least") as refused:
        node.open(1)
    return int(re.search(r"at least ([\d,]+)", str(refused.value))[1].replace(",", ""))


def assert_no_slot_is_lost(server: Server) -> None:
    """What is taken of the slab is of the chunks that are in it."""
    inventory = server.inventory
    _, _, starts, stops = inventory.slots_taken()
    assert inventory.slab.n_bytes - inventory.slab.free_bytes == (stops - starts).sum()


def column_bytes(path: Path) -> int:
    """Bytes of the shards of a store's columns."""
    folders = (path / name / "c" for name in SCHEMA.columns)
    return sum(f.stat().st_size for folder in folders for f in folder.rglob("*") if f.is_file())


def disk_bytes(folder: Path) -> int:
    """What the files under a folder take on the disk."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(where) / name).stat().st_blocks * 512
    return total


@contextlib.contextmanager
def watched(folder: Path, every_s: float = 0.01):
    """Look again and again at what a folder takes on the disk; gives the list of what was seen."""
    seen: list[int] = []
    is_over = threading.Event()

    def look():
        while not is_over.wait(every_s):
            seen.append(disk_bytes(folder))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()
