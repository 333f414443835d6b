"""Runs a batch on a device, and halves of it where the memory does not suffice."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

__all__ = ["run_in_halves"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_in_halves(
    run: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]
) -> Iterator[Result]:
    """Run over all items at once; where memory does not suffice, over halves, and their halves.

    Yields
    ------
    The results of `run`, in the order of the items.

    Raises
    ------
    torch.OutOfMemoryError
        One item is too much.
    """
    try:
        results = run(items)
    except torch.OutOfMemoryError:
        if len(items) == 1:
            raise
    else:
        yield from results
        return
    torch.cuda.empty_cache()  # the error is gone by now, and with it what the failed run held
    middle = len(items) // 2
    yield from run_in_halves(run, items[:middle])
    yield from run_in_halves(run, items[middle:])
