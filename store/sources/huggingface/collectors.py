"""Columns of hidden states and attention maps, filled layer by layer while a pass runs.

States are cast and copied to the CPU as they come, and only layers that are kept are looked at.
Each map is reduced in float32 as it comes, and the results cast to float16; unless full maps are
kept, none stays. A causal model's maps are exactly zero above the diagonal: the softmax of the most
negative number. Layers may be on different devices, so masks and indices are made on the device of
what they are for.

Axes: B traces, T tokens, L layers that are kept, H heads, d hidden size.
"""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from store.errors import SchemaError
from store.sources.huggingface.attention_scores import ON_CONTEXT
from store.traces.columns import TRACE_COLUMNS, columns_of

__all__ = [
    "ATTENTION",
    "EDGES",
    "STATES",
    "AttentionColumns",
    "HalfRangeError",
    "Layout",
    "StateColumns",
]

Row = dict[str, Tensor | np.ndarray]
Strong = tuple[NDArray[np.int64], NDArray[np.float16]]
ATTENTION = columns_of("attention")
EDGES = tuple(name for name in ATTENTION if TRACE_COLUMNS[name].axis == "edges")
HALF_END = 65520.0  # from here on, rounding to float16 gives infinity
EDGE_THRESHOLD = 0.05  # attention that makes an edge, of one head at least
# tokens up to which one operation on the batch is faster than one a trace on what is not padding
SMALL = 128


class Layout(NamedTuple):
    """Where the tokens of B traces lie, padded on the right to T."""

    lengths: tuple[int, ...]  # tokens of each trace
    prompt_lens: tuple[int, ...]  # tokens of each prompt, at least one
    # the first token of each context, and how many there are; (-1, 0) without one
    contexts: tuple[tuple[int, int], ...] = ()

    @property
    def width(self) -> int:
        return max(self.lengths)

    def between(self, starts: Sequence[int], ends: Sequence[int], device: torch.device) -> Tensor:
        """Whether a token lies in `starts[i]` to `ends[i] - 1` of its trace, bool (B, T)."""
        positions = torch.arange(self.width, device=device)
        first = torch.tensor(starts, device=device)[:, None]
        end = torch.tensor(ends, device=device)[:, None]
        return (positions >= first) & (positions < end)

    # every layer of a pass asks for the following, on at most a few devices

    @lru_cache(maxsize=4)  # noqa: B019 - a layout is a few numbers
    def is_answer(self, device: torch.device) -> Tensor:
        """What is a token of an answer, bool (B, T)."""
        return self.between(self.prompt_lens, self.lengths, device)

    @lru_cache(maxsize=4)  # noqa: B019
    def is_token(self, device: torch.device) -> Tensor:
        """What is no padding, bool (B, T)."""
        return self.between([0] * len(self.lengths), self.lengths, device)


@lru_cache(maxsize=8)
def _last_places(lengths: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Trace and position of the last of so many tokens of each trace, int64 (B,) both."""
    return torch.arange(len(lengths), device=device), torch.tensor(lengths, device=device) - 1


def _mean_state(layout: Layout, states: Tensor) -> Tensor:
    """In float32; without the padding, whose states may be anything."""
    inside = layout.is_answer(states.device)[:, :, None]
    total = states.float().masked_fill(~inside, 0).sum(dim=1)
    return total / inside.sum(dim=1)


# column -> its values of a layer, (B, T, d) -> (B, d) or (B, T, d); those of every token first
STATES: dict[str, Callable[[Layout, Tensor], Tensor]] = {
    "hidden_states": lambda _, states: states,
    "hs_mean": _mean_state,
    "hs_prompt": lambda at, states: states[_last_places(at.prompt_lens, states.device)],
    "hs_last": lambda at, states: states[_last_places(at.lengths, states.device)],
}


def _previous(_: Layout, maps: Tensor) -> Tensor:
    before = maps.diagonal(offset=-1, dim1=2, dim2=3)
    return torch.nn.functional.pad(before, (1, 0), value=torch.nan)


def _mass(layout: Layout, maps: Tensor, starts: Sequence[int], ends: Sequence[int]) -> Tensor:
    """Sum the attention to the tokens from `starts[i]` to `ends[i] - 1` of trace i."""
    if layout.width <= SMALL:
        inside = layout.between(starts, ends, maps.device).float()
        return (maps @ inside[:, None, :, None]).squeeze(3)
    sums = [
        trace[:, :, start:end].sum(dim=2)
        for trace, start, end in zip(maps, starts, ends, strict=True)
    ]
    return torch.stack(sums)


def _of_contexts(reduce: Callable[[Tensor], Tensor], layout: Layout, maps: Tensor) -> Tensor:
    """Reduce the attention to each trace's context; NaN without one."""
    column = maps.new_full(maps.shape[:3], torch.nan)
    for i, (start, n) in enumerate(layout.contexts):
        if n:
            column[i] = reduce(maps[i, :, :, start : start + n])
    return column


# column -> one number a token and head, (B, H, T, T) -> (B, H, T), all float32
BY_HEAD: dict[str, Callable[[Layout, Tensor], Tensor]] = {
    "attn_diag": lambda _, maps: maps.diagonal(dim1=2, dim2=3),
    "attn_colsum": lambda _, maps: maps.sum(dim=2),
    "attn_pmass": lambda at, maps: _mass(at, maps, [0] * len(maps), at.prompt_lens),
    "attn_amass": lambda at, maps: _mass(at, maps, at.prompt_lens, at.lengths),
    "attn_prev": _previous,
    "attn_entropy": lambda _, maps: torch.special.entr(maps).sum(dim=3),
    **{name: partial(_of_contexts, reduce) for name, reduce in ON_CONTEXT.items()},
}


class HalfRangeError(SchemaError, OverflowError):
    """Hidden states beyond the range of their column: run the model in another precision."""


class StateColumns:
    """Collects the states of a batch; `layers` are the L that are kept, in that order."""

    def __init__(
        self,
        layout: Layout,
        layers: Sequence[int],
        is_bfloat16: bool,
        columns: Collection[str],
    ) -> None:
        self._layout = layout
        self._layers = layers
        self._dtype = torch.bfloat16 if is_bfloat16 else torch.float16
        self._end = torch.inf if is_bfloat16 else HALF_END
        self._columns = [name for name in STATES if name in columns]
        self._kept: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}

    def take(self, number: int, states: Tensor) -> None:
        """Keep the states (B, T, d) of the layer that is number `number` of those kept."""
        for name in self._columns:
            values = STATES[name](self._layout, states)
            self._keep(name, number, values)
            self._largest[name][number] = self._magnitude(values)

    def _keep(self, name: str, number: int, values: Tensor) -> None:
        """Cast and copy to the place of a layer in the column (B, L, d) or (B, T, L, d)."""
        if name not in self._kept:
            shape = (*values.shape[:-1], len(self._layers), values.shape[-1])
            self._kept[name] = torch.empty(shape, dtype=self._dtype)
            self._largest[name] = torch.zeros(len(self._layers), len(values))
        column = self._kept[name]
        if values.shape[-1] != column.shape[-1]:  # some models end in a projection
            raise SchemaError(
                f"layers: expected states of one size, found another in layer "
                f"{self._layers[number]}; leave it out (--layers)"
            )
        column[..., number, :] = values.to(self._dtype)

    def _magnitude(self, values: Tensor) -> Tensor:
        """The largest magnitude in the tokens of each trace, (B,); NaN where one is NaN."""
        largest = values.abs().amax(dim=-1)
        if largest.ndim == 2:
            is_token = self._layout.is_token(values.device)
            largest = largest.masked_fill(~is_token, 0).amax(dim=1)
        return largest

    def rows(self) -> list[Row | HalfRangeError]:
        """The columns of each trace, bfloat16 tensors or float16 arrays.

        A trace with a value beyond the range of its column has an error in their place.
        """
        is_bfloat16 = self._dtype == torch.bfloat16
        kept = {
            name: column if is_bfloat16 else column.numpy() for name, column in self._kept.items()
        }
        rows: list[Row | HalfRangeError] = []
        for i, n in enumerate(self._layout.lengths):
            row: Row = {name: column[i] for name, column in kept.items()}
            if "hidden_states" in row:
                row["hidden_states"] = row["hidden_states"][:n]
            rows.append(row)
        for name in reversed(self._columns):  # the error of the first column is kept
            fits = (self._largest[name] < self._end).all(dim=0)  # NaN does not
            for i in (~fits).nonzero()[:, 0].tolist():
                rows[i] = self._range_error(name, self._largest[name][:, i])
        return rows

    def _range_error(self, name: str, largest: Tensor) -> HalfRangeError:
        """The error of the first layer whose largest magnitude does not fit; (L,)."""
        first = int((largest < self._end).int().argmin())
        limit = "no finite number" if self._end == torch.inf else "beyond float16 (65504)"
        return HalfRangeError(
            f"{name}: layer {self._layers[first]} has the value {largest[first]:g}, {limit}"
        )


class AttentionColumns:
    """Collects the reductions of a batch's maps."""

    def __init__(
        self, layout: Layout, n_layers: int, n_heads: int, columns: Collection[str]
    ) -> None:
        self._layout = layout
        self._columns = [name for name in ATTENTION if name in columns]
        n_traces, width = len(layout.lengths), layout.width
        self._pairs = lru_cache(partial(_pairs, width))  # layers may be on several devices
        self._n_layers = n_layers
        self._n_heads = n_heads
        by_head = (n_traces, width, n_layers, n_heads)
        half = torch.float16
        self._by_head = {
            name: torch.empty(by_head, dtype=half) for name in BY_HEAD if name in columns
        }
        self._means = torch.empty(0, dtype=half)
        if "attn_mean" in columns:
            n_pairs = width * (width + 1) // 2
            self._means = torch.empty(n_traces, n_layers, n_pairs, dtype=half)
        self._has_edges = not set(EDGES).isdisjoint(columns)
        # of each trace, for each layer: target, source, layer and head (m, 4), and values (m,)
        self._strong: list[list[Strong]] = [[] for _ in layout.lengths]
        self._full: list[Tensor] = []
        if "attentions" in columns:
            self._full = [torch.empty(n, n, n_layers, n_heads, dtype=half) for n in layout.lengths]

    def take(self, number: int, maps: Tensor) -> None:
        """Keep what columns need of the maps (B, H, T, T) of layer number `number` of those kept.

        The maps' rows of padding are set to zero.
        """
        self._clear_padding(maps)
        if self._means.numel():
            self._means[:, number] = self._mean_triangles(maps)
        for i, full in enumerate(self._full):
            n = len(full)
            full[:, :, number] = maps[i, :, :n, :n].permute(1, 2, 0)
        if self._has_edges:
            self._take_edges(number, maps)
        if not self._by_head:
            return
        floats = maps.float()
        for name, column in self._by_head.items():
            values = BY_HEAD[name](self._layout, floats)  # (B, H, T)
            column[:, :, number] = values.half().transpose(1, 2)

    def take_identity(self, number: int, device: torch.device) -> None:
        """Keep what stands for the embedding: each token attends to itself alone."""
        width = self._layout.width
        shape = (len(self._layout.lengths), self._n_heads, width, width)
        self.take(number, torch.eye(width, device=device).expand(shape).clone())

    def _take_edges(self, number: int, maps: Tensor) -> None:
        """Keep what is strong of the rows from each prompt's last token on."""
        layout = zip(self._layout.lengths, self._layout.prompt_lens, strict=True)
        for i, (n, prompt_len) in enumerate(layout):
            begin = prompt_len - 1
            rows = maps[i, :, begin:n, :n].half()  # (H, answer, n)
            is_strong = (rows.float() >= EDGE_THRESHOLD).tril(begin - 1)  # of earlier tokens
            head, row, source = is_strong.nonzero(as_tuple=True)
            layer = torch.full_like(head, number)
            places = torch.stack([row + begin, source, layer, head], dim=1)
            # each layer's are copied: their number is not known before the last one
            self._strong[i].append((places.cpu().numpy(), rows[is_strong].cpu().numpy()))

    def _edges(self, trace: int) -> dict[str, np.ndarray]:
        """The edges of a trace, by target and source; 0 where a head's attention is not strong."""
        n = self._layout.lengths[trace]
        places, values = map(np.concatenate, zip(*self._strong[trace], strict=True))
        target, source, layer, head = places.T
        pair, edge = np.unique(target * n + source, return_inverse=True)
        edges = np.zeros((len(pair), self._n_layers, self._n_heads), np.float16)
        edges[edge, layer, head] = values
        ends = np.stack([pair // n, pair % n], axis=1).astype(np.int32)
        made: dict[str, np.ndarray] = {"attn_edges": edges, "attn_edge_ends": ends}
        return {name: made[name] for name in EDGES if name in self._columns}

    def _mean_triangles(self, maps: Tensor) -> Tensor:
        """Means over heads, their lower triangles row by row: (0, 0), (1, 0), (1, 1), (2, 0), ...

        (B, H, T, T) -> float16 (B, T * (T + 1) / 2); the first n * (n + 1) / 2 entries are those of
        a trace of n tokens.
        """
        mean = maps.mean(dim=1, dtype=torch.float32).half()
        return mean.flatten(start_dim=1).index_select(1, self._pairs(mean.device))

    def _clear_padding(self, maps: Tensor) -> None:
        """Set the rows of padding to zero, in place."""
        if self._layout.width <= SMALL:
            is_token = self._layout.is_token(maps.device)
            maps.masked_fill_(~is_token[:, None, :, None], 0)
            return
        for i, n in enumerate(self._layout.lengths):
            maps[i, :, n:] = 0

    def rows(self) -> list[dict[str, np.ndarray]]:
        """The columns of each trace, float16."""
        by_head = {name: column.numpy() for name, column in self._by_head.items()}
        means = self._means.numpy()
        rows: list[dict[str, np.ndarray]] = []
        for i, n in enumerate(self._layout.lengths):
            row: dict[str, np.ndarray] = {name: column[i, :n] for name, column in by_head.items()}
            if means.size:
                n_pairs = n * (n + 1) // 2
                row["attn_mean"] = np.ascontiguousarray(means[i, :, :n_pairs].T)  # (pairs, L)
            if self._has_edges:
                row |= self._edges(i)
            if self._full:
                row["attentions"] = self._full[i].flatten(end_dim=1).numpy()
            rows.append(row)
        return rows


def _pairs(width: int, device: torch.device) -> Tensor:
    """Where the lower triangle of a flattened square lies, row by row; int64."""
    rows, columns = torch.tril_indices(width, width, device=device)
    return rows * width + columns
