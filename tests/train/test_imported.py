"""Training on what was imported from the older formats."""

import csv

import numpy as np
import pytest
import torch
from runs import train
from torch_geometric.data import Data

from store import Column, Schema, StoreWriter
from store.cli.main import main as store_main

N, L, D = 240, 2, 8


@pytest.fixture(scope="module")
def tensors():
    """Token states of every trace, head-mean attention of every layer, labels; ids."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, N)
    states, means = [], []
    for label in labels:
        n = int(rng.integers(2, 6))
        hidden = rng.normal(size=(n, L, D))
        hidden[..., :4] += label
        states.append(hidden.astype(np.float16))
        mean = np.tril(rng.random((L, n, n)) + 0.1)
        means.append((mean / mean.sum(-1, keepdims=True)).astype(np.float16))
    return states, means, labels, [f"tc_{i}" for i in range(N)]


def scores_of(run):
    with (run / "scores.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", ["lstm", pytest.param("graphs", marks=pytest.mark.slow)])
def test_scores_are_those_of_training_on_the_tensors(tmp_path, tensors, kind):
    """The files that the old preprocessing left, against a store written from the same tensors."""
    states, means, labels, ids = tensors
    common = {"labels": torch.tensor(labels, dtype=torch.float32), "question_ids": ids}
    columns = {
        "question_id": Column("utf8"),
        "label": Column("int8"),
        "hs_last": Column("float16", (L, D)),
    }
    if kind == "lstm":
        torch.save(
            common | {"sequences": torch.from_numpy(np.stack([s[-1] for s in states]))},
            tmp_path / "a.pt",
        )
    else:
        graphs = [
            [graph(s[:, i], m[i]) for i in range(L)] for s, m in zip(states, means, strict=True)
        ]
        torch.save(common | {"graphs": graphs}, tmp_path / "a.pt")
        columns |= {
            "hidden_states": Column("float16", (L, D), "tokens"),
            "attn_mean": Column("float16", (L,), "pairs"),
        }
    assert store_main(["import", str(tmp_path / "imported.zarr"), str(tmp_path / "a.pt")]) == 0
    with StoreWriter.create(tmp_path / "direct.zarr", Schema(columns)) as writer:
        for i, trace_id in enumerate(ids):
            rows, places = np.tril_indices(len(states[i]))
            row = {"question_id": trace_id, "label": int(labels[i]), "hs_last": states[i][-1]}
            row |= {"hidden_states": states[i], "attn_mean": means[i][:, rows, places].T}
            writer.append(trace_id, {name: row[name] for name in columns})
    flags = ["--no-run-gnn-det", "--no-run-gvae"] if kind == "lstm" else ["--no-run-lstm"]
    found, expected = (
        train_with(tmp_path / f"{name}.zarr", tmp_path / f"run-{name}", flags)
        for name in ("imported", "direct")
    )
    assert found == expected
    assert len(found) == N


def train_with(store, out, flags):
    train(store, out, *flags)
    return scores_of(out)


def graph(states, mean):
    """One layer: an edge from each attended token to the token that attends."""
    rows, places = np.tril_indices(len(states))
    edges = torch.tensor(np.stack([places, rows]))
    return Data(
        x=torch.from_numpy(states), edge_index=edges, edge_attr=torch.from_numpy(mean[rows, places])
    )
