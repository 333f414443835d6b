"""What attention says beside its reductions: how heads look at a context, and the ICR score.

**Of the tokens of a context** it is the mass, its entropy, and how the heads differ. The last three
are aggregations of AggTruth (Matys et al. 2025, arXiv:2506.18628), or what its entropy is made
from: H_all = m H - m ln m - (1 - m) ln(1 - m), with the mass m and the entropy H of the shares in
it.

**The ICR score**: does a layer add to a token's state what its attention looked at?

Zhang et al. 2025, arXiv:2507.16488 (ACL). Of token t at layer l, with the change of its state
d = x_t(l) - x_t(l - 1), the attention a of the layer, the mean over heads, and the K = 20 tokens j
with the most of it,

    w_j = d . x_j(l - 1) / |x_j(l - 1)|
    ICR = JSD(softmax(z(w)), softmax(z(a)))

z subtracts the mean over the K tokens and divides by their standard deviation, as in the authors'
code (the paper has a softmax of w, and a as it is). Small: the layer moved what it attended to;
large: its feed-forward part added something else.

Different from the authors' code: attention to all tokens up to t counts, as in the paper. There a
token of the answer keeps only its attention to tokens of the answer, one of the user's text only
that to the user's text, and the chat template none: the rest is set to 0 before the most attended
are chosen. So of the answer's tokens the prompt counts here and not there: with all attention kept,
and K = 20, their code has the scores of this one (to 1e-7). Their example sets `top_p`, by which K
is a tenth of all tokens. All heads count too, as in the paper. A token that attends to fewer than
K, in a sliding window or early in a trace, has these; the score of the first token is 0. As there,
the state of the last layer is that of transformers, behind the final norm of most models.

Axes: B traces, H heads, T tokens, C tokens of the context, L layers that are kept, d hidden size.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from store.sources.huggingface.module_outputs import Takes

__all__ = ["ICR", "ON_CONTEXT", "IcrColumn", "icr_scores", "most_attended"]

ICR = "icr"
MOST = 20  # tokens
EPSILON = 1e-8  # of a norm, and of a deviation

Attended = tuple[Tensor, Tensor, Tensor]  # positions, attention, whether there is such a token


def _at_least_tiny(values: Tensor) -> Tensor:
    """What can be divided by."""
    return values.clamp(min=torch.finfo(values.dtype).tiny)


def js_divergence(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence over the last axis, in nats: 0 to ln 2. (..., n) -> (...)."""
    middle = (p + q) / 2
    # (p - q) / (p + q): p and q are 1 + r and 1 - r times their middle, whose logarithms are exact
    r = (p - q) / _at_least_tiny(2 * middle)
    terms = torch.special.xlog1py(1 + r, r) + torch.special.xlog1py(1 - r, -r)
    return (middle * terms).sum(dim=-1).clamp(min=0) / 2


def _mass(attention: Tensor) -> Tensor:
    return attention.sum(dim=2)


def _entropy(attention: Tensor) -> Tensor:
    """Of the shares of the tokens in the mass; 0 where there is none."""
    return torch.special.entr(attention / _at_least_tiny(_mass(attention)[:, :, None])).sum(dim=2)


def _cosine(attention: Tensor) -> Tensor:
    """The mean over the other heads; 0 of a head alone."""
    scaled = attention / _at_least_tiny(attention.amax(dim=2, keepdim=True))
    directions = torch.nn.functional.normalize(scaled, dim=2)  # 0 where there is no attention
    others = directions.sum(dim=0) - directions
    return (directions * others).sum(dim=2) / max(1, len(attention) - 1)


def _distance(attention: Tensor) -> Tensor:
    """To the mean of the heads; what is paid to all other tokens is one place more."""
    rest = (1 - attention.sum(dim=2, keepdim=True)).clamp(min=0)
    whole = torch.cat([attention, rest], dim=2)
    return js_divergence(whole, whole.mean(dim=0).expand_as(whole)).sqrt()


# column -> one number a token and head, of the attention to a context: (H, T, C) -> (H, T), float32
ON_CONTEXT: dict[str, Callable[[Tensor], Tensor]] = {
    "attn_cmass": _mass,
    "attn_centropy": _entropy,
    "attn_ccosine": _cosine,
    "attn_cjs": _distance,
}


def most_attended(maps: Tensor) -> Attended:
    """The tokens with the most attention: (B, H, T, T) -> (B, T, K) each; int64, float32, bool."""
    mean = maps.mean(dim=1, dtype=torch.float32)
    is_later = torch.ones_like(mean[0], dtype=torch.bool).triu(1)
    attention, tokens = mean.masked_fill(is_later, -1).topk(min(MOST, mean.shape[2]), dim=2)
    return tokens, attention, attention > 0  # 0 outside a sliding window


def icr_scores(before: Tensor, after: Tensor, attended: Attended) -> Tensor:
    """The score of each token: states (B, T, d) -> float32 (B, T), 0 to ln 2."""
    tokens, attention, is_there = (part.to(after.device) for part in attended)
    before = before.to(after.device).float()
    directions = before / (before.norm(dim=2, keepdim=True) + EPSILON)
    added = (after.float() - before) @ directions.transpose(1, 2)  # (B, T, T)
    projections = added.gather(2, tokens)
    return js_divergence(_shares(projections, is_there), _shares(attention, is_there))


def _shares(values: Tensor, is_there: Tensor) -> Tensor:
    """Softmax of standardised numbers, those that are not there 0: (B, T, K) both."""
    n = is_there.sum(dim=2, keepdim=True)
    away = values - values.where(is_there, 0).sum(dim=2, keepdim=True) / n
    squares = away.where(is_there, 0).square().sum(dim=2, keepdim=True)
    deviation = (squares / (n - 1).clamp(min=1)).sqrt().clamp(min=EPSILON)
    return (away / deviation).masked_fill(~is_there, -math.inf).softmax(dim=2)


class IcrColumn:
    """Collects the scores of a batch, (B, T, L); NaN at the embedding.

    The parts of a layer may come in any order. Between two layers the states of one are kept, and
    what a layer's attention chose.
    """

    def __init__(self, lengths: Sequence[int], layers: Sequence[int]) -> None:
        self._lengths = lengths
        self._layers = layers
        self._parts: defaultdict[int, dict[str, Any]] = defaultdict(dict)
        self._scores = torch.full((len(lengths), max(lengths), len(layers)), torch.nan)

    def watch(self, takes: Takes) -> None:
        """Ask for the states before and behind each kept layer, and for its maps."""
        for number, layer in enumerate(self._layers):
            if layer > 0:
                takes.states[layer - 1].append(partial(self._take_states, number, "before"))
                takes.maps[layer - 1].append(partial(self._take_maps, number))
                takes.states[layer].append(partial(self._take_states, number, "after"))

    def _take_states(self, number: int, name: str, states: Tensor) -> None:
        # a copy, for a later module may change them in place
        self._take(number, name, states.clone())

    def _take_maps(self, number: int, maps: Tensor) -> None:
        self._take(number, "attended", most_attended(maps))

    def _take(self, number: int, name: str, part: object) -> None:
        self._parts[number][name] = part
        if len(self._parts[number]) == 3:
            self._scores[:, :, number] = icr_scores(**self._parts.pop(number)).cpu()

    def rows(self) -> list[dict[str, NDArray[Any]]]:
        """The column (T, L) of each trace."""
        found = self._scores.numpy()
        return [{ICR: found[i, :n]} for i, n in enumerate(self._lengths)]
