"""Columns of hidden states, filled layer by layer while a pass runs.

States are cast and copied to the CPU as they come, and only layers that are kept are looked at.

Axes: B traces, T tokens, L layers that are kept, d hidden size.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from store.errors import SchemaError
from store.sources.huggingface.layout import Layout, token_mask
from store.traces.columns import columns_of

__all__ = ["STATES", "HalfRangeError", "StateColumns"]

STATES = columns_of("states")[::-1]  # those of every token first
Row = dict[str, Tensor | NDArray[Any]]

HALF_END = 65520.0  # from here on, rounding to float16 gives infinity


class HalfRangeError(SchemaError, OverflowError):
    """Hidden states beyond the range of their column: run the model in another precision."""


class _Masks(NamedTuple):
    """Where tokens lie, on one device: bool (B, T), and int64 (B,)."""

    is_token: Tensor
    is_answer: Tensor
    rows: Tensor
    last: Tensor
    last_of_prompts: Tensor


def _make_masks(layout: Layout, device: torch.device) -> _Masks:
    return _Masks(
        is_token=token_mask(layout, device),
        is_answer=layout.between(layout.prompt_lens, layout.lengths, device),
        rows=layout.rows(device),
        last=layout.last(layout.lengths, device),
        last_of_prompts=layout.last(layout.prompt_lens, device),
    )


class StateColumns:
    """Collects the states of a batch.

    Parameters
    ----------
    layout : Layout
        Where the tokens lie.
    layers : sequence of int
        Numbers of the L layers, in the order in which they are kept.
    is_bfloat16 : bool
        Whether the columns are bfloat16, else they are float16.
    columns : collection of str
        The columns that are kept; those of `STATES` count.
    """

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
        self._masks: dict[torch.device, _Masks] = {}
        self._kept: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}

    def take(self, number: int, states: Tensor) -> None:
        """Keep the states (B, T, d) of the layer that is number `number` of those kept."""
        made_by: dict[str, Callable[[Tensor], Tensor]] = {
            "hidden_states": lambda states: states,
            "hs_last": self._of_last_tokens,
            "hs_prompt": self._of_prompts,
            "hs_mean": self._mean_of_answers,
        }
        for name in self._columns:
            values = made_by[name](states)  # (B, d), or (B, T, d) of hidden_states
            self._keep(name, number, values)
            self._largest[name][number] = self._magnitude(values)

    def _of_last_tokens(self, states: Tensor) -> Tensor:
        masks = self._masks_on(states.device)
        return states[masks.rows, masks.last]

    def _of_prompts(self, states: Tensor) -> Tensor:
        masks = self._masks_on(states.device)
        return states[masks.rows, masks.last_of_prompts]

    def _mean_of_answers(self, states: Tensor) -> Tensor:
        """In float32; without the padding, whose states may be anything."""
        inside = self._masks_on(states.device).is_answer[:, :, None]
        total = states.float().masked_fill(~inside, 0).sum(dim=1)
        return total / inside.sum(dim=1)

    def _masks_on(self, device: torch.device) -> "_Masks":
        """Made once a device: layers of one model may be on several."""
        if device not in self._masks:
            self._masks[device] = _make_masks(self._layout, device)
        return self._masks[device]

    def _keep(self, name: str, number: int, values: Tensor) -> None:
        """Cast and copy to the place of a layer in the column (B, L, d) or (B, T, L, d)."""
        if name not in self._kept:
            shape = (*values.shape[:-1], len(self._layers), values.shape[-1])
            self._kept[name] = torch.empty(shape, dtype=self._dtype)
            self._largest[name] = torch.zeros(len(self._layers), len(values))
        column = self._kept[name]
        self._check_size(number, values.shape[-1], column.shape[-1])
        column[..., number, :] = values.to(self._dtype)

    def _check_size(self, number: int, found: int, expected: int) -> None:
        """Some models end in a projection, so that the last layer is of another size."""
        if found != expected:
            raise SchemaError(
                f"layers: expected states of one size, found another in layer "
                f"{self._layers[number]}; leave it out (--layers)"
            )

    def _magnitude(self, values: Tensor) -> Tensor:
        """The largest magnitude in the tokens of each trace, (B,); NaN where one is NaN."""
        largest = values.abs().amax(dim=-1)
        if largest.ndim == 2:
            is_token = self._masks_on(values.device).is_token
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
