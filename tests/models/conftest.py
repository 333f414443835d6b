"""Packed batches made in memory, like those that a store gives."""

import numpy as np
import pytest
import torch

from models import DETECTORS
from store import Batch, Ragged

SHAPES = {"hs_last": (3, 8), "hidden_states": (3, 8), "attn_mean": (3,)}  # L = 3, d = 8
SETTINGS = {
    "gnn_hidden": 16,
    "latent_dim": 12,
    "lstm_hidden": 10,
    "num_lstm_layers": 2,
    "dropout": 0.3,
    "kl_weight": 0.01,
    "attn_threshold": 0.0,
    "top_k": None,
}


@pytest.fixture
def traces():
    """Columns of traces of 5, 1, 9, 2 and 7 tokens: random states, and attention whose rows sum to one."""
    rng = np.random.default_rng(0)
    return [random_trace(rng, n_tokens) for n_tokens in (5, 1, 9, 2, 7)]


@pytest.fixture
def pack():
    """The function that packs traces into a batch."""
    return pack_traces


@pytest.fixture
def build():
    """The function that builds a detector by name, for the traces here, always with the same weights."""

    def build_detector(name, **settings):
        torch.manual_seed(0)
        return DETECTORS[name].build(SHAPES, SETTINGS | settings)

    return build_detector


def random_trace(rng, n_tokens):
    n_layers, hidden_size = SHAPES["hidden_states"]
    rows = [rng.dirichlet(np.ones(i + 1), size=n_layers).T for i in range(n_tokens)]  # row i: (i + 1, L)
    hidden = torch.from_numpy(rng.normal(size=(n_tokens, n_layers, hidden_size))).half()
    return {
        "hidden_states": hidden,
        "attn_mean": torch.from_numpy(np.concatenate(rows)).half(),
        "hs_last": hidden[-1],
        "logprob": torch.cat([torch.tensor([float("nan")]), torch.from_numpy(-rng.random(n_tokens - 1)).float()]),
        "prompt_len": torch.tensor(1, dtype=torch.int32),
        "answer_len": torch.tensor(n_tokens - 1, dtype=torch.int32),
    }


def pack_traces(traces):
    ragged = {name: pack_items([one[name] for one in traces]) for name in ("hidden_states", "attn_mean", "logprob")}
    fixed = {name: torch.stack([one[name] for one in traces]) for name in ("hs_last", "prompt_len", "answer_len")}
    return Batch(torch.arange(len(traces)), ragged | fixed)


def pack_items(items):
    lengths = torch.tensor([0, *(len(item) for item in items)])
    return Ragged(torch.cat(items), lengths.cumsum(0))
