"""How fast do detectors train in each precision, compiled and not, and do they wait for data?

An epoch is that of `python -m train`, validation included, over random traces of L = 32 layers:
`hs_last` of d = 4096 for lstm_solo, graphs of about 50 tokens and --hidden-size for the others. The
first epoch, in which compiled detectors are compiled, is not timed but reported. All data is in the
page cache.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.data import make_store
from benchmarks.epochs import Contender, open_data, train_in_turns
from benchmarks.harness import parser, run
from benchmarks.program import needs_extra
from benchmarks.tables import finish
from models import DETECTORS
from store import Column, TraceStore

with needs_extra("train"):
    from train.config import Config
    from train.fit.device import default_threads
    from train.run.detectors import hidden_size

N_LAYERS, STATE_SIZE, N_TOKENS = 32, 4096, 50
LABELS = {"question_id": Column("utf8"), "label": Column("int8")}


def main(args: Namespace) -> None:
    """All contenders of a detector, taking turns."""
    rows = []
    for name in args.detectors.split(","):
        data = open_data(random_store(args.dir, DETECTORS[name].columns, args))
        epochs = args.epochs + 1
        base = Config(batch_size=args.batch_size, epochs=epochs, schedule="constant", num_workers=1)
        configs = {
            (precision, compiled): replace(base, precision=precision, compile=compiled == "yes")
            for precision, compiled in arithmetics()
        }
        threads = args.threads or default_threads(hidden_size(name, data))
        contenders = train_in_turns(name, data, configs, args.epochs, threads)
        rows += [describe(name, *key, one) for key, one in contenders.items()]
    named_by = ("detector", "device", "precision", "compiled")
    finish("training", args.results, rows, "rows_per_s", main="rows_per_s", named_by=named_by)


def arithmetics() -> list[tuple[str, str]]:
    """(precision, compiled) to compare; CPUs mostly emulate bf16, at a small part of the speed."""
    precisions = ("32", "bf16-mixed") if torch.cuda.is_available() else ("32",)
    return [(precision, compiled) for precision in precisions for compiled in ("no", "yes")]


def describe(name: str, precision: str, compiled: str, one: Contender) -> dict:
    """A line of the table."""
    found = one.described()
    label = {"detector": name, "device": found["device"]}
    waited = one.training.wait_seconds / sum(one.seconds)
    return (
        label
        | {"precision": precision, "compiled": compiled}
        | found
        | {"wait_share": round(waited, 4)}
    )


def random_store(directory: Path, columns: tuple[str, ...], args: Namespace) -> TraceStore:
    """A store with these columns."""
    if columns == ("hs_last",):
        path = directory / f"states-{args.size_mb}.zarr"
        described = {"hs_last": Column("float16", (N_LAYERS, STATE_SIZE))}
        return make_store(path, described | LABELS, lambda: state_rows(args.size_mb))
    path = directory / f"graphs-{args.size_mb}-{args.hidden_size}.zarr"
    described = {
        "hidden_states": Column("float16", (N_LAYERS, args.hidden_size), axis="tokens"),
        "attn_mean": Column("float16", (N_LAYERS,), axis="pairs"),
    }
    rows = lambda: graph_rows(args.size_mb, args.hidden_size)  # noqa: E731
    return make_store(path, described | LABELS, rows)


def state_rows(size_mb: int) -> Iterator[tuple[str, dict]]:
    """Random last-token states."""
    rng = np.random.default_rng(0)
    for i in range(max(60, size_mb * 10**6 // (N_LAYERS * STATE_SIZE * 2))):
        states = rng.normal(size=(N_LAYERS, STATE_SIZE)).astype(np.float16)
        yield f"t{i}", {"hs_last": states, "question_id": f"q{i}", "label": i % 2}


def graph_rows(size_mb: int, hidden_size: int) -> Iterator[tuple[str, dict]]:
    """Random states and attention of 40 to 60 tokens."""
    rng = np.random.default_rng(0)
    for i in range(max(60, size_mb * 10**6 // (N_TOKENS * N_LAYERS * hidden_size * 2))):
        n = int(rng.integers(N_TOKENS - 10, N_TOKENS + 11))
        states = rng.normal(size=(n, N_LAYERS, hidden_size)).astype(np.float16)
        pairs = rng.random((n * (n + 1) // 2, N_LAYERS)).astype(np.float16)
        yield (
            f"t{i}",
            {"hidden_states": states, "attn_mean": pairs, "question_id": f"q{i}", "label": i % 2},
        )


OPTIONS = {
    "--hidden-size": (256, "d of the graphs"),
    "--detectors": ("lstm_solo,gnn_det_lstm", "separated by commas"),
    "--batch-size": (32, "traces per step"),
    "--threads": (int, "of the CPU's arithmetic (default: as python -m train)"),
}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=60, epochs=3, options=OPTIONS))
