"""The ids of stores that are read as one.

They are those of the stores; but where an id is in two of them, each id begins with the name of its
store: `squad/tc_33`. So an id names one trace, and tells where it is.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from store.format.schema import TRACE_ID
from store.read.directory import PARTIAL
from store.read.joined.union import find_shared_id
from store.read.store import TraceStore
from store.read.trace_ids import TraceIds
from store.traces.trace_ids import TraceNumbers

__all__ = ["JoinedIds", "bare_name", "id_prefixes", "ids_with_prefixes", "store_names"]

SUFFIX = ".zarr"


def id_prefixes(stores: Sequence[TraceStore]) -> list[str]:
    """What the ids of each store begin with: its name and a slash, or "" where no two share an id.

    Reads the hashes of all ids.
    """
    if find_shared_id(stores) is None:
        return [""] * len(stores)
    return [f"{name}/" for name in store_names([store.location for store in stores])]


def store_names(places: Sequence[str]) -> list[str]:
    """What tells stores apart: the last parts of their whole paths or addresses, as many of each as
    that takes, without .zarr. A store that is given again gets a number.

    >>> store_names(["/data/squad.zarr", "s3://bucket/nq.zarr"])
    ['squad', 'nq']
    >>> store_names(["/data/1/qa.zarr", "/data/2/qa.zarr"])
    ['1/qa', '2/qa']
    >>> store_names(["/data/qa.zarr", "/data/qa.zarr"])
    ['qa', 'qa#2']
    """
    parts = [bare_name(place).split("/") for place in places]
    numbers = TraceNumbers()
    for n in range(1, max(map(len, parts))):
        names = ["/".join(one[-n:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [numbers.give(one[-1]) for one in parts]


def bare_name(place: str) -> str:
    """A path, an address or a name without .zarr."""
    return place.rstrip("/").removesuffix(PARTIAL).removesuffix(SUFFIX)


def ids_with_prefixes(stores: Sequence[TraceStore], prefixes: Sequence[str]) -> np.ndarray:
    """The ids of all stores in UTF-8, each with its prefix, one after the other: uint8
    `(n_bytes,)`."""
    parts = []
    for store, text in zip(stores, prefixes, strict=True):
        starts = store.reader.offsets(TRACE_ID).read_checked()[:-1]
        ids = store.reader.column(TRACE_ID).read(0, store.n_items(TRACE_ID))
        prefix = np.frombuffer(text.encode(), np.uint8)
        before = np.repeat(starts, len(prefix))
        parts.append(np.insert(ids, before, np.tile(prefix, len(starts))))
    return np.concatenate(parts)


class JoinedIds(TraceIds):
    """The ids of stores that are read as one; each store looks up its own."""

    def __init__(
        self, store: TraceStore, parts: Sequence[TraceStore], prefixes: Sequence[str]
    ) -> None:
        super().__init__(store.reader)
        firsts = accumulate(map(len, parts), initial=0)
        self._parts = [
            (prefix, part.ids, first)
            for prefix, part, first in zip(prefixes, parts, firsts, strict=False)
        ]

    def find(self, trace_id: object) -> int | None:
        """See `TraceIds`."""
        if not isinstance(trace_id, str):
            return None
        for prefix, ids, first in self._parts:
            row = ids.find(trace_id.removeprefix(prefix)) if trace_id.startswith(prefix) else None
            if row is not None:
                return first + row
        return None

    def find_all(self, trace_ids: Sequence[str]) -> np.ndarray:
        """See `TraceIds`."""
        rows = np.full(len(trace_ids), -1, np.int64)
        for prefix, ids, first in self._parts:
            here = [i for i, one in enumerate(trace_ids) if one.startswith(prefix)]
            found = ids.find_all([trace_ids[i].removeprefix(prefix) for i in here])
            is_found = found >= 0
            rows[np.array(here, np.int64)[is_found]] = first + found[is_found]
        return rows

    def own(self) -> list[str]:
        """See `TraceIds`."""
        return [trace_id for _, ids, _ in self._parts for trace_id in ids]

    def like(self, trace_id: str) -> str:
        """See `TraceIds`: of an id without its prefix, those with one."""
        found = [prefix + trace_id for prefix, ids, _ in self._parts if trace_id in ids]
        return f"; it is {' or '.join(map(repr, found))}" if found else super().like(trace_id)
