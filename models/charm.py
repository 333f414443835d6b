"""CHARM: messages along the attention between tokens (Frasca et al., arXiv:2509.24770)."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from models.detector import Detector, Outputs
from models.standardise import build_scale
from models.tokens import mean_by_trace, positions, trace_of_token
from store import Batch

__all__ = ["AttentionGraph", "Charm", "CharmEdges", "read_edges", "read_maps"]

WIDTH = 64
N_ROUNDS = 2  # of messages
DROPOUT = 0.25
DEPTH = 0.75  # of the layer whose states are read, as a share of all layers
N_MARKS = 2  # of an edge: from the answer, from the prompt
BLOCK = 2**24  # numbers of the maps that are compared with the threshold at once


class AttentionGraph(NamedTuple):
    """One graph a trace, packed: tokens as nodes, strong attention as edges."""

    nodes: Tensor  # (n_tokens, L * H) float32: attention of each token to itself
    # (n_edges,) int64: packed tokens; the target attends to the source, which is before it
    source: Tensor
    target: Tensor
    # (n_edges, L * H + 2) float32: attention of each head, 0 below the threshold; then 1 and 0
    # where the source is of the answer, 0 and 1 where it is of the prompt
    edges: Tensor
    in_answer: Tensor  # (n_tokens,) bool: the nodes that are read and that receive messages


class Pairs(NamedTuple):
    """Pairs of tokens that may be edges, in the order of their targets."""

    # (n_pairs,) int64: packed tokens
    target: Tensor
    source: Tensor
    row: Tensor  # (n_pairs,) int64: where the attention of the pair lies in its column


def read_maps(batch: Batch, offsets: Tensor, threshold: float) -> AttentionGraph:
    """Build the graphs of a batch from its full maps.

    Reads `attentions`, `prompt_len` and `answer_len`. An edge is where a head attends with at least
    `threshold`; `offsets`, (B + 1,) int64, say where the tokens of each trace start. Raises
    ValueError if a trace of T tokens has not T * T pairs.
    """
    values, starts = batch.ragged("attentions")  # (n_pairs, L, H)
    maps = values.flatten(1)
    lengths = offsets.diff()  # (B,)
    check_squares(starts.diff(), lengths)
    in_answer, begin = answer_nodes(batch, offsets)
    trace = trace_of_token(offsets)
    itself = starts[trace] + positions(offsets) * (lengths[trace] + 1)
    pairs = answer_pairs(in_answer, offsets, starts)
    edges = strong_edges(maps, pairs, offsets, begin, threshold)
    return AttentionGraph(clean(maps[itself]), *edges, in_answer)


def read_edges(batch: Batch, offsets: Tensor, threshold: float) -> AttentionGraph:
    """Build the graphs of a batch from the edges that the store keeps.

    Reads `attn_edges`, `attn_edge_ends`, `attn_diag`, `prompt_len` and `answer_len`; the rest is as
    in `read_maps`, but edges below the threshold of the store are not there. Raises ValueError if
    an edge ends where its trace has no token, or at a token before its source.
    """
    values, starts = batch.ragged("attn_edges")  # (n_edges, L, H)
    target, source = batch.ragged("attn_edge_ends").values.long().unbind(1)
    trace = trace_of_token(starts)
    check_ends(target, source, offsets.diff()[trace])
    in_answer, begin = answer_nodes(batch, offsets)
    target = offsets[trace] + target
    row = in_answer[target].nonzero().squeeze(1)
    pairs = Pairs(target[row], (offsets[trace] + source)[row], row)
    edges = strong_edges(values.flatten(1), pairs, offsets, begin, threshold)
    nodes = batch.ragged("attn_diag").values.flatten(1)
    return AttentionGraph(clean(nodes), *edges, in_answer)


def strong_edges(
    maps: Tensor, pairs: Pairs, offsets: Tensor, begin: Tensor, threshold: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Source, target and values of the pairs to which a head attends enough."""
    is_kept = strong_pairs(maps, pairs.row, threshold)
    target, source, row = (one[is_kept] for one in pairs)
    attention = maps[row].float()
    attention = torch.where(attention >= threshold, attention, 0.0)
    first = begin[trace_of_token(offsets)[source]]
    from_answer = (positions(offsets)[source] >= first)[:, None]
    marks = torch.cat([from_answer, ~from_answer], dim=1).float()
    return source, target, torch.cat([attention, marks], dim=1)


def clean(nodes: Tensor) -> Tensor:
    """In float32, missing attention as 0."""
    return nodes.float().nan_to_num(0.0)


def check_squares(n_pairs: Tensor, n_tokens: Tensor) -> None:
    if not torch.equal(n_pairs, n_tokens**2):
        wrong = int((n_pairs != n_tokens**2).nonzero()[0])
        raise ValueError(
            f"attentions, trace {wrong} of the batch: expected T * T = {int(n_tokens[wrong]) ** 2} "
            f"pairs for its {int(n_tokens[wrong])} tokens, found {int(n_pairs[wrong])}; "
            "make the traces again"
        )


def check_ends(target: Tensor, source: Tensor, n_tokens: Tensor) -> None:
    wrong = ((source < 0) | (source >= target) | (target >= n_tokens)).nonzero()
    if len(wrong):
        edge = int(wrong[0])
        raise ValueError(
            f"attn_edge_ends: expected a token and one before it, of {int(n_tokens[edge])}, found "
            f"{int(target[edge])} and {int(source[edge])}; make the traces again"
        )


def answer_nodes(batch: Batch, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each token is a node of the answer (n_tokens,), and where those of a trace begin.

    They begin with the last token of the prompt, at which the first of the answer was predicted.
    All tokens are where the prompt's length is unknown.
    """
    prompt_len = batch.fixed("prompt_len").long()  # (B,)
    end = prompt_len + batch.fixed("answer_len").long()
    end = torch.where(prompt_len < 0, offsets.diff(), end)
    begin = (prompt_len - 1).clamp(min=0)
    trace = trace_of_token(offsets)
    place = positions(offsets)
    return (begin[trace] <= place) & (place < end[trace]), begin


def answer_pairs(in_answer: Tensor, offsets: Tensor, starts: Tensor) -> Pairs:
    """Each token of an answer with each token before it; `starts` are those of the maps."""
    trace = trace_of_token(offsets)
    place = positions(offsets)
    tokens = in_answer.nonzero().squeeze(1)
    n_before = place[tokens]
    target = tokens.repeat_interleave(n_before)  # (n_pairs,)
    first = n_before.cumsum(0) - n_before  # where the pairs of a token begin
    column = torch.arange(len(target), device=target.device)
    column -= first.repeat_interleave(n_before)
    source = offsets[trace[target]] + column
    length = offsets.diff()[trace[target]]
    return Pairs(target, source, starts[trace[target]] + place[target] * length + column)


def strong_pairs(maps: Tensor, pair: Tensor, threshold: float) -> Tensor:
    """Whether any head of each pair attends with at least the threshold, (n_pairs,) bool.

    A block of pairs is copied at a time: of all of them few are kept.
    """
    # compared in float32, because a threshold rounded to half precision would move
    blocks = pair.split(max(1, BLOCK // maps.shape[1]))
    return torch.cat([(maps[block].float() >= threshold).any(dim=1) for block in blocks])


class Encoder(nn.Module):
    """Two rounds of messages along the edges, then the mean over the nodes of the answer.

    `n_heads` is the number L * H of heads.

    Shapes
    ------
    states (n_tokens, d), offsets (B + 1,), the fields of `AttentionGraph` -> (B, WIDTH) float32
    """

    def __init__(self, hidden_size: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.node = nn.Linear(n_heads, WIDTH)
        self.state = nn.Linear(hidden_size, WIDTH)
        self.both = nn.Linear(2 * WIDTH, WIDTH)
        self.edge = nn.Linear(n_heads + N_MARKS, WIDTH)
        self.rounds = nn.ModuleList(MessageRound() for _ in range(N_ROUNDS))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        states: Tensor,
        offsets: Tensor,
        nodes: Tensor,
        source: Tensor,
        target: Tensor,
        edges: Tensor,
        in_answer: Tensor,
    ) -> Tensor:
        x = self.both(torch.cat([self.node(nodes), self.state(states)], dim=1)).float()
        edges = self.edge(edges).float()
        for exchange in self.rounds:
            x = x + self.dropout(exchange(x, source, target, edges))
        # an answer without a node, which only a wrong length makes, is a vector of zeros
        return mean_by_trace(x, offsets, in_answer[:, None].expand_as(x)).nan_to_num(0.0)


class MessageRound(nn.Module):
    """Each node from itself and the mean of the messages that it receives, 0 of none.

    Shapes
    ------
    x (n, WIDTH), source and target (n_edges,), edges (n_edges, WIDTH) -> (n, WIDTH) float32
    """

    def __init__(self) -> None:
        super().__init__()
        self.message = two_layers()
        self.update = two_layers()

    def forward(self, x: Tensor, source: Tensor, target: Tensor, edges: Tensor) -> Tensor:
        messages = self.message(torch.cat([x[source], edges], dim=1)).float()
        total = torch.zeros_like(x).index_add(0, target, messages)
        n_received = torch.bincount(target, minlength=len(x)).clamp(min=1)
        updated: Tensor = self.update(torch.cat([x, total / n_received[:, None]], dim=1))
        return updated.float()


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2 * WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


class Charm(Detector):
    """Tokens as nodes, attention as edges, two rounds of messages, the mean over the answer.

    As in the paper and its authors' code. A node has the attention of its token to itself in every
    head, and its state at one layer, three quarters up unless
    `charm_layer` is its position; both are mapped to 64 and together to 64.
    Token i receives from each token j < i to which a head of any layer attends with .05 or more; an
    edge has the attention of every head, weaker ones as 0, and says whether j is of the prompt or
    of the answer. Prompt tokens receive nothing. A round is x + MLP([x, mean of MLP([x_j, edge])]),
    MLPs of one hidden layer of 128 with ReLU; dropout. The logit is a linear map of the mean over
    the answer's nodes, which begin at the last token of the prompt, since its maps are those of the
    pass that predicted the first token of the answer. Sizes and dropout are of the authors'
    configuration for whole responses with activations (GSM8K-like questions and Mistral 7B).

    Different from the paper: the node of the last token of the answer is there, which the traces of
    the authors lack; states are standardised, because some of their dimensions are much larger than
    others; no weight decay of .05 on the map of the states alone; the run's own optimizer and
    schedule (there AdamW, 75 epochs).

    Full maps are T * T * L * H numbers a trace: 2 GiB in float16 for 1,024 tokens of a model of
    1,024 heads in all. Only rows of the answer are looked at, and above the threshold copied. For
    long prompts there is `CharmEdges`.

    `n_heads` is L * H of `attentions`.

    Shapes
    ------
    batch["hidden_states"] (n_tokens, L, d), batch["attentions"] (n_pairs, L, H) -> logits (B,)
    """

    columns: tuple[str, ...] = ("hidden_states", "attentions", "prompt_len", "answer_len")
    options = ("charm_layer", "charm_threshold", "dropout", "input_scale")
    maps = "attentions"  # the column whose items are the heads (L, H)
    default_scale = "standard"

    def __init__(
        self,
        hidden_size: int,
        n_layers: int,
        n_heads: int,
        charm_threshold: float = 0.05,
        dropout: float = DROPOUT,
        charm_layer: int | None = None,
        input_scale: str | None = None,
    ) -> None:
        super().__init__()
        default = max(0, round(DEPTH * n_layers) - 1)
        self.read_layer("charm_layer", charm_layer, default, n_layers)
        self.threshold = charm_threshold
        self.scale = build_scale(input_scale or self.default_scale, hidden_size)
        self.encoder = Encoder(hidden_size, n_heads, DROPOUT if dropout else 0.0)
        self.classifier = nn.Linear(WIDTH, 1)

    @classmethod
    def build(
        cls, item_shapes: Mapping[str, tuple[int, ...]], settings: Mapping[str, Any], **sizes: int
    ) -> Self:
        n_heads = math.prod(item_shapes[cls.maps])
        return super().build(item_shapes, settings, n_heads=n_heads, **sizes)

    def encode(self, batch: Batch) -> Tensor:
        values, offsets = batch.ragged("hidden_states")
        states = self.scale(self.states(values)[:, 0])
        return self.run(self.encoder, states, offsets, *self.read_graph(batch, offsets))

    def read_graph(self, batch: Batch, offsets: Tensor) -> AttentionGraph:
        return read_maps(batch, offsets, self.threshold)

    def classify(self, features: Tensor) -> Outputs:
        return Outputs(self.classifier(features).squeeze(1).float())


class CharmEdges(Charm):
    """`Charm` from the edges that a store keeps, instead of full maps: the same logits.

    The store has the edges of .05 and more (`extract --columns
    default,attn_edges,attn_edge_ends`), which do not grow with the square of the prompt's length;
    a higher `charm_threshold` keeps fewer of them.

    Shapes
    ------
    batch["hidden_states"] (n_tokens, L, d), batch["attn_diag"] (n_tokens, L, H),
    batch["attn_edges"] (n_edges, L, H), batch["attn_edge_ends"] (n_edges, 2) -> logits (B,)
    """

    columns = (
        "hidden_states",
        "attn_diag",
        "attn_edges",
        "attn_edge_ends",
        "prompt_len",
        "answer_len",
    )
    maps = "attn_edges"

    def read_graph(self, batch: Batch, offsets: Tensor) -> AttentionGraph:
        return read_edges(batch, offsets, self.threshold)
