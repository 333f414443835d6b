"""Do the cache of pooled images and channels last make an epoch of a detector of images faster?

An epoch is that of `python -m train`, validation included, over traces of 64 to 128 tokens, L = 32
and d = 4096, 8 by --image-tokens cells each. The baseline reads and pools every trace in each
epoch, as without --image-cache; the ceiling, where the cache holds every image, reads nothing. The
first epoch, which fills the cache, is not timed but reported. All data is in the page cache: from a
disk the baseline would be slower, the cache would not. The processor's time, of all threads, does
not count what other processes take.
"""

import statistics
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness import Parser, finish, make_store, needs_extra, parser, run, show
from benchmarks.tables import median_ratio
from store import Column, TraceStore

with needs_extra("train"):
    from train.config import Config
    from train.data.batches import TrainingData
    from train.data.splits import read_splits
    from train.fit.cpu import cpu_arithmetic, default_threads
    from train.fit.device import build_fabric
    from train.fit.loop import Hooks, Training
    from train.run.detectors import build_detector

N_LAYERS, STATE_SIZE = 32, 4096
MIN_TOKENS, MAX_TOKENS = 64, 128
MIN_ROWS = 40
COLUMNS = {
    "hidden_states": Column("float16", (N_LAYERS, STATE_SIZE), axis="tokens"),
    "question_id": Column("utf8"),
    "label": Column("int8"),
}
CACHES = {"none": 0, "all": 1}  # share of the images that fit
UNCACHED = ("none", "off")


@dataclass
class Contender:
    """One way to train, and the seconds of its epochs: of the clock, and of the processor."""

    training: Training
    first_s: float = 0.0
    seconds: tuple[float, ...] = ()
    cpu_seconds: tuple[float, ...] = ()


def main(args: Namespace) -> None:
    """All contenders of a detector, taking turns."""
    data = open_data(args.dir, args.size_mb)
    rows = []
    for name in args.detectors.split(","):
        with cpu_arithmetic(args.threads or default_threads(STATE_SIZE)):
            contenders = {
                key: start(name, data, args, *key) for key in product(CACHES, ("off", "on"))
            }
            take_turns(contenders, args.epochs, name)
        rows += [describe(name, key, contenders) for key in contenders]
    named_by = ("detector", "device", "image_cache", "channels_last")
    finish("images", args.results, rows, "rows_per_s", main="x_uncached", named_by=named_by)


def start(
    name: str, data: TrainingData, args: Namespace, cache: str, channels_last: str
) -> Contender:
    """A training whose first epoch is done."""
    torch.manual_seed(0)
    n_visited = len(data.splits.train) + len(data.splits.val)
    n_bytes = n_visited * 8 * args.image_tokens * STATE_SIZE * 2
    config = Config(
        batch_size=args.batch_size,
        epochs=args.epochs + 1,
        schedule="constant",
        image_tokens=args.image_tokens,
        image_cache=int(CACHES[cache] * n_bytes),
        channels_last=channels_last,
        num_workers=1,
    )
    detector = build_detector(name, data, config)
    one = Contender(Training(build_fabric(config), detector, data, config, Hooks()))
    one.first_s, _ = run_epoch(one)
    return one


def run_epoch(one: Contender) -> tuple[float, float]:
    """Seconds of an epoch, and of the processor; the device has nothing left to do at its end."""
    start, cpu_start = time.perf_counter(), time.process_time()
    one.training.run_epoch()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - cpu_start


def take_turns(contenders: dict[tuple[str, str], Contender], epochs: int, name: str) -> None:
    """An epoch of each, several times."""
    for number in range(epochs):
        for key, one in contenders.items():
            seconds, cpu_seconds = run_epoch(one)
            one.seconds += (seconds,)
            one.cpu_seconds += (cpu_seconds,)
            show(f"turn {number + 1} of {epochs}: {name} {key} {one.seconds[-1]:.2f} s")
    show("")


def describe(name: str, key: tuple[str, str], contenders: dict[tuple[str, str], Contender]) -> dict:
    """A line of the table."""
    one = contenders[key]
    fabric = one.training.fabric
    device = torch.cuda.get_device_name(fabric.device) if fabric.device.type == "cuda" else "CPU"
    uncached = contenders[UNCACHED]
    median = statistics.median(one.seconds)
    cache = one.training.kept
    return {
        "detector": name,
        "device": device,
        "image_cache": key[0],
        "channels_last": key[1],
        "median_epoch_s": round(median, 2),
        "best_epoch_s": round(min(one.seconds), 2),
        "first_epoch_s": round(one.first_s, 2),
        "step_ms": round(1000 * median / one.training.n_batches, 1),
        "rows_per_s": round(one.training.n_rows / median, 1),
        "x_uncached": round(median_ratio(uncached.seconds, one.seconds), 2),
        "median_epoch_cpu_s": round(statistics.median(one.cpu_seconds), 2),
        "x_uncached_cpu": round(median_ratio(uncached.cpu_seconds, one.cpu_seconds), 2),
        "kept_rows": 0 if cache is None else len(cache),
    }


def open_data(directory: Path, size_mb: int) -> TrainingData:
    """The store, in the page cache."""
    path = directory / f"images-{size_mb}.zarr"
    make_store(path, COLUMNS, lambda: random_rows(size_mb))
    for file in path.rglob("*"):
        if file.is_file():
            file.read_bytes()
    store = TraceStore.open(path)
    return TrainingData(store, read_splits(store, Config()))


def random_rows(size_mb: int) -> Iterator[tuple[str, dict]]:
    """Random states: parts of one long sequence, since drawing all of them would take minutes."""
    rng = np.random.default_rng(0)
    shape = (2 * MAX_TOKENS, N_LAYERS, STATE_SIZE)
    states = rng.standard_normal(shape, dtype=np.float32).astype(np.float16)
    row_bytes = (MIN_TOKENS + MAX_TOKENS) // 2 * N_LAYERS * STATE_SIZE * 2
    for i in range(max(MIN_ROWS, size_mb * 10**6 // row_bytes)):
        first = int(rng.integers(MAX_TOKENS))
        n = int(rng.integers(MIN_TOKENS, MAX_TOKENS + 1))
        row = {"hidden_states": states[first : first + n], "question_id": f"q{i}", "label": i % 2}
        yield f"t{i}", row


def options() -> Parser:
    """The command line."""
    made = parser(__doc__, size_mb=1000, epochs=3)
    made.add_argument(
        "--detectors", default="act_conv", help="separated by commas (default %(default)s)"
    )
    made.add_argument(
        "--image-tokens", type=int, default=32, help="width of an image (default %(default)s)"
    )
    made.add_argument(
        "--batch-size", type=int, default=16, help="traces per step (default %(default)s)"
    )
    made.add_argument(
        "--threads", type=int, help="of the CPU's arithmetic (default: as python -m train)"
    )
    return made


if __name__ == "__main__":
    run(main, options())
