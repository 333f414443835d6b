"""Traces that the tests of the page look at: awkward and hostile ones."""

import csv
import json

import numpy as np
import pytest
import torch

from store import Column, Schema, StoreWriter

HOSTILE = [
    "<img src=x onerror=\"document.title='hacked'\">",
    "</script><script>document.title='hacked'</script>",
    "\u202eright to left\u202c",
    "Ünïcode 東京 🦊",
    "quotes \" and \\ and '",
    "",
    "a\nb\tc\x00d",
]
BARE = "<img src=x onerror=alert(1)>"  # name of a folder
TOKEN = "a-token-of-the-test"  # noqa: S105
ADDRESS = "http://127.0.0.1:8000"
N_ROWS = 40
N_LAYERS = 3
WIDTH = 5
SCHEMA = Schema(
    {
        "question_id": Column("utf8"),
        "question": Column("utf8"),
        "answer": Column("utf8"),
        "references": Column("utf8"),
        "token_texts": Column("utf8"),
        "tokens": Column("int32", axis="tokens"),
        "prompt_len": Column("int32"),
        "label": Column("int8"),
        "score": Column("float32"),
        "exact": Column("float64"),
        "brain": Column("bfloat16"),
        "logprob": Column("float32", axis="tokens"),
        "token_label": Column("int8", axis="tokens"),
        "attn_colsum": Column("float16", (N_LAYERS, 2), "tokens", ("layers", "heads")),
        "topk_id": Column("int32", (4,), "tokens", ("candidates",)),
        "topk_logprob": Column("float16", (4,), "tokens", ("candidates",)),
        "hidden_states": Column("float16", (N_LAYERS, WIDTH), "tokens", ("layers", "hidden")),
        "lens_entropy": Column("float32", (N_LAYERS,), "tokens", ("layers",)),
        "attn_mean": Column("float16", (N_LAYERS,), "pairs", ("layers",)),
        "map_pca": Column("float32", (3,), axis_names=("dimensions",)),
    }
)
PROJECTION = {"column": "hs_last", "layer": 2, "method": "pca", "explained_variance": [0.5, 0.25]}
PROVENANCE = {"projections": {"map_pca": PROJECTION}}


def make_row(i):
    """One trace of 0, 1 or some tokens, with numbers that may be missing."""
    rng = np.random.default_rng([7, i])
    n = 0 if i == 1 else 1 if i == 2 else int(rng.integers(2, 12))
    texts = [f"t{k} " for k in range(n)]
    attention = rng.random((n * (n + 1) // 2, N_LAYERS))
    return {
        "question_id": f"question {i // 2}",
        "question": HOSTILE[i % len(HOSTILE)] + (" the Capital of" if i % 3 == 0 else " a river"),
        "answer": HOSTILE[(i + 1) % len(HOSTILE)],
        "references": json.dumps(["Paris", HOSTILE[0]]),
        "token_texts": json.dumps(texts),
        "tokens": rng.integers(0, 100, n).astype(np.int32),
        "prompt_len": n // 2,
        "label": (i % 3) - 1,
        "score": np.float32(np.nan if i % 5 == 0 else rng.standard_normal()),
        "exact": np.inf if i == 6 else float(rng.standard_normal()),
        "brain": torch.tensor(float(i), dtype=torch.bfloat16),
        "logprob": rng.standard_normal(n).astype(np.float32),
        "token_label": rng.integers(-1, 2, n).astype(np.int8),
        "attn_colsum": rng.random((n, N_LAYERS, 2)).astype(np.float16),
        "topk_id": rng.integers(-1, 100, (n, 4)).astype(np.int32),
        "topk_logprob": rng.standard_normal((n, 4)).astype(np.float16),
        "hidden_states": rng.standard_normal((n, N_LAYERS, WIDTH)).astype(np.float16),
        "lens_entropy": rng.random((n, N_LAYERS)).astype(np.float32),
        "attn_mean": attention.astype(np.float16),
        "map_pca": np.full(3, np.nan, np.float32) if i == 3 else point_of(rng),
    }


def point_of(rng):
    return rng.standard_normal(3).astype(np.float32)


def write_traces(path, schema, rows, provenance=None):
    """Rows `(id, values)` as a store; returns its path."""
    with StoreWriter.create(path, schema, provenance or {}) as writer:
        for trace_id, row in rows:
            writer.append(trace_id, row)
    return path


def write_run(path, header, lines):
    """The scores of a finished run; returns its folder."""
    path.mkdir(parents=True)
    with (path / "scores.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    return path


def client_of(paths, runs=(), tokenizer=None, token=TOKEN):
    """A client of the page's server that has its token, or none."""
    testclient = pytest.importorskip("starlette.testclient", reason="needs the extras view, test")
    from store.view.server import build_app
    from store.view.snapshots import open_stores

    app = build_app(open_stores(paths, runs), TOKEN, tokenizer=tokenizer)
    return testclient.TestClient(app, ADDRESS, cookies={"view": token} if token else None)


def array_of(answer):
    """The numbers of an answer."""
    assert answer.status_code == 200, answer.text
    shape = [int(size) for size in answer.headers["X-Shape"].split(",")]
    return np.frombuffer(answer.content, answer.headers["X-Dtype"]).reshape(shape)
