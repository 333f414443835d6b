import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.read.arrays.chunk_cache import ChunkCache

CHUNK = np.zeros(10, np.uint8)


def run(uses, capacity, known):
    """Ask a cache for a sequence of chunks; return its counts."""
    cache = ChunkCache(capacity * 10)
    for time, key in enumerate(uses):
        later = [t for t in range(time + 1, len(uses)) if uses[t] == key]
        next_use = (later[0] if later else float("inf")) if known else None
        if cache.get(key, next_use) is None:
            cache.put(key, CHUNK, next_use)
        assert cache.stats.bytes <= capacity * 10
    return cache.stats


def best_possible(uses, capacity):
    """Belady's optimum, by its definition: on a miss drop what is used last, the new one
    included."""
    held, hits = set(), 0
    for time, key in enumerate(uses):
        hits += key in held
        held.add(key)
        rest = uses[time + 1 :]
        while len(held) > capacity:
            held.remove(max(held, key=lambda k: rest.index(k) if k in rest else len(uses) + 1))
    return hits


sequences = st.lists(st.integers(0, 8), max_size=60)


@given(sequences, st.integers(0, 6))
def test_a_known_order_gives_the_optimum(uses, capacity):
    assert run(uses, capacity, known=True).hits == best_possible(uses, capacity)


@given(sequences, st.integers(1, 6))
def test_lru_keeps_the_most_recent(uses, capacity):
    held, hits = [], 0
    for key in uses:
        hits += key in held
        held = [k for k in held if k != key] + [key]
        held = held[-capacity:]
    stats = run(uses, capacity, known=False)
    assert (stats.hits, stats.misses) == (hits, len(uses) - hits)
    assert stats.bytes == 10 * len(held)


def test_a_negative_capacity_is_refused():
    with pytest.raises(ValueError, match="cache_bytes: expected 0 or more, found -1"):
        ChunkCache(-1)


def test_what_is_known_to_be_needed_stays_before_what_is_unknown():
    cache = ChunkCache(20)
    for key, next_use in (("unknown", None), ("soon", 5.0), ("later", 9.0)):
        cache.put(key, CHUNK, next_use)
    assert cache.get("unknown") is None
    assert cache.get("soon", 6.0) is not None
    assert cache.get("later", 10.0) is not None
