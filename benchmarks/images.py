"""Do the cache of pooled images and channels last make an epoch of a detector of images faster?

An epoch is that of `python -m train`, validation included, over traces of 64 to 128 tokens, L = 32
and d = 4096, 8 by --image-tokens cells each. The baseline reads and pools every trace in each
epoch, as without --image-cache; the ceiling, where the cache holds every image, reads nothing. The
first epoch, which fills the cache, is not timed but reported. All data is in the page cache: from a
disk the baseline would be slower, the cache would not. The processor's time, of all threads, does
not count what other processes take.
"""

import statistics
from argparse import Namespace
from collections.abc import Iterator
from itertools import product

import numpy as np

from benchmarks.data import make_store
from benchmarks.epochs import Contender, open_data, train_in_turns
from benchmarks.harness import parser, run
from benchmarks.program import needs_extra
from benchmarks.tables import finish, median_ratio
from store import Column

with needs_extra("train"):
    from train.config import Config
    from train.data.batches import TrainingData
    from train.fit.device import default_threads

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


def main(args: Namespace) -> None:
    """All contenders of a detector, taking turns."""
    path = args.dir / f"images-{args.size_mb}.zarr"
    data = open_data(make_store(path, COLUMNS, lambda: random_rows(args.size_mb)))
    rows = []
    for name in args.detectors.split(","):
        configs = {key: config_of(data, args, *key) for key in product(CACHES, ("off", "on"))}
        threads = args.threads or default_threads(STATE_SIZE)
        contenders = train_in_turns(name, data, configs, args.epochs, threads)
        uncached = contenders[UNCACHED]
        rows += [describe(name, *key, one, uncached) for key, one in contenders.items()]
    named_by = ("detector", "device", "image_cache", "channels_last")
    finish("images", args.results, rows, "rows_per_s", main="x_uncached", named_by=named_by)


def config_of(data: TrainingData, args: Namespace, cache: str, channels_last: str) -> Config:
    """The settings of a contender."""
    n_visited = len(data.splits.train) + len(data.splits.val)
    n_bytes = n_visited * 8 * args.image_tokens * STATE_SIZE * 2
    return Config(
        batch_size=args.batch_size,
        epochs=args.epochs + 1,
        schedule="constant",
        image_tokens=args.image_tokens,
        image_cache=int(CACHES[cache] * n_bytes),
        channels_last=channels_last,
        num_workers=1,
    )


def describe(
    name: str, cache: str, channels_last: str, one: Contender, uncached: Contender
) -> dict:
    """A line of the table."""
    found = one.described()
    kept = one.training.kept
    label = {"detector": name, "device": found["device"]}
    measured = {
        "step_ms": round(1000 * statistics.median(one.seconds) / one.training.n_batches, 1),
        "x_uncached": round(median_ratio(uncached.seconds, one.seconds), 2),
        "median_epoch_cpu_s": round(statistics.median(one.cpu_seconds), 2),
        "x_uncached_cpu": round(median_ratio(uncached.cpu_seconds, one.cpu_seconds), 2),
        "kept_rows": 0 if kept is None else len(kept),
    }
    return label | {"image_cache": cache, "channels_last": channels_last} | found | measured


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


OPTIONS = {
    "--detectors": ("act_conv", "separated by commas"),
    "--image-tokens": (32, "width of an image"),
    "--batch-size": (16, "traces per step"),
    "--threads": (int, "of the CPU's arithmetic (default: as python -m train)"),
}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=1000, epochs=3, options=OPTIONS))
