"""The logit lens: what the state of each layer would predict if it were the last (nostalgebraist
2020).

The model's final norm and its output embedding are applied to the states of a layer. Both are found
by what they compute, not by name: the norm is the module that returns the last entry of
transformers' `hidden_states`, and both are tried on a short text, where they must give the model's
own logits.

Axes: B traces, T tokens, L layers that are kept, V ids of the vocabulary, d hidden size.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from store.errors import SchemaError
from store.sources.huggingface.layout import Layout, token_mask
from store.sources.huggingface.module_outputs import PROBE, find_places, once_a_model
from store.sources.huggingface.prediction_columns import entropies, rows_at_once

__all__ = ["LensColumns", "LogitLens", "find_lens"]

BEFORE_NORM = 0  # a layer whose states come before the final norm, as what layers add does


class LogitLens:
    """A model's final norm and output embedding.

    Raises
    ------
    SchemaError
        The two are not found, or do not give the model's logits.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        places = find_places(model, maps=False)
        config = model.config.get_text_config()
        self._last = config.num_hidden_layers
        self._cap = getattr(config, "final_logit_softcapping", None)
        norm = places.states[self._last].module if self._last in places.states else None
        head = model.get_output_embeddings()
        if norm is None or head is None or not _is_norm(norm, config.hidden_size):
            raise _no_lens(model, "its final norm or its output embedding was not found")
        self._norm, self._head = norm, head
        self._check(model)

    def entropies(self, layer: int, states: Tensor) -> Tensor:
        """Entropies of the predictions from states (N, d) of a layer, in nats: float32 (N,)."""
        n_rows = rows_at_once(self._head.weight.shape[0])
        found = [
            entropies(self.logits(layer, rows).float().log_softmax(dim=-1))
            for rows in states.split(n_rows)
        ]
        return torch.cat(found)

    def logits(self, layer: int, states: Tensor) -> Tensor:
        """(N, d) -> (N, V); the states of the last layer come after the final norm."""
        # forward, for a call would be taken for one of the pass that is being watched
        normed = states if layer == self._last else self._norm.forward(states)
        logits: Tensor = self._head.forward(normed)
        if self._cap is not None:
            logits = self._cap * torch.tanh(logits / self._cap)
        return logits

    def _check(self, model: PreTrainedModel) -> None:
        """Raise SchemaError unless the last layer's states give the model's logits."""
        ids = torch.tensor(PROBE, device=model.device) % model.config.get_text_config().vocab_size
        with torch.inference_mode():
            out = model(input_ids=ids, use_cache=False, output_hidden_states=True)
            found = self.logits(self._last, out.hidden_states[-1][0])
        expected = out.logits[0].to(found.device)  # accelerate moves them to that of the ids
        rounding = 16 * torch.finfo(model.dtype).eps
        fits = found.shape == expected.shape
        if not fits or (found - expected).abs().max() > rounding * expected.abs().max():
            raise _no_lens(model, "its logits are not those of its last layer's states")


def _is_norm(module: nn.Module, hidden_size: int) -> bool:
    """Whether a module has no weights but those of a norm: one number a dimension or two."""
    parameters = list(module.parameters())
    return len(parameters) <= 2 and all(p.numel() == hidden_size for p in parameters)


def _no_lens(model: PreTrainedModel, reason: str) -> SchemaError:
    return SchemaError(
        f"columns: lens_entropy: expected a model whose final norm and output embedding can be "
        f"applied to every layer, found {type(model).__name__}: {reason}; leave the column out"
    )


@once_a_model
def find_lens(model: PreTrainedModel) -> LogitLens:
    """The lens of a model; raises SchemaError if there is none."""
    return LogitLens(model)


class LensColumns:
    """Collects the entropies of a batch, (B, T, L), for a column; NaN where nothing is taken."""

    def __init__(self, lens: LogitLens, layout: Layout, n_layers: int, name: str) -> None:
        self._lens = lens
        self._layout = layout
        self._name = name
        self._entropies = torch.full((len(layout.lengths), layout.width, n_layers), torch.nan)

    def take(self, number: int, layer: int, states: Tensor) -> None:
        """Keep what the states (B, T, d) of a layer predict, number `number` of those kept."""
        is_token = token_mask(self._layout, states.device)
        found = self._lens.entropies(layer, states[is_token])  # (tokens of all traces,)
        self._entropies[:, :, number].masked_scatter_(is_token.cpu(), found.cpu())

    def take_added(self, number: int, added: Tensor) -> None:
        """Keep what a part's output, (B, T, d) or (B * T, d), predicts as if it were a state."""
        states = added.reshape(len(self._layout.lengths), self._layout.width, -1)
        self.take(number, BEFORE_NORM, states)

    def rows(self) -> list[dict[str, NDArray[Any]]]:
        """The column (T, L) of each trace: entry t is about the token after token t."""
        found = self._entropies.numpy()
        return [{self._name: found[i, :n]} for i, n in enumerate(self._layout.lengths)]
