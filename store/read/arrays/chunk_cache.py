"""A cache of decoded chunks, bounded in bytes; knows nothing of files.

Every entry carries when it will be needed again; the one needed last goes first. Under a known
order that time is exact, and this is Belady's optimum (IBM Systems Journal 5, 1966); a chunk that
would be needed later than all that are cached is not taken in at all. Without a known order, the
least recently used chunk counts as the one needed last, and later than any whose time is known.
"""

import heapq
import math
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count

import numpy as np

__all__ = ["ChunkCache"]

# later than any visit that is known; minus the tick of its last use, so that recent ones stay
_UNKNOWN = 2**60


@dataclass
class CacheStats:
    """Counts since the cache was made: `hits`, uses of chunks that were there (of several in one
    read, all but the first); `misses`, chunks that had to be decoded; and the `bytes` held now."""

    hits: int = 0
    misses: int = 0
    bytes: int = 0


class ChunkCache:
    """Decoded chunks by key, at most `capacity_bytes` of them; safe for threads."""

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes < 0:
            raise ValueError(f"cache_bytes: expected 0 or more, found {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self.stats = CacheStats()
        self._chunks: dict[Hashable, tuple[np.ndarray, float]] = {}
        # heap of (-next use, tie, key), some out of date
        self._farthest: list[tuple[float, int, Hashable]] = []
        self._clock = count()
        self._lock = threading.Lock()

    def get(
        self, key: Hashable, next_use: float | None = None, n_uses: int = 1
    ) -> np.ndarray | None:
        """The chunk, or None; `next_use` is when it will be needed after this, if known, and
        `n_uses` what it is used for at once, to be counted."""
        with self._lock:
            if key not in self._chunks:
                self.stats.misses += 1
                self.stats.hits += n_uses - 1
                return None
            self.stats.hits += n_uses
            chunk, _ = self._chunks[key]
            self._hold(key, chunk, next_use)
            return chunk

    def put(self, key: Hashable, chunk: np.ndarray, next_use: float | None = None) -> None:
        """Take a chunk in, unless those that would have to go are needed sooner."""
        with self._lock:
            if key in self._chunks:  # another thread decoded it as well
                return
            surplus = self.stats.bytes + chunk.nbytes - self.capacity_bytes
            if next_use is not None and surplus > 0 and self._last_needed() <= next_use:
                return
            while self._chunks and self.stats.bytes + chunk.nbytes > self.capacity_bytes:
                self._evict()
            if chunk.nbytes > self.capacity_bytes:
                return
            self.stats.bytes += chunk.nbytes
            self._hold(key, chunk, next_use)

    def _hold(self, key: Hashable, chunk: np.ndarray, next_use: float | None) -> None:
        tick = next(self._clock)
        when = _UNKNOWN - tick if next_use is None else next_use
        self._chunks[key] = (chunk, when)
        heapq.heappush(self._farthest, (-when, tick, key))
        if len(self._farthest) > 4 * len(self._chunks) + 64:  # mostly out of date: build it again
            entries = enumerate(self._chunks.items())
            self._farthest = [(-when, tie, key) for tie, (key, (_, when)) in entries]
            heapq.heapify(self._farthest)

    def _last_needed(self) -> float:
        """When the chunk that is needed last is needed; drops entries that are out of date."""
        while self._farthest:
            when, _, key = self._farthest[0]
            held = self._chunks.get(key)
            if held is not None and held[1] == -when:
                return -when
            heapq.heappop(self._farthest)
        return -math.inf

    def _evict(self) -> None:
        self._last_needed()
        _, _, key = heapq.heappop(self._farthest)
        chunk, _ = self._chunks.pop(key)
        self.stats.bytes -= chunk.nbytes
