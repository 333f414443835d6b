"""Small stores on disk whose labels can be learned from their states."""

import sys
from pathlib import Path

import numpy as np
import pytest

from store import Column, Schema, TraceStore
from store.transform.merge import merge_stores
from store.write.build import build_store
from store.write.source import CopySource

sys.path.insert(0, str(Path(__file__).parent))  # for helpers that are not tests
sys.path.insert(1, str(Path(__file__).parents[1] / "store"))

import small
from runs import train
from splitting import split_data

N_LAYERS, HIDDEN_SIZE = 2, 8

SCHEMA = Schema(
    {
        "question_id": Column("utf8"),
        "prompt_len": Column("int32"),
        "answer_len": Column("int32"),
        "score": Column("float32"),
        "label": Column("int8"),
        "hs_last": Column("float16", item_shape=(N_LAYERS, HIDDEN_SIZE)),
        "hs_prompt": Column("float16", item_shape=(N_LAYERS, HIDDEN_SIZE)),
        "hs_mean": Column("float16", item_shape=(N_LAYERS, HIDDEN_SIZE)),
        "hidden_states": Column("float16", item_shape=(N_LAYERS, HIDDEN_SIZE), axis="tokens"),
        "attn_mean": Column("float16", item_shape=(N_LAYERS,), axis="pairs"),
        "attentions": Column("float16", item_shape=(N_LAYERS, 2), axis="squares"),
        "attn_diag": Column("float16", item_shape=(N_LAYERS, 2), axis="tokens"),
        "attn_edges": Column("float16", item_shape=(N_LAYERS, 2), axis="edges"),
        "attn_edge_ends": Column("int32", item_shape=(2,), axis="edges"),
        "tokens": Column("int32", axis="tokens"),
        "logprob": Column("float32", axis="tokens"),
        "entropy": Column("float32", axis="tokens"),
        "topk_logprob": Column("float16", item_shape=(3,), axis="tokens"),
        "topk_id": Column("int32", item_shape=(3,), axis="tokens"),
    }
)


def random_row(rng, label, question_id):
    """One trace of 3 to 6 tokens; the states of its last one lean towards its label, if any."""
    n_tokens = int(rng.integers(3, 7))
    hidden = rng.normal(size=(n_tokens, N_LAYERS, HIDDEN_SIZE))
    hidden[:, :, :4] += max(label, 0)
    maps = np.tril(np.ones((n_tokens, n_tokens)))  # uniform, in every layer and head
    maps /= maps.sum(axis=1, keepdims=True)
    pairs = [rng.dirichlet(np.ones(i + 1), size=N_LAYERS).T for i in range(n_tokens)]  # (i + 1, L)
    return {
        "question_id": question_id,
        "prompt_len": 1,
        "answer_len": n_tokens - 1,
        "score": float("nan") if label < 0 else 0.9 - 0.8 * label,
        "label": label,
        "hs_last": hidden[-1].astype(np.float16),
        "hs_prompt": hidden[0].astype(np.float16),
        "hs_mean": hidden[1:].mean(axis=0).astype(np.float16),
        "hidden_states": hidden.astype(np.float16),
        "attn_mean": np.concatenate(pairs).astype(np.float16),
        "attentions": np.tile(maps.reshape(-1, 1, 1), (1, N_LAYERS, 2)).astype(np.float16),
        "attn_diag": np.full((n_tokens, N_LAYERS, 2), 0.5, np.float16),
        "attn_edges": np.full((n_tokens - 1, N_LAYERS, 2), 0.1, np.float16),
        "attn_edge_ends": np.stack([np.arange(1, n_tokens), np.arange(n_tokens - 1)], axis=1),
        "tokens": np.full(n_tokens, 2 * label),
        "topk_id": np.tile(np.arange(3), (n_tokens, 1)),
        "logprob": np.concatenate([[np.nan], -rng.random(n_tokens - 1)]).astype(np.float32),
        "topk_logprob": -np.sort(rng.random((n_tokens, 3)), axis=1).astype(np.float16),
        "entropy": np.concatenate([[np.nan], rng.random(n_tokens - 1)]).astype(np.float32),
    }


def write_store(path, labels, columns=None, change=None):
    """Write a store with a trace per label, two of them per question; `change(number, row)` edits
    rows on their way."""
    rng = np.random.default_rng(0)
    columns = {name: SCHEMA.columns[name] for name in columns or SCHEMA.columns}
    rows = {}
    for number, label in enumerate(labels):
        row = random_row(rng, int(label), f"q{number // 2}")
        if change:
            change(number, row)
        rows[f"t{number}"] = {name: row[name] for name in columns}
    return small.make_store(path, columns, rows).path


@pytest.fixture(scope="session")
def labels():
    """Labels of 200 traces: half hallucinations, every tenth trace unlabelled."""
    labels = np.random.default_rng(1).integers(0, 2, 200)
    labels[::10] = -1
    return labels


@pytest.fixture(scope="session")
def store_path(tmp_path_factory, labels):
    """A store of 200 traces of 100 questions."""
    return write_store(tmp_path_factory.mktemp("stores") / "small.zarr", labels)


@pytest.fixture
def data(store_path):
    """The store of 200 traces, with its splits."""
    return split_data(store_path)


@pytest.fixture(scope="session")
def store_writer():
    """The function that writes a store: (path, labels, columns=None, change=None) -> path."""
    return write_store


@pytest.fixture
def make_store(tmp_path):
    """The function that writes a store: (labels, columns=None, change=None) -> path."""

    def make(labels, columns=None, change=None, name="own.zarr"):
        return write_store(tmp_path / name, labels, columns, change)

    return make


@pytest.fixture(scope="session")
def merged_path(store_path, tmp_path_factory):
    """The store of 200 traces, merged by reference of three parts."""
    folder = tmp_path_factory.mktemp("merged")
    store = TraceStore.open(store_path)
    parts = [
        build_store(folder / f"{first}.zarr", CopySource([(store, range(first, stop))], {}))
        for first, stop in ((0, 90), (90, 100), (100, len(store)))
    ]
    merged = merge_stores(folder / "merged.zarr", parts, lambda done: None)
    assert "hidden_states" in merged.manifest.segments
    return merged.path


@pytest.fixture(autouse=True, scope="module")
def quick_reports(request):
    """Reports have no pictures, whose drawing takes longest, but in the tests of reports."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name != "report":
            patch.setattr("train.report.draw", lambda name, evidence, shows: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def in_turn(one_core):
    """Trainings of the tests are so small that a process for each takes longer."""


@pytest.fixture(scope="session")
def finished(store_path, tmp_path_factory):
    """Directory of a finished run of two seeds of every default detector; not to be changed."""
    path = tmp_path_factory.mktemp("finished") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.report.draw", lambda name, evidence, shows: None)
        train(store_path, path, "--seeds=2", "--seed=1")
    return path
