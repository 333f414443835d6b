"""Columns of hidden states, filled layer by layer while a pass runs.

States are cast and copied to the CPU as they come, and only layers that are kept are looked at.

Axes: B traces, T tokens, L layers that are kept, d hidden size.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from store.errors import SchemaError
from store.sources.huggingface.layout import Layout, answer_mask, last_places, token_mask
from store.traces.columns import columns_of

__all__ = ["STATES", "HalfRangeError", "StateColumns"]

STATES = columns_of("states")[::-1]  # those of every token first
Row = dict[str, Tensor | NDArray[Any]]

HALF_END = 65520.0  # from here on, rounding to float16 gives infinity


class HalfRangeError(SchemaError, OverflowError):
    """Hidden states beyond the range of their column: run the model in another precision."""


class StateColumns:
    """Collects the states of a batch.

    Parameters
    ----------
    layers : sequence of int
        Numbers of the L layers, in the order in which they are kept.
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
        self._kept: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}

    def take(self, number: int, states: Tensor) -> None:
        """Keep the states (B, T, d) of the layer that is number `number` of those kept."""
        for name in self._columns:
            values = self._values(name, states)
            self._keep(name, number, values)
            self._largest[name][number] = self._magnitude(values)

    def _values(self, name: str, states: Tensor) -> Tensor:
        """What a column holds of a layer: (B, d), or (B, T, d) of `hidden_states`."""
        match name:
            case "hidden_states":
                return states
            case "hs_last":
                return states[last_places(self._layout.lengths, states.device)]
            case "hs_prompt":
                return states[last_places(self._layout.prompt_lens, states.device)]
        # hs_mean, in float32; without the padding, whose states may be anything
        inside = answer_mask(self._layout, states.device)[:, :, None]
        total = states.float().masked_fill(~inside, 0).sum(dim=1)
        return total / inside.sum(dim=1)

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
            is_token = token_mask(self._layout, values.device)
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
