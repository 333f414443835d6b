"""Columns of what a model predicts, at its end and, by the logit lens, in each layer.

The logit lens (nostalgebraist 2020) says what the state of a layer would predict if it were the
last: the model's final norm and its output embedding are applied to it. Both are found by what they
compute, not by name: the norm is the module that returns the last entry of transformers'
`hidden_states`, and both are tried on a short text, where they must give the model's own logits.

The lens reads what attention and the feed-forward part add to the states as well. A short pass
tells which two outputs of modules, of those between the states of two layers, have the difference
of these states as their sum; attention is the one that is computed first. This holds for layers
that run one part after the other, that run both on the same states, or that normalise what they
add; not for layers that scale what they add, or have more than two parts.

Axes: B traces, T tokens, L layers that are kept, V ids of the vocabulary, K candidates, d hidden
size.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from store.errors import SchemaError
from store.sources.huggingface.collectors import Layout
from store.sources.huggingface.module_outputs import (
    PROBE,
    Place,
    find_places,
    once_a_model,
    run_noted,
)
from store.traces.columns import TRACE_COLUMNS, columns_of

__all__ = [
    "BEFORE_NORM",
    "FIRST",
    "PREDICTIONS",
    "LensColumns",
    "entropies",
    "find_additions",
    "find_lens",
    "prediction_columns",
]

PREDICTIONS = columns_of("predictions")
# what stands for token 0, which nothing predicted
FIRST = {
    name: math.nan if TRACE_COLUMNS[name].dtype.startswith("float") else -1
    for name in PREDICTIONS
    if TRACE_COLUMNS[name].axis == "tokens"
}
CHUNK_NUMBERS = 1 << 22  # logits that are float32 at once: 16 MiB, and twice that for their softmax
BEFORE_NORM = 0  # a layer whose states come before the final norm, as what layers add does


def prediction_columns(
    logits: Tensor,
    traces: Sequence[Sequence[int]],
    top_k: int,
    ends: Collection[int],
    columns: Collection[str],
) -> list[dict[str, np.ndarray]]:
    """Describe the distributions that predicted the tokens of traces, and the one after them.

    `logits`, (B, T, V): row t predicts token t + 1; traces are padded on the right.

    Returns, of each trace of T tokens `logprob` and `entropy` float32 (T,), in nats; `topk_logprob`
    float16 (T, K), falling; `topk_id` int32 (T, K). Entry t is about the distribution that
    predicted token t; at t = 0 there is none: NaN, and -1 for the ids. `eos_logprob` float32 ():
    the log-probability that one of `ends` comes after the last token; NaN if there are none.
    """
    made: list[dict[str, np.ndarray]] = [{} for _ in traces]
    if "eos_logprob" in columns:
        last = torch.tensor([len(trace) - 1 for trace in traces], device=logits.device)
        of_ends = _end_logprobs(logits[torch.arange(len(traces), device=logits.device), last], ends)
        for row, value in zip(made, of_ends, strict=True):
            row["eos_logprob"] = np.array(value)
    wanted = [name for name in FIRST if name in columns]
    if not wanted:
        return made
    described = _describe_all(logits, traces, top_k, wanted)
    starts = np.cumsum([0, *(len(trace) for trace in traces)])
    for row, start, end in zip(made, starts[:-1], starts[1:], strict=True):
        row |= {name: values[start:end] for name, values in described.items()}
    return made


def _describe_all(
    logits: Tensor, traces: Sequence[Sequence[int]], top_k: int, wanted: Collection[str]
) -> dict[str, np.ndarray]:
    """The columns of all traces, one after the other; (N, ...) for N tokens."""
    width = logits.shape[1]
    # row before each token but the first: token t of trace i is predicted in row i * width + t - 1
    rows = [i * width + t for i, trace in enumerate(traces) for t in range(len(trace) - 1)]
    targets = [token for trace in traces for token in trace[1:]]
    is_first = np.concatenate([np.arange(len(trace)) == 0 for trace in traces])
    row_numbers, target_ids = torch.tensor([rows, targets], dtype=torch.int64, device=logits.device)
    flat = logits.flatten(end_dim=1)
    n_rows = rows_at_once(logits.shape[2])
    chunks = [
        _describe(flat[numbers], ids, top_k, wanted)
        for numbers, ids in zip(row_numbers.split(n_rows), target_ids.split(n_rows), strict=True)
    ]
    described: dict[str, np.ndarray] = {}
    for name in wanted:
        values = torch.cat([chunk[name] for chunk in chunks]).cpu().numpy()
        column = np.full((len(is_first), *values.shape[1:]), FIRST[name], values.dtype)
        column[~is_first] = values
        described[name] = column
    return described


def rows_at_once(n_ids: int) -> int:
    """How many rows of logits become float32 at once."""
    return max(1, CHUNK_NUMBERS // n_ids)


def _describe(
    logits: Tensor, targets: Tensor, top_k: int, wanted: Collection[str]
) -> dict[str, Tensor]:
    """The columns of some rows: (N, V) and the N tokens that came."""
    distribution = logits.float().log_softmax(dim=-1)
    made = {}
    if "logprob" in wanted:
        made["logprob"] = distribution.gather(1, targets[:, None])[:, 0]
    if "entropy" in wanted:
        made["entropy"] = entropies(distribution)
    if "topk_logprob" in wanted or "topk_id" in wanted:
        best = distribution.topk(top_k, dim=-1)
        made["topk_logprob"] = best.values.half()
        made["topk_id"] = best.indices.int()
    return made


def entropies(distribution: Tensor) -> Tensor:
    """Entropies of log-probabilities, in nats: (N, V) -> (N,)."""
    return torch.special.entr(distribution.exp()).sum(dim=-1)


def _end_logprobs(logits: Tensor, ends: Collection[int]) -> NDArray[np.float32]:
    """The log-probability of any token that ends an answer; (B, V) -> (B,); NaN without one."""
    known = [token for token in sorted(ends) if 0 <= token < logits.shape[1]]
    if not known:
        return np.full(len(logits), np.nan, np.float32)
    return logits.float().log_softmax(dim=-1)[:, known].logsumexp(dim=1).cpu().numpy()


class LogitLens:
    """A model's final norm and output embedding.

    Raises SchemaError if they are not found, or do not give the model's logits.
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


find_lens = once_a_model(LogitLens)


class LensColumns:
    """Collects the entropies of a batch, (B, T, L), for a column; NaN where nothing is taken.

    Its values are those of `layers`, or of what is added to them: `BEFORE_NORM`.
    """

    def __init__(self, lens: LogitLens, layout: Layout, layers: Sequence[int], name: str) -> None:
        self._lens = lens
        self._layout = layout
        self._name = name
        self._layers = layers
        self._entropies = torch.full((len(layout.lengths), layout.width, len(layers)), torch.nan)

    def take(self, number: int, states: Tensor) -> None:
        """Keep what states, (B, T, d) or (B * T, d), predict: number `number` of those kept."""
        is_token = self._layout.is_token(states.device)
        of_tokens = states.reshape(*is_token.shape, -1)[is_token]  # (tokens of all traces, d)
        found = self._lens.entropies(self._layers[number], of_tokens)
        self._entropies[:, :, number].masked_scatter_(is_token.cpu(), found.cpu())

    def rows(self) -> list[dict[str, np.ndarray]]:
        """The column (T, L) of each trace: entry t is about the token after token t."""
        found = self._entropies.numpy()
        return [{self._name: found[i, :n]} for i, n in enumerate(self._layout.lengths)]


class Additions(NamedTuple):
    """Where what a layer adds to the states comes from."""

    attention: Place
    mlp: Place


class Returned(NamedTuple):
    """What a module returned in the short pass, and its input: (T, d) float32 on the CPU."""

    place: Place
    output: Tensor
    given: Tensor | None


@once_a_model
def find_additions(model: PreTrainedModel) -> list[Additions]:
    """What each layer adds, from the first one on.

    Raises SchemaError: the two parts of a layer are not found.
    """
    places = find_places(model, maps=False).states
    returned, states = _run_short(model)
    rows = {one.place: row for row, one in enumerate(returned)}
    ends = [rows.get(places[entry]) if entry in places else None for entry in range(len(states))]
    precision = torch.finfo(model.dtype)
    additions = []
    # the states of the embedding may come from no module
    begin = -1 if ends[0] is None else ends[0]
    for layer, end in enumerate(ends[1:], 1):
        if end is None:
            raise _not_found(model, layer, "no module returns its states")
        # transformers has the states of the last layer behind the final norm
        after = returned[end].given if layer == len(states) - 1 else states[layer]
        between = returned[begin + 1 : end]
        before = states[layer - 1]
        pairs = [] if after is None else _pairs_that_sum(between, before, after, precision)
        if len(pairs) != 1:
            raise _not_found(model, layer, f"{len(pairs)} pairs of outputs sum to what it adds")
        additions += pairs
        begin = end
    return additions


def _run_short(model: PreTrainedModel) -> tuple[list[Returned], list[Tensor]]:
    """All outputs of modules that have the shape of states, as they come; and the states."""
    config = model.config.get_text_config()
    shape = (len(PROBE[0]), config.hidden_size)
    returned: list[Returned] = []

    def as_states(value: object) -> Tensor | None:
        # some models flatten traces and tokens into one axis
        if not isinstance(value, Tensor) or value.numel() != shape[0] * shape[1]:
            return None
        return value.to("cpu", torch.float32, copy=True).reshape(shape)

    def note(place: Place, tensor: Tensor, given: object) -> None:
        states = as_states(tensor)
        if states is not None:
            returned.append(Returned(place, states, as_states(given)))

    out = run_noted(model, note)
    return returned, [state[0].float().cpu() for state in out.hidden_states]


def _pairs_that_sum(
    between: Sequence[Returned], before: Tensor, after: Tensor, precision: torch.finfo
) -> list[Additions]:
    """Pairs of different outputs whose sum is `after - before`, but for the model's rounding.

    Of equal outputs, as those of a module and of its last part, the first one.
    """
    distinct: list[Returned] = []
    for one in between:
        if not any(torch.equal(one.output, other.output) for other in distinct):
            distinct.append(one)
    return [
        Additions(first.place, second.place)
        for i, first in enumerate(distinct)
        for second in distinct[i + 1 :]
        if _is_sum(torch.stack([before, first.output, second.output]), after, precision)
    ]


def _is_sum(parts: Tensor, after: Tensor, precision: torch.finfo) -> bool:
    """Whether parts (3, T, d) sum to `after` (T, d), within twice what two sums are rounded by."""
    rounding = precision.eps * (parts.abs().sum(dim=0) + after.abs()) + precision.tiny
    return bool(((parts.sum(dim=0) - after).abs() <= rounding).all())


def _not_found(model: PreTrainedModel, layer: int, reason: str) -> SchemaError:
    return SchemaError(
        "columns: lens_entropy_attention, lens_entropy_mlp: expected layers whose attention and "
        f"feed-forward outputs add up to what they add, found {type(model).__name__}: layer "
        f"{layer}: {reason}; leave the columns out"
    )
