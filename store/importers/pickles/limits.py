"""What an untrusted pickle may ask of the processor and of what walks through its value.

A few bytes can name a value that takes for ever to hash or to walk through: tuples that hold each
other twice, level by level. So keys are measured before they are hashed, and values when they are
whole. Nothing here recurses.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from store.errors import RefusedError

__all__ = ["check_keys", "check_sizes", "check_tree", "refused"]

MAX_KEY = 1000  # parts of a key, and hundreds of bytes of them
MAX_SAME = 100  # keys of one hash in one container: each is compared with all
MAX_DIMENSIONS = 64
MAX_DEPTH = 200
MAX_ITEMS = 1_000_000  # that any pickle may show
ITEMS_PER_BYTE = 100  # by references to the same values


def check_keys(keys: Iterable[Any], hashes: Counter[int]) -> None:
    """Refuse keys that take long to hash, and many that were made to have one hash.

    `hashes` counts those of the container's keys whose hashes a file can choose.
    """
    for key in keys:
        waiting, n = [key], 0
        while waiting:
            part = waiting.pop()
            n += 1 + sys.getsizeof(part) // 100
            if n > MAX_KEY:
                raise refused("a key of that size")
            if isinstance(part, tuple | frozenset):
                waiting.extend(part)
        if (type(key) is int and abs(key) < sys.hash_info.modulus) or type(key) in (str, bytes):
            continue
        hashes[hash(key)] += 1
        if hashes[hash(key)] > MAX_SAME:
            raise refused("so many keys of one hash")


def check_sizes(sizes: Any) -> None:
    """Refuse what no array has for a shape, whose product would have millions of digits."""
    if len(sizes) > MAX_DIMENSIONS or any(type(n) is int and n >> 63 > 0 for n in sizes):
        raise refused("an array of that shape")


def check_tree(root: Any, parts_of: Callable[[Any], Iterable[Any] | None], n_bytes: int) -> None:
    """Refuse a value that is nested too deep, in itself, or shown too often by references.

    `parts_of` gives what a value holds, None of a number or an array; `n_bytes` has the pickle.
    """
    most = MAX_ITEMS + ITEMS_PER_BYTE * n_bytes
    known: dict[int, int] = {}  # items in and below a container; those of the path are at -1
    path: list[tuple[int, Iterator[Any]]] = [(0, iter([root]))]
    counts = [0]
    while path:
        number, rest = path[-1]
        for value in rest:
            counts[-1] += 1 + known.get(id(value), 0)
            if id(value) in known:
                if known[id(value)] < 0:
                    raise refused("a value that holds itself")
            elif (parts := parts_of(value)) is not None:
                known[id(value)] = -1
                path.append((id(value), iter(parts)))
                counts.append(0)
                break
        else:
            path.pop()
            known[number] = counts.pop()
            if counts:
                counts[-1] += known[number]
        if len(path) > MAX_DEPTH:
            raise refused(f"values nested more than {MAX_DEPTH} deep")
        if counts and counts[-1] > most:
            raise refused(f"more than {most} items by references to the same")


def refused(asked: str) -> RefusedError:
    """The error of a pickle that asks for something."""
    return RefusedError(f"asks for {asked}, which no trace needs; do not trust the file")
