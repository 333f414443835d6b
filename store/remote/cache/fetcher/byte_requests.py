"""Which bytes of an object to ask for: chunks -> requests. Pure.

A request costs as much as a few hundred kilobytes, so neighbours are joined over a gap; but what is
fetched for nothing is bounded, since whoever pays for bytes pays for those of gaps as well.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

__all__ = ["Request", "cut_requests", "plan_requests"]

MAX_GAP_BYTES = 1024 * 1024
MAX_REQUEST_BYTES = 8 * 1024 * 1024
# made at once, whose answers are in memory together
REQUESTS_A_JOB = 4
JOB_BYTES = 16 * 1024 * 1024
MAX_WASTE = 0.02  # bytes of gaps, of those that are asked for


class Request(NamedTuple):
    """Bytes `start:stop` of an object, which hold the chunks `first:last` of those planned."""

    start: int
    stop: int
    first: int
    last: int


def plan_requests(starts: np.ndarray, sizes: np.ndarray) -> list[Request]:
    """The requests, in order, that together fetch some chunks of one object.

    The chunks are at `starts`, int64 `(n,)`, which rise, and do not overlap. No request is larger
    than `MAX_REQUEST_BYTES`, unless one chunk is.
    """
    requests: list[Request] = []
    n_wasted = 0
    for run in _runs(starts, starts + sizes):
        if requests:
            before = requests[-1]
            joined = Request(before.start, run.stop, before.first, run.last)
            gap = run.start - before.stop
            n_wasted += gap
            n_bytes = joined.stop - joined.start
            joins = gap <= MAX_GAP_BYTES and n_bytes <= MAX_REQUEST_BYTES
            if joins and n_wasted <= MAX_WASTE * n_bytes:
                requests[-1] = joined
                continue
        n_wasted = 0
        requests.append(run)
    return requests


def _runs(starts: np.ndarray, stops: np.ndarray) -> Iterator[Request]:
    """Chunks that touch as one, unless that is too large for a request; else each alone."""
    heads = np.flatnonzero(np.append(-1, stops[:-1]) != starts)
    ends = np.append(heads, len(starts))[1:]
    if (stops[ends - 1] - starts[heads]).max(initial=0) > MAX_REQUEST_BYTES:
        heads = np.arange(len(starts))
        ends = heads + 1
    runs = (starts[heads], stops[ends - 1], heads, ends)
    return map(Request, *map(np.ndarray.tolist, runs))


def cut_requests(requests: list[Request]) -> Iterator[tuple[int, int]]:
    """Requests to be made at once: the first chunk, and the one after the last, of each group."""
    group: list[Request] = []
    for request in requests:
        n_bytes = sum(one.stop - one.start for one in [*group, request])
        if group and (len(group) == REQUESTS_A_JOB or n_bytes > JOB_BYTES):
            yield group[0].first, group[-1].last
            group = []
        group.append(request)
    if group:
        yield group[0].first, group[-1].last
