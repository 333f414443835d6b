"""Runs a model on batches, in smaller ones where the memory does not suffice."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.sources.huggingface.provenance import describe_model

__all__ = ["BatchedModel", "Halving"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# Runs of the smaller size before twice as many items are tried again: one batch of long traces
# should not slow down all others, and each failed run costs about as much as one that succeeds.
PATIENCE = 16


class Halving:
    """Runs batches, and remembers how many items at once memory sufficed for.

    `sizes`: numbers of items, other than those of whole batches, that were run at once; in the
    order in which they were first run.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._limit: int | None = None
        self._n_runs = 0  # with this limit

    def run(
        self, run: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]
    ) -> Iterator[Result]:
        """Run over all items at once; where memory does not suffice, over half as many.

        Yields the results of `run`, in the order of the items. Raises torch.OutOfMemoryError: one
        item is too much.
        """
        first = 0
        while first < len(items):
            n_items = min(self._limit or len(items), len(items) - first)
            results: list[Result] | None = None
            try:
                results = run(items[first : first + n_items])
            except torch.OutOfMemoryError:
                if n_items == 1:
                    raise
            if results is None:
                torch.cuda.empty_cache()  # the error is gone by now, and with it what the run held
                self._set_limit(n_items // 2)
                continue
            if n_items < len(items) and n_items not in self.sizes:
                self.sizes.append(n_items)
            yield from results
            del results  # before the next run needs the memory
            first += n_items
            self._grow(len(items))

    def _set_limit(self, limit: int | None) -> None:
        self._limit = limit
        self._n_runs = 0

    def _grow(self, n_whole: int) -> None:
        """After some runs within the limit, allow twice as many items."""
        if self._limit is None:
            return
        self._n_runs += 1
        if self._n_runs >= PATIENCE:
            doubled = 2 * self._limit
            self._set_limit(doubled if doubled < n_whole else None)


class BatchedModel:
    """A model that is asked about texts, a batch at a time.

    `name`: name in the provenance; by default what the model was loaded from.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        batch_size: int,
        name: str | None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.name = name or str(model.name_or_path)
        self.n_ids: int = model.config.get_text_config().vocab_size
        self._halving = Halving()

    def run_batches(
        self, run: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]
    ) -> Iterator[Result]:
        """The results of `run` for all items, in their order; see `Halving.run`."""
        for first in range(0, len(items), self.batch_size):
            yield from self._halving.run(run, items[first : first + self.batch_size])

    @cached_property
    def described(self) -> dict[str, object]:
        """What decides its numbers, JSON-able; the checksum reads all weights."""
        return describe_model(self.model, self.tokenizer, self.name, None)
