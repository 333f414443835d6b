"""How fast do detectors train in each precision, compiled and not, and do they wait for data?

An epoch is that of `python -m train`, validation included, over random traces of L = 32 layers:
`hs_last` of d = 4096 for lstm_solo, graphs of about 50 tokens and --hidden-size for the others. The
first epoch, in which compiled detectors are compiled, is not timed but reported. All data is in the
page cache.
"""

import statistics
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.harness import Parser, finish, make_store, needs_extra, parser, run, show
from models import DETECTORS
from store import Column, TraceStore

with needs_extra("train"):
    from train.config import Config
    from train.data.batches import TrainingData
    from train.data.splits import read_splits
    from train.fit.cpu import cpu_arithmetic, default_threads
    from train.fit.device import build_fabric
    from train.fit.loop import Hooks, Training
    from train.run.detectors import build_detector, hidden_size

N_LAYERS, STATE_SIZE, N_TOKENS = 32, 4096, 50
LABELS = {"question_id": Column("utf8"), "label": Column("int8")}


@dataclass
class Contender:
    """One way to train one detector."""

    training: Training
    first_s: float = 0.0
    seconds: tuple[float, ...] = ()


def main(args: Namespace) -> None:
    """All contenders of a detector, taking turns."""
    rows = []
    for name in args.detectors.split(","):
        data = open_data(args.dir, DETECTORS[name].columns, args.size_mb, args.hidden_size)
        base = Config(
            batch_size=args.batch_size, epochs=args.epochs + 1, schedule="constant", num_workers=1
        )
        threads = args.threads or default_threads(hidden_size(name, data))
        with cpu_arithmetic(threads):
            contenders = {
                key: start(name, data, replace(base, precision=key[0], compile=key[1]))
                for key in arithmetics()
            }
            take_turns(contenders, args.epochs, name)
        rows += [describe(name, key, one) for key, one in contenders.items()]
    named_by = ("detector", "device", "precision", "compiled")
    finish("training", args.results, rows, "rows_per_s", main="rows_per_s", named_by=named_by)


def arithmetics() -> list[tuple[str, bool]]:
    """(precision, compiled) to compare; CPUs mostly emulate bf16, at a small part of the speed."""
    precisions = ("32", "bf16-mixed") if torch.cuda.is_available() else ("32",)
    return [(precision, compiled) for precision in precisions for compiled in (False, True)]


def start(name: str, data: TrainingData, config: Config) -> Contender:
    """A training whose first epoch is done."""
    torch.manual_seed(0)
    detector = build_detector(name, data, config)
    one = Contender(Training(build_fabric(config), detector, data, config, Hooks()))
    one.first_s = run_epoch(one)
    one.training.wait_seconds = 0.0
    return one


def run_epoch(one: Contender) -> float:
    """Seconds of an epoch; the device has nothing left to do when it ends."""
    start = time.perf_counter()
    one.training.run_epoch()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def take_turns(contenders: dict[tuple[str, bool], Contender], epochs: int, name: str) -> None:
    """An epoch of each, several times."""
    for number in range(epochs):
        for key, one in contenders.items():
            one.seconds += (run_epoch(one),)
            show(f"turn {number + 1} of {epochs}: {name} {key} {one.seconds[-1]:.2f} s")
    show("")


def describe(name: str, key: tuple[str, bool], one: Contender) -> dict:
    """A line of the table."""
    fabric = one.training.fabric
    device = torch.cuda.get_device_name(fabric.device) if fabric.device.type == "cuda" else "CPU"
    median = statistics.median(one.seconds)
    return {
        "detector": name,
        "device": device,
        "precision": key[0],
        "compiled": "yes" if key[1] else "no",
        "median_epoch_s": round(median, 2),
        "best_epoch_s": round(min(one.seconds), 2),
        "first_epoch_s": round(one.first_s, 2),
        "rows_per_s": round(one.training.n_rows / median, 1),
        "wait_share": round(one.training.wait_seconds / sum(one.seconds), 4),
    }


def open_data(directory, columns: tuple[str, ...], size_mb: int, hidden_size: int) -> TrainingData:
    """A store with these columns, in the page cache."""
    if columns == ("hs_last",):
        path = directory / f"states-{size_mb}.zarr"
        described = {"hs_last": Column("float16", (N_LAYERS, STATE_SIZE))}
        store = make_store(path, described | LABELS, lambda: state_rows(size_mb))
    else:
        path = directory / f"graphs-{size_mb}-{hidden_size}.zarr"
        described = {
            "hidden_states": Column("float16", (N_LAYERS, hidden_size), axis="tokens"),
            "attn_mean": Column("float16", (N_LAYERS,), axis="pairs"),
        }
        store = make_store(path, described | LABELS, lambda: graph_rows(size_mb, hidden_size))
    for file in path.rglob("*"):
        if file.is_file():
            file.read_bytes()
    return TrainingData(store, read_splits(TraceStore.open(path), Config()))


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


def options() -> Parser:
    """The command line."""
    made = parser(__doc__, size_mb=60, epochs=3)
    made.add_argument(
        "--hidden-size", type=int, default=256, help="d of the graphs (default %(default)s)"
    )
    made.add_argument(
        "--detectors",
        default="lstm_solo,gnn_det_lstm",
        help="separated by commas (default %(default)s)",
    )
    made.add_argument(
        "--batch-size", type=int, default=32, help="traces per step (default %(default)s)"
    )
    made.add_argument(
        "--threads", type=int, help="of the CPU's arithmetic (default: as python -m train)"
    )
    return made


if __name__ == "__main__":
    run(main, options())
