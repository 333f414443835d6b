"""Packed batches made in memory, like those that a store gives."""

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from models import DETECTORS
from store import Batch, Ragged
from train.config import Config

sys.path.insert(0, str(Path(__file__).parent))  # for helpers that are not tests

SHAPES = {  # L = 3, d = 8, K = 4
    "hs_last": (3, 8),
    "hidden_states": (3, 8),
    "attn_mean": (3,),
    "topk_logprob": (4,),
    "topk_id": (4,),
    "attentions": (3, 2),
    "attn_edges": (3, 2),
    "icr": (3,),
}
N_HEADS = 2  # H
LENS = ("lens_entropy", "lens_entropy_attention", "lens_entropy_mlp")
SCORES = (
    "eigenscore",
    "lexical_similarity",
    "semantic_entropy",
    "semantic_entropy_discrete",
    "selfcheck_nli",
)
LENGTHS = ("prompt_len", "answer_len", "context_len")
FIXED = ("hs_last", "hs_prompt", "hs_mean", "eos_logprob", *LENGTHS, *SCORES)
SETTINGS = asdict(
    Config(
        gnn_hidden=16,
        latent_dim=12,
        lstm_hidden=10,
        image_layers=2,
        image_tokens=6,
        image_width=12,
    )
)


@pytest.fixture
def traces():
    """Columns of traces of 5, 1, 9, 2 and 7 tokens: random states, and attention whose rows sum to
    one."""
    rng = np.random.default_rng(0)
    return [random_trace(rng, n_tokens) for n_tokens in (5, 1, 9, 2, 7)]


@pytest.fixture
def pack():
    """The function that packs traces into a batch."""
    return pack_traces


@pytest.fixture
def set_answer():
    """The function (trace, prompt_len, answer_len) that says where the answer of a trace is."""
    return answer_from


@pytest.fixture
def build():
    """The function that builds a detector by name, for the traces here, always with the same
    weights."""

    def build_detector(name, **settings):
        torch.manual_seed(0)
        return DETECTORS[name].build(SHAPES, SETTINGS | settings)

    return build_detector


def random_trace(rng, n_tokens):
    n_layers, hidden_size = SHAPES["hidden_states"]
    # row i: (i + 1, L)
    rows = [rng.dirichlet(np.ones(i + 1), size=n_layers).T for i in range(n_tokens)]
    hidden = torch.from_numpy(rng.normal(size=(n_tokens, n_layers, hidden_size))).half()
    prompt_len = 1
    maps = random_maps(n_tokens)
    reduced = reduced_maps(maps, prompt_len)
    candidates = np.stack([rng.permutation(8)[:4] for _ in range(n_tokens)])
    return {
        "hidden_states": hidden,
        "attn_mean": torch.from_numpy(np.concatenate(rows)).half(),
        "hs_last": hidden[-1],
        "hs_prompt": hidden[prompt_len - 1],
        "hs_mean": hidden.float().mean(0).half(),
        "logprob": torch.cat(
            [torch.tensor([float("nan")]), torch.from_numpy(-rng.random(n_tokens - 1)).float()]
        ),
        "entropy": torch.cat(
            [torch.tensor([float("nan")]), torch.from_numpy(2 * rng.random(n_tokens - 1)).float()]
        ),
        "topk_logprob": torch.from_numpy(-np.sort(rng.random((n_tokens, 4)), axis=1)).half(),
        "token_label": torch.tensor([-1, 1, 0] * 3, dtype=torch.int8)[:n_tokens],
        "topk_id": torch.from_numpy(candidates).int(),
        "tokens": torch.from_numpy(rng.integers(0, 8, size=n_tokens)).int(),
        "eos_logprob": torch.tensor(-float(rng.random())),
        **{name: torch.from_numpy(rng.random((n_tokens, n_layers))).float() for name in LENS},
        **{name: torch.tensor(rng.random(), dtype=torch.float32) for name in SCORES},
        # what no reduction of the maps here tells: numbers of their own
        "attn_ccosine": torch.from_numpy(rng.random((n_tokens, n_layers, N_HEADS))).float(),
        "attn_cjs": torch.from_numpy(rng.random((n_tokens, n_layers, N_HEADS))).float(),
        "icr": torch.from_numpy(rng.random((n_tokens, n_layers))).float(),
        "context_len": torch.tensor(context_length(prompt_len), dtype=torch.int32),
        "prompt_len": torch.tensor(prompt_len, dtype=torch.int32),
        "answer_len": torch.tensor(n_tokens - prompt_len, dtype=torch.int32),
        "maps": maps,
        **reduced,
        **strong_edges(reduced["attentions"], 0),
    }


def random_maps(n_tokens):
    """Causal attention maps (L, H, T, T) float64: row i is a distribution over tokens 0 to i."""
    rng = np.random.default_rng([1, n_tokens])
    maps = np.zeros((SHAPES["hs_last"][0], N_HEADS, n_tokens, n_tokens))
    for i in range(n_tokens):
        maps[:, :, i, : i + 1] = rng.dirichlet(np.ones(i + 1), size=maps.shape[:2])
    return maps


def reduced_maps(maps, prompt_len):
    """The columns that a store keeps of maps, each (T, L, H) or (T * T, L, H), in float32 so that
    tests see no rounding."""
    on_context = maps[..., : context_length(prompt_len)]
    shares = on_context / on_context.sum(axis=3, keepdims=True)
    reduced = {
        "attn_entropy": entropy(maps),
        "attn_cmass": on_context.sum(axis=3),
        "attn_centropy": entropy(shares),
        "attn_amass": maps[..., prompt_len:].sum(axis=3),
        "attn_diag": np.diagonal(maps, axis1=2, axis2=3),
        "attn_colsum": maps.sum(axis=2),
        "attn_pmass": maps[..., :prompt_len].sum(axis=3),
        "attn_prev": attention_to_previous(maps),
        "attentions": maps.reshape(*maps.shape[:2], -1),
    }  # (L, H, T), the last (L, H, T * T)
    return {
        name: torch.from_numpy(one.transpose(2, 0, 1).copy()).float()
        for name, one in reduced.items()
    }


def context_length(prompt_len):
    """The context are the first tokens of the prompt, three at most, and one at least."""
    return min(3, max(1, prompt_len))


def entropy(maps):
    """In nats, over the last axis."""
    return -(maps * np.log(np.where(maps > 0, maps, 1))).sum(axis=3)


def strong_edges(attentions, begin):
    """Edges of .05 and more of the tokens from `begin` on, of maps (T * T, L, H)."""
    n_tokens = round(len(attentions) ** 0.5)
    ends, edges = [], []
    for i in range(begin, n_tokens):
        for j in range(i):
            values = attentions[i * n_tokens + j]
            if (values >= 0.05).any():
                ends.append([i, j])
                edges.append(values.where(values >= 0.05, 0.0))
    ends = torch.tensor(ends, dtype=torch.int32).reshape(-1, 2)
    empty = attentions[:0]
    return {"attn_edge_ends": ends, "attn_edges": torch.stack(edges) if edges else empty}


def attention_to_previous(maps):
    """(L, H, T), NaN at the first token, which has none before it."""
    previous = np.full(maps.shape[:3], np.nan)
    previous[..., 1:] = np.diagonal(maps, offset=-1, axis1=2, axis2=3)
    return previous


def answer_from(trace, prompt_len, answer_len):
    """Say that the answer of a trace starts at `prompt_len`, and change the columns that depend on
    it."""
    trace["prompt_len"], trace["answer_len"] = torch.tensor(prompt_len), torch.tensor(answer_len)
    trace["context_len"] = torch.tensor(context_length(prompt_len), dtype=torch.int32)
    trace.update(reduced_maps(trace["maps"], max(0, prompt_len)))
    trace.update(strong_edges(trace["attentions"], max(0, prompt_len - 1)))


def pack_traces(traces):
    columns = {}
    for name in traces[0].keys() - {"maps"}:
        pack = torch.stack if name in FIXED else pack_items
        columns[name] = pack([one[name] for one in traces])
    return Batch(torch.arange(len(traces)), columns)


def pack_items(items):
    lengths = torch.tensor([0, *(len(item) for item in items)])
    return Ragged(torch.cat(items), lengths.cumsum(0))
