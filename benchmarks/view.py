"""Is the page of `python -m store view` there at once, over millions of rows?

Two stores are made: one of many rows (numbers, texts, a projection, the scores of a run; few rows
have tokens), and one of a single long trace with the states of all layers. The command is started
as a user starts it, and what the page shows is timed in a real Chromium, from the key to the
picture. Without Chromium only the server's answers are timed. Each line has the goal it is held to.

"first" is with nothing computed before: each time another filter or another column. "again" is the
same once more. Memory is private memory of the server at its highest, over that of a server of one
row. Nobody else must be asked for anything, and the console must stay empty.
"""

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from benchmarks.harness import Parser, finish, needs_extra, parser, run
from store import Column, Schema, StoreWriter
from store.format.schema import TRACE_ID
from store.view.server import PAGE

BLOCK_ROWS = 1 << 18
QUESTIONS = 4096  # different ones, in turns
WORDS = "who what where is the capital river of north south old first city king wrote won".split()
N_TOKENS = 40  # of the few rows that have any
ROWS_WITH_TOKENS = 100
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


def write_table(path: Path, n_rows: int) -> None:
    """A store of many rows, written in blocks: row by row it takes minutes."""
    rng = np.random.default_rng(0)
    with StoreWriter.create(path, TABLE) as writer:
        for start in range(0, n_rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, n_rows)
            append_block(writer, *table_block(rng, start, stop))


Items = dict[str, np.ndarray]


def table_block(rng: np.random.Generator, start: int, stop: int) -> tuple[list[str], Items, Items]:
    """The ids, the items of each column, and the items of each row on each axis."""
    n = stop - start
    ids = [f"trace_{i:08}" for i in range(start, stop)]
    n_tokens = np.where(np.arange(start, stop) < ROWS_WITH_TOKENS, N_TOKENS, 0)
    label = rng.integers(0, 2, n)
    items = {
        "label": label.astype(np.int8),
        "score": rng.random(n, np.float32),
        "entropy": rng.standard_normal(n, np.float32),
        "confidence": rng.random(n),
        "n_words": rng.integers(1, 60, n).astype(np.int32),
        "map_pca": rng.standard_normal((n, 2), np.float32) + 3 * label[:, None].astype(np.float32),
        "tokens": rng.integers(0, 1000, n_tokens.sum()).astype(np.int32),
        "logprob": -rng.random(n_tokens.sum(), np.float32),
    }
    texts = {
        TRACE_ID: ids,
        "question": [QUESTION_TEXTS[i % QUESTIONS] for i in range(start, stop)],
        "answer": [f"the answer is {i % 1000}" for i in range(start, stop)],
    }
    lengths = {"tokens": n_tokens}
    for name, written in texts.items():
        encoded = [text.encode() for text in written]
        items[name] = np.frombuffer(b"".join(encoded), np.uint8)
        lengths[name] = np.fromiter(map(len, encoded), np.int64, n)
    return ids, items, lengths


def question_texts() -> list[str]:
    """Questions of 5 to 12 words."""
    rng = np.random.default_rng(1)
    return [" ".join(rng.choice(WORDS, rng.integers(5, 13))) + "?" for _ in range(QUESTIONS)]


QUESTION_TEXTS = question_texts()


def append_block(
    writer: StoreWriter, ids: Sequence[str], items: Mapping[str, np.ndarray], lengths: Items
) -> None:
    """What `StoreWriter.append` does for each of these rows, for all of them, and a commit."""
    arrays = writer._arrays
    for axis, n_items in lengths.items():
        ends = arrays.n_items[axis] + np.cumsum(n_items)
        arrays._offsets[axis].append(ends)
        arrays.n_items[axis] = int(ends[-1])
    for name, values in items.items():
        arrays._columns[name].append(values)
    writer._new_ids |= dict.fromkeys(ids)
    writer.commit()
