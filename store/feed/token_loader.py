"""`TokenLoader`: batches of tokens in one global order over all of them, read ahead by threads.

It is `TraceLoader` with a token where that has a row. The order maps each position on its own,
however few tokens there are: no list of them is made.
"""

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from store.errors import NotFoundError, SchemaError
from store.feed.loader import Loader, LoaderOptions, Visited
from store.feed.order import BlockOrder, EpochOrder
from store.format.ranges import packed_offsets
from store.format.values import is_integer
from store.read.batches.tensors import as_numbers
from store.read.joined.joined_store import Stores
from store.read.plan import (
    ReadPlan,
    RowRanges,
    Span,
    as_span,
    check_ranges,
    slice_ranges,
)
from store.read.store import TraceStore
from store.read.token_choice import TokenChoice

__all__ = ["TokenLoader"]

NAMED = ("all", "prompt", "answer")
PROMPT = "prompt_len"
BLOCK_ITEMS = 2**22  # of a mask, looked at together
BLOCK_ROWS = 2**16


class TokenLoader(Loader):
    """Iterate over batches of tokens, shuffled over all traces, one epoch an iteration.

    `batch[name]` is `(n_tokens, *item_shape)`, a tensor, of a column of the tokens' axis; of a
    column of traces it is what the trace of each token has. `batch.rows` and `batch.positions`,
    int64 `(n_tokens,)`, say which trace each token is of, and which of its tokens it is. Epochs,
    ranks and states are those of `TraceLoader`.

    Parameters
    ----------
    columns
        Names to read, at least one of them of a ragged axis, and none of another one.
    batch_size
        Tokens a batch; the last one may be smaller unless `drop_last`.
    shuffle
        Visit the tokens in a global random order, different in each epoch. Its memory does not
        grow with the number of tokens. "blocks", where they lie on a disk or in a bucket and do
        not fit in memory: blocks of `block` tokens that lie together come in random order, and
        `buffer` tokens are mixed, which are in the page cache twice over. Of two tokens that follow
        each other, one in `buffer / block` is of the same block (see `BlockOrder` for the rest).
    tokens
        Those to visit: "all"; "prompt" or "answer", by the column `prompt_len` (of a trace where it
        is negative, all); a ragged column of numbers, for the tokens where it is above 0; or a
        slice or a `RowRanges`, as `TraceStore.read` takes them for a ragged axis.
    block, buffer
        Numbers of tokens, for `shuffle="blocks"`.
    options
        As `TraceLoader` takes them by name: `rows` or `where` choose the traces whose tokens are
        visited; the tokens' axis is not among those of `select`.

    Raises
    ------
    SchemaError
        The columns have no ragged axis, or several.
    """

    listed = -1  # none
    shuffles = (False, True, "blocks")

    def __init__(
        self,
        store: Stores,
        columns: Sequence[str],
        batch_size: int = 4096,
        shuffle: bool | str = False,
        seed: int = 0,
        *,
        tokens: str | slice | RowRanges = "all",
        block: int = 256,
        buffer: int = 2**17,
        **options: Unpack[LoaderOptions],
    ) -> None:
        if not (is_integer(block) and is_integer(buffer) and 0 < block <= buffer):
            raise ValueError(f"expected 0 < block <= buffer, found {block!r} and {buffer!r}")
        self.block = int(block)
        self.buffer = int(buffer)
        self._tokens = tokens
        super().__init__(store, columns, batch_size, shuffle, seed, **options)

    @property
    def tokens(self) -> TokenChoice:
        """Those that this epoch visits."""
        assert self._plan.tokens is not None
        return self._plan.tokens

    def _look(self, n_rows: int) -> Visited:
        plan = self.store.plan(self._columns, self._select)
        axis = _axis_of(self.store, plan)
        tokens = choose_tokens(self.store, axis, self._tokens, self._given, n_rows)
        named: dict[str, int | str] = {
            "n_rows": n_rows if self._given is None else len(self._given),
            "n_tokens": len(tokens),
            "tokens": tokens.digest,
        }
        if self.shuffle == "blocks":
            named |= {"block": self.block, "buffer": self.buffer}
        return Visited(len(tokens), plan._replace(tokens=tokens), named)

    def order_of(self, n: int, epoch: int) -> EpochOrder:
        if self.shuffle == "blocks":
            return BlockOrder(n, self.seed, epoch, self.block, self.buffer)
        return super().order_of(n, epoch)

    def _cuts(self, visited: Visited) -> np.ndarray:
        tokens = visited.plan.tokens
        assert tokens is not None
        return tokens.cuts[
            super()._cuts(visited._replace(n=len(tokens.cuts) - 1, rows=tokens.rows))
        ]


def _axis_of(store: TraceStore, plan: ReadPlan) -> str:
    """The ragged axis of the columns; raises SchemaError unless they have one, read whole."""
    spans = {part.span for part in plan.parts if part.column.axis is not None}
    axes = sorted({str(span.axis) for span in spans})
    names = [part.name for part in plan.parts]
    if len(axes) != 1:
        expected = f"{store.location}: columns: expected some of one ragged axis"
        raise SchemaError(f"{expected}, found {names}, of {axes or 'none'}")
    if spans != {Span(axes[0])}:
        raise SchemaError(
            f"select: expected no part of the axis {axes[0]!r} of tokens, found one; "
            "choose tokens by tokens=slice(...)"
        )
    return axes[0]


def choose_tokens(
    store: TraceStore,
    axis: str,
    tokens: str | slice | RowRanges,
    rows: np.ndarray | None,
    n_rows: int,
) -> TokenChoice:
    """The tokens of rows, int64 `(n,)`, or of the first `n_rows`, that `tokens` means; see
    `TokenLoader`."""
    offsets = store.reader.offsets(axis).read_checked()
    if rows is None:
        offsets = offsets[: n_rows + 1]
    if isinstance(tokens, str) and tokens == "all" and rows is None:
        return TokenChoice(axis, offsets, offsets)
    if isinstance(tokens, str) and tokens not in NAMED:
        runs, cuts, firsts = _runs_of_mask(store, axis, tokens, offsets)
        if rows is not None:
            kept = _runs_of_rows(runs, rows)
            runs, firsts, lengths = runs[kept], firsts[kept], np.diff(cuts)[kept]
            cuts = packed_offsets(0 * lengths, lengths)
        return TokenChoice(axis, offsets, cuts, runs, firsts)
    if not isinstance(tokens, str):
        check_ranges([as_span(tokens, axis, "tokens")], len(store), f"{store.location}: tokens")
    n = n_rows if rows is None else len(rows)
    firsts = np.empty(n, np.int64)
    cuts = np.zeros(n + 1, np.int64)
    for start in range(0, n, BLOCK_ROWS):  # all at once would take five times as much memory
        block = slice(start, min(start + BLOCK_ROWS, n))
        numbers = np.arange(block.start, block.stop) if rows is None else rows[block]
        starts = offsets[numbers]
        lengths = offsets[numbers + 1] - starts
        if isinstance(tokens, str) and tokens != "all":
            begins, ends = _named_ranges(store, tokens, numbers, lengths)
        else:
            span = Span(axis) if isinstance(tokens, str) else as_span(tokens, axis, "tokens")
            begins, ends = slice_ranges(0 * lengths, lengths, span, numbers)
        firsts[block] = begins
        np.cumsum(ends - begins, out=cuts[block.start + 1 : block.stop + 1])
        cuts[block.start + 1 : block.stop + 1] += cuts[block.start]
    return TokenChoice(axis, offsets, cuts, rows, firsts)


def _named_ranges(
    store: TraceStore, tokens: str, rows: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where the prompt or the answer of traces of these lengths is: first, and after the last, all
    int64 `(n,)`; the whole trace where it is not known."""
    if PROMPT not in store.schema.columns:
        raise NotFoundError(
            f"{store.location}: tokens={tokens!r}: expected the column {PROMPT!r}, found none; "
            'use "all", a mask, or a RowRanges'
        )
    prompts = np.asarray(store.column_array(PROMPT))[rows].astype(np.int64)
    is_known = prompts >= 0
    ends = np.minimum(prompts, lengths)
    if tokens == "prompt":
        return 0 * lengths, np.where(is_known, ends, lengths)
    return np.where(is_known, ends, 0), lengths


def _runs_of_mask(
    store: TraceStore, axis: str, name: str, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The runs of tokens for which a column is above 0: rows, cuts and firsts of `TokenChoice`."""
    column = store.schema.column(name, store.location)
    if column.axis != axis or column.item_shape:
        raise SchemaError(
            f"{store.location}: tokens: expected {', '.join(map(repr, NAMED))}, or a column of one "
            f"number a token of the axis {axis!r}, found {name!r}"
        )
    begins, ends = [], []
    n_items = int(offsets[-1])
    array = store.reader.column(name)
    for start in range(0, n_items, BLOCK_ITEMS):
        stop = min(start + BLOCK_ITEMS, n_items)
        with store.reader.explained(axis):
            chosen = as_numbers(array.read(start, stop), column.dtype) > 0
        # a run ends with its row, and with its block
        first = np.zeros(len(chosen) + 1, bool)
        first[[0, -1]] = True
        inside = offsets[slice(*offsets.searchsorted([start, stop]))] - start
        first[inside] = True
        begins.append(start + np.flatnonzero(chosen & (first[:-1] | ~np.roll(chosen, 1))))
        ends.append(start + 1 + np.flatnonzero(chosen & (first[1:] | ~np.roll(chosen, -1))))
    firsts = np.concatenate([np.empty(0, np.int64), *begins])
    cuts = packed_offsets(firsts, np.concatenate([np.empty(0, np.int64), *ends]))
    rows = offsets.searchsorted(firsts, "right") - 1
    return rows, cuts, firsts - offsets[rows]


def _runs_of_rows(runs: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which runs are of these rows, row by row: int64; `runs` are the rising rows of all."""
    starts, stops = runs.searchsorted(rows), runs.searchsorted(rows, "right")
    cuts = packed_offsets(starts, stops)
    return np.arange(cuts[-1]) + np.repeat(starts - cuts[:-1], stops - starts)
