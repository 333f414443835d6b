"""What the passes of `generate` give of an answer while it is written: states and predictions.

The hooks, and what makes columns of states, are those of the extraction's second pass. Each pass
leaves what the columns need: of the prompt the states of its last token (of all tokens for
`hidden_states`), of each answered token one state a layer, and a few numbers of its prediction. The
last token of an answer that reached its longest length goes through no pass of `generate`; then one
more is run, with the cache of the others.

Axes: B sequences, W tokens of the padded prompts, n tokens that were written, d hidden size.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from store.errors import SchemaError
from store.sources.huggingface.collectors import HalfRangeError, Layout, StateColumns
from store.sources.huggingface.generation import cut_at_end, end_ids
from store.sources.huggingface.module_outputs import Takes, run_watched
from store.sources.huggingface.predictions import FIRST, prediction_columns

__all__ = ["WHOLE", "Passes", "Spoken", "read_spoken", "watch_passes"]

OnToken = Callable[[Tensor, dict[int, Tensor], dict[str, NDArray]], None]
WHOLE = "hidden_states"
EOS = "eos_logprob"


@dataclass(frozen=True)
class Spoken:
    """The sequences of one call of `generate`, without padding and ends."""

    prompts: list[list[int]]
    answers: list[list[int]]
    width: int  # W
    written: Tensor  # int64 (B, n): the answers and what fills them up

    @property
    def traces(self) -> list[list[int]]:
        return [prompt + answer for prompt, answer in zip(self.prompts, self.answers, strict=True)]

    @property
    def prompt_lens(self) -> list[int]:
        return list(map(len, self.prompts))


def read_spoken(
    ids: Tensor, mask: Tensor, sequences: Tensor, ends: set[int], pads: set[int]
) -> Spoken:
    """Prompts, int64 (B, W) both, and what `generate` made of them, (B * r, W + n).

    An answer ends before the first token of `ends`, as a trace does, and before the padding that
    fills up one that a rule ended.
    """
    width = ids.shape[1]
    written = sequences[:, width:]
    prompts = [row[is_there].tolist() for row, is_there in zip(ids, mask.bool(), strict=True)]
    r = len(sequences) // len(prompts)
    return Spoken(
        [prompt for prompt in prompts for _ in range(r)],
        [cut(answer, ends, pads) for answer in written.tolist()],
        width,
        written,
    )


def cut(answer: list[int], ends: set[int], pads: set[int]) -> list[int]:
    """Keep what comes before the first end, or before padding to the last token; at least one."""
    if not ends.isdisjoint(answer):
        return cut_at_end(answer, ends, None)
    n_tokens = max((n for n, token in enumerate(answer, 1) if token not in pads), default=1)
    return answer[:n_tokens]


@dataclass
class Passes:
    """Collects the passes of a generation.

    `layers` are by column of states, ascending, those to keep; `predictions` the columns of these.
    `on_token` is told each token as soon as it went through the model: the tokens (B,), by layer
    `layers_of_tokens` the states (B, d) of these, and by column what is known of their prediction.
    """

    model: PreTrainedModel
    layers: Mapping[str, Sequence[int]]
    predictions: Collection[str] = ()
    top_k: int = 10
    on_token: OnToken | None = None
    layers_of_tokens: Collection[int] = ()
    widths: list[int] = field(default_factory=list)  # tokens of each pass
    _states: dict[int, list[Tensor]] = field(default_factory=dict)  # by layer: (B, t, d) of a pass
    _described: list[list[dict[str, Any]]] = field(default_factory=list)  # of each token
    _ends: list[list[Any]] = field(default_factory=list)  # that an end comes, behind each pass
    _inputs: dict[str, Any] = field(default_factory=dict)  # of the last pass
    _logits: Tensor | None = None  # of the last pass, (B, 1, V), of a token that is to come

    def run(self, inputs: dict[str, Any]) -> Any:
        """Run the model, and keep what is needed of the pass."""
        ids = inputs["input_ids"]
        self._describe(ids[:, -1])
        takes = Takes()
        for layer in {layer for layers in self.layers.values() for layer in layers}:
            takes.states[layer].append(partial(self._keep, layer))
        of_token: dict[int, Tensor] = {}
        for layer in self.layers_of_tokens:
            takes.states[layer].append(partial(self._note, of_token, layer))
        out = run_watched(self.model, takes, **inputs)
        self.widths.append(ids.shape[1])
        self._inputs = inputs
        self._tell(ids[:, -1], of_token)
        if self.predictions:
            self._logits = out.logits[:, -1:]
        if EOS in self.predictions:
            found = prediction_columns(
                out.logits[:, -1:], [[0]] * len(ids), 1, end_ids(self.model), [EOS]
            )
            self._ends.append([row[EOS] for row in found])
        return out

    def _keep(self, layer: int, states: Tensor) -> None:
        kept = states if WHOLE in self.layers else states[:, -1:]
        self._states.setdefault(layer, []).append(kept.clone())

    def _note(self, noted: dict[int, Tensor], layer: int, states: Tensor) -> None:
        noted[layer] = states[:, -1].clone()

    def _tell(self, tokens: Tensor, states: dict[int, Tensor]) -> None:
        """Hand on the tokens (B,) of the last pass, unless it was that of the prompts."""
        if self.on_token is None or len(self.widths) < 2:
            return
        if self.widths[-1] != 1 or not self._is_plain:
            raise SchemaError(
                f"expected a pass for each token, as scores of tokens need, found one of "
                f"{self.widths[-1]}; generate with a cache, without a model that assists"
            )
        rows = self._described[-1] if self._described else [{}]
        self.on_token(
            tokens, states, {name: np.stack([row[name][0] for row in rows]) for name in rows[0]}
        )

    def _describe(self, tokens: Tensor) -> None:
        """The predictions of tokens (B,) by the last pass."""
        wanted = [name for name in self.predictions if name != EOS]
        if self._logits is None or not wanted:
            return
        pairs = [[0, token] for token in tokens.tolist()]
        found = prediction_columns(self._logits, pairs, self.top_k, (), wanted)
        self._described.append([{name: row[name][1:] for name in wanted} for row in found])

    def saw(self, spoken: Spoken) -> bool:
        """Whether the passes were those of a prompt and of one token after the other."""
        n = spoken.written.shape[1]
        return self._is_plain and self.widths[:n] == [spoken.width, *[1] * (n - 1)]

    @property
    def _is_plain(self) -> bool:
        mask = self._inputs.get("attention_mask")  # none where nothing is padding
        return mask is None or (isinstance(mask, Tensor) and mask.ndim == 2)

    def rows(self, spoken: Spoken, *, keeps_cache: bool) -> list[dict[str, Any]]:
        """The columns of each sequence, as an extraction makes them, while passes are watched.

        The caller of `generate` may keep its cache, which is then left as it is.

        Raises HalfRangeError for a state beyond the range of its column.
        """
        n = spoken.written.shape[1]
        if len(self.widths) == n:
            self._end(spoken, keeps_cache)
        rows = [self._predictions(spoken, i) for i in range(len(spoken.prompts))]
        for name in self.layers:
            for row, found in zip(rows, self._column(name, spoken), strict=True):
                if isinstance(found, HalfRangeError):
                    raise found
                row |= found
        return rows

    def _end(self, spoken: Spoken, keeps_cache: bool) -> None:
        """Have the last token predicted, and run it where its states are wanted."""
        last = spoken.written[:, -1:]
        n = spoken.written.shape[1]
        if max(map(len, spoken.answers)) < n:
            self._describe(last[:, 0])
            return
        if not self.layers and not self.layers_of_tokens and EOS not in self.predictions:
            self._describe(last[:, 0])
            self.widths.append(1)  # it would be one
            self._tell(last[:, 0], {})
            return
        inputs = dict(self._inputs)
        cache = inputs.get("past_key_values")
        if keeps_cache and cache is not None:
            inputs["past_key_values"] = deepcopy(cache)
        inputs["input_ids"] = last
        mask = inputs.get("attention_mask")
        if mask is not None:
            inputs["attention_mask"] = torch.cat([mask, mask[:, -1:]], dim=1)
        for name in ("position_ids", "cache_position"):
            if inputs.get(name) is not None:
                inputs[name] = inputs[name][..., -1:] + 1
        with torch.no_grad():
            self.model(**inputs)  # which `watch_passes` hands to `run`

    def _column(self, name: str, spoken: Spoken) -> Sequence[dict[str, Any] | HalfRangeError]:
        """A column of states; a prompt of which one token is kept counts as that."""
        is_whole = WHOLE in self.layers
        prompt_lens = spoken.prompt_lens if is_whole else [1] * len(spoken.prompts)
        lengths = [n + len(one) for n, one in zip(prompt_lens, spoken.answers, strict=True)]
        layout = Layout(tuple(lengths), tuple(prompt_lens))
        layers = self.layers[name]
        columns = StateColumns(layout, layers, self.model.dtype == torch.bfloat16, [name])
        for number, layer in enumerate(layers):
            states = torch.cat(self._states[layer], dim=1)
            starts = [spoken.width - n if is_whole else 0 for n in prompt_lens]
            columns.take(number, shifted(states, starts, layout.width))
        return columns.rows()

    def _predictions(self, spoken: Spoken, i: int) -> dict[str, Any]:
        """The columns of predictions of a sequence; nothing is known of those of its prompt."""
        n = len(spoken.answers[i])
        row: dict[str, Any] = {}
        for name in self.predictions:
            if name == EOS:
                row[name] = self._ends[n][i]
                continue
            found = np.concatenate([of_token[i][name] for of_token in self._described[:n]])
            unknown = np.full((len(spoken.prompts[i]), *found.shape[1:]), FIRST[name], found.dtype)
            row[name] = np.concatenate([unknown, found])
        return row


def shifted(states: Tensor, starts: Sequence[int], width: int) -> Tensor:
    """From states (B, S, d) those of `width` tokens from a start of each sequence on."""
    first = torch.tensor(starts, device=states.device)[:, None]
    places = (first + torch.arange(width, device=states.device)).clamp(max=states.shape[1] - 1)
    return states[torch.arange(len(states), device=states.device)[:, None], places]


@contextmanager
def watch_passes(passes: Passes) -> Iterator[None]:
    """Have every pass of a model go through `passes` inside the block."""
    model: Any = passes.model
    own = model.forward
    is_own = "forward" in vars(model)

    @wraps(own)  # generate reads its parameters
    def forward(**inputs: object) -> Any:
        model.forward = own
        try:
            return passes.run(inputs)
        finally:
            model.forward = forward

    model.forward = forward
    try:
        yield
    finally:
        if is_own:
            model.forward = own
        else:
            del model.forward
