"""What goes through a model together: fewer items where memory does not suffice, and one at a time
where a batch would change the results.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TypeVar

import torch
from transformers import PreTrainedModel

__all__ = ["Halving", "run_apart", "share_factors"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class Halving:
    """Runs batches of at most `size` items; of half as many from when memory did not suffice.

    `sizes`: the smaller numbers of items that memory sufficed for.
    """

    def __init__(self, size: int) -> None:
        self.sizes: list[int] = []
        self._whole = self._size = size

    def run(
        self, run: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]
    ) -> Iterator[Result]:
        """Yield the results of all items, in their order.

        Raises torch.OutOfMemoryError: one item is too much.
        """
        first = 0
        while first < len(items):
            batch = items[first : first + self._size]
            results: list[Result] | None = None
            try:
                results = run(batch)
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise
            if results is None:
                torch.cuda.empty_cache()  # the error is gone by now, and with it what the run held
                self._size = len(batch) // 2
                continue
            if self._size < self._whole and self._size not in self.sizes:
                self.sizes.append(self._size)
            yield from results
            del results  # before the next run needs the memory
            first += len(batch)


def run_apart(
    run: Callable[[Sequence[Item]], Sequence[Result]], items: Sequence[Item], *, together: bool
) -> list[Result]:
    """Run all items at once, or one after the other; each has one result."""
    if together:
        return list(run(items))
    return [result for item in items for result in run([item])]


def share_factors(model: PreTrainedModel, lengths: Sequence[int], n_new: int = 0) -> bool:
    """Whether sequences, to which up to `n_new` tokens are added, are rotated as each is alone.

    LongRoPE has one set of factors for short sequences and one for long ones, and transformers
    chooses between them for a whole batch, by the longest of its sequences.
    """
    limit = _longest_short(model)
    return max(lengths) + n_new <= limit or min(lengths) > limit


def _longest_short(model: PreTrainedModel) -> float:
    """The longest sequence with the factors for short ones; infinite without LongRoPE."""
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    of_layers = [rope, *(one for one in rope.values() if isinstance(one, dict))]
    return min(
        (
            one["original_max_position_embeddings"]
            for one in of_layers
            if one.get("rope_type") == "longrope"
        ),
        default=inf,
    )
