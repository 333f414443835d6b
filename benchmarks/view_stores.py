"""The stores and the run that `benchmarks.view` looks at."""

import csv
from pathlib import Path

import numpy as np

from store import Column, Ragged, Schema, StoreWriter

__all__ = [
    "BLOCK_ROWS",
    "trace_id",
    "write_long_trace",
    "write_scores",
    "write_table",
]

BLOCK_ROWS = 1 << 18
N_QUESTIONS = 4096  # different ones, in turns
WORDS = ["who", "where", "is", "the", "capital", "of", "north", "old", "city", "king", "wrote"]
N_TOKENS = 40
ROWS_WITH_TOKENS = 100  # the first ones; the others have none
TABLE = Schema(
    {
        "question": Column("utf8"),
        "answer": Column("utf8"),
        "label": Column("int8"),
        "score": Column("float32"),
        "entropy": Column("float32"),
        "confidence": Column("float64"),
        "n_words": Column("int32"),
        "map_pca": Column("float32", (2,)),
        "tokens": Column("int32", axis="tokens"),
        "logprob": Column("float32", axis="tokens"),
    }
)


def trace_id(row: int) -> str:
    """The id of a row."""
    return f"trace_{row:08}"


def write_table(path: Path, n_rows: int) -> None:
    """A store of many rows: numbers, texts, a map; few rows have tokens."""
    rng = np.random.default_rng(0)
    questions = [" ".join(rng.choice(WORDS, rng.integers(5, 13))) + "?" for _ in range(N_QUESTIONS)]
    with StoreWriter.create(path, TABLE) as writer:
        for start in range(0, n_rows, BLOCK_ROWS):
            rows = range(start, min(start + BLOCK_ROWS, n_rows))
            ids = [trace_id(row) for row in rows]
            texts = {
                "question": [questions[row % N_QUESTIONS] for row in rows],
                "answer": [f"the answer is {row % 1000}" for row in rows],
            }
            n_tokens = np.where(np.arange(start, rows.stop) < ROWS_WITH_TOKENS, N_TOKENS, 0)
            writer.append_many(ids, texts | numbers(rng, n_tokens))


def numbers(rng: np.random.Generator, n_tokens: np.ndarray) -> dict[str, np.ndarray | Ragged]:
    """The columns of numbers, of rows with so many tokens."""
    n = len(n_tokens)
    offsets = np.cumsum([0, *n_tokens])
    n_items = offsets[-1]
    label = rng.integers(0, 2, n).astype(np.int8)
    points = rng.standard_normal((n, 2), np.float32)
    points[:, 0] += 3 * label
    return {
        "label": label,
        "score": rng.random(n, np.float32),
        "entropy": rng.standard_normal(n, np.float32),
        "confidence": rng.random(n),
        "n_words": rng.integers(1, 60, n).astype(np.int32),
        "map_pca": points,
        "tokens": Ragged(rng.integers(0, 1000, n_items).astype(np.int32), offsets),
        "logprob": Ragged(-rng.random(n_items, np.float32), offsets),
    }


def write_scores(path: Path, n_rows: int, n_scored: int) -> None:
    """A finished run that scored some of the rows, as `python -m train` writes it."""
    rng = np.random.default_rng(1)
    rows = np.sort(rng.choice(n_rows, min(n_rows, n_scored), replace=False)).tolist()
    path.mkdir(exist_ok=True)
    with (path / "scores.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["trace_id", "split", "label", "question_id", "gvae", "probe"])
        for row in rows:
            scores = [f"{score:.6f}" for score in rng.random(2)]
            lines.writerow([trace_id(row), "test", row % 2, f"q{row}", *scores])


def write_long_trace(path: Path, n_tokens: int, n_layers: int, hidden_size: int) -> None:
    """A store of one trace with the states of all layers."""
    rng = np.random.default_rng(2)
    shape = (n_layers, hidden_size)
    states = Column("float16", shape, "tokens", ("layers", "hidden"))
    schema = Schema({"tokens": Column("int32", axis="tokens"), "hidden_states": states})
    row = {
        "tokens": np.arange(n_tokens, dtype=np.int32),
        "hidden_states": rng.standard_normal((n_tokens, *shape), np.float32).astype(np.float16),
    }
    with StoreWriter.create(path, schema) as writer:
        writer.append(trace_id(0), row)
