"""What does a flat store of shuffled tokens cost and give, and how fast are others' shuffles?

States of 4 KB, float16, as many as fill --size-mb. To make the store is compared with copying its
bytes twice, durably; to read it in order, from memory and from the disk, with reading its files
from end to end. Then batches of shuffled tokens: `TokenLoader` with both of its shuffles and the
flat store, from the disk; and from memory, against the mixing buffer of SAELens (32,768 tokens,
half of them kept, its defaults for a context of 512), fed with blocks of one array in memory, and
the shuffled DataLoader of saev over its own files, whose states are float32: there rows/s compare.
They are measured where they are installed: pip install sae-lens saev.
"""

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import files_of, make_store, random_rows, sequential
from benchmarks.harness import Epoch, alternate, parser, run
from benchmarks.program import installed
from benchmarks.tables import finish, ratio_to, ratios
from store import Column, TokenLoader, TraceLoader, TraceStore
from store.transform.flatten import FlatSource
from store.write.build import build_store, partial_path
from store.write.files import DISK

WIDTH = 2048
LENGTHS = (300, 501)  # tokens of a trace
BATCH_SIZE = 4096
N_BUCKETS = 8
OURS = "TokenLoader"
SHUFFLES = {OURS: True, f"{OURS}, blocks": "blocks"}
BUFFER = 64 * 512
SAEV_TOKENS = 20_000  # it takes 30 times as long for one


def main(args: Namespace) -> None:
    """Make, read in order, and shuffle."""
    column = Column("float16", (WIDTH,), "t")
    n_rows = max(1, args.size_mb * 10**6 // (sum(LENGTHS) // 2 * 2 * WIDTH))
    traces, flat = args.dir / "traces.zarr", args.dir / "flat.zarr"
    store = make_store(traces, {"x": column}, lambda: random_rows(n_rows, (WIDTH,), LENGTHS))
    n_tokens = store.n_items("x")
    n_bytes = 2 * WIDTH * n_tokens
    build_flat(traces, flat, n_bytes)
    rows = []
    main_figures = []

    def measure(what: str, contenders: dict[str, Epoch], **options: Any) -> None:
        seconds = alternate(contenders, args.epochs, **options)
        anchor = next(iter(contenders))
        main_figures.append(ratio_to(anchor))
        found = ratios(seconds, n_tokens, n_bytes, anchor)
        rows.extend({"what": what} | row for row in found)

    measure("make", makers(traces, flat, args.dir, n_bytes), warm=False)
    readers = {
        "read of the files": sequential(files_of(flat / "x")),
        "TraceLoader": lambda number: read_all(TraceLoader(flat, ["x"], BATCH_SIZE, num_workers=1)),
    }
    measure("read", readers)
    measure("read, cold", readers, cold=[flat])
    ours = {name: partial(shuffled, traces, shuffle) for name, shuffle in SHUFFLES.items()}
    ours["flat store"] = readers["TraceLoader"]
    measure("shuffled, cold", ours, cold=[traces, flat])
    measure("shuffled", ours | saelens(traces))
    (rows_per_s,) = (
        row["rows_per_s"] for row in rows if (row["what"], row["contender"]) == ("shuffled", OURS)
    )
    rows += saev_rows(args, traces, rows_per_s)
    named = ("what", "contender")
    finish(
        "flat_tokens",
        args.results,
        rows,
        "median_GB_per_s",
        list(dict.fromkeys(main_figures)),
        named,
    )


def read_all(loader: Iterable[object]) -> None:
    for _ in loader:
        pass


def shuffled(traces: Path, shuffle: bool | str, number: int) -> None:
    """An epoch of a loader of the store, opened anew: of cold files nothing is mapped before."""
    loader = TokenLoader(traces, ["x"], BATCH_SIZE, shuffle, num_workers=1, buffer=BUFFER)
    loader.set_epoch(number)
    read_all(loader)


def build_flat(traces: Path, path: Path, memory_bytes: int) -> None:
    """The flat store, in the order of the first epoch."""
    store = TraceStore.open(traces)
    source = FlatSource(store, ["x"], partial_path(path) / "_tmp", 3 * memory_bytes, shuffle=True)
    assert source.is_scattered == (path.stem == "buckets")
    build_store(path, source)


def makers(traces: Path, flat: Path, folder: Path, n_bytes: int) -> dict[str, Epoch]:
    """The bytes copied twice, and the store made in one pass and in two; what is made is
    removed."""
    files = files_of(flat / "x")

    def copy_twice(number: int) -> None:
        for suffix in ("first", "second"):
            for i, file in enumerate(files):
                DISK.copy_file(file, folder / f"{i}.{suffix}")
        for copied in (*folder.glob("*.first"), *folder.glob("*.second")):
            copied.unlink()

    def make(number: int, name: str, memory_bytes: int) -> None:
        path = folder / f"{name}.zarr"
        build_flat(traces, path, memory_bytes)
        DISK.remove_tree(path)

    return {
        "two copies": copy_twice,
        "from memory": partial(make, name="memory", memory_bytes=n_bytes),
        f"through {N_BUCKETS} buckets": partial(
            make, name="buckets", memory_bytes=n_bytes // N_BUCKETS
        ),
    }


def saelens(traces: Path) -> dict[str, Epoch]:
    """The mixing buffer of SAELens, where it is installed."""
    try:
        from sae_lens.training.mixing_buffer import mixing_buffer
    except ImportError as error:
        print(f"not measured: SAELens ({error})")
        return {}
    import torch

    store = TraceStore.open(traces)
    states = torch.cat([torch.from_numpy(trace["x"].copy()) for trace in store])

    def mixed(number: int) -> None:
        for batch in mixing_buffer(BUFFER, BATCH_SIZE, iter(states.split(BATCH_SIZE))):
            batch.contiguous()

    return {f"SAELens {installed('sae-lens')}": mixed}


def saev_rows(args: Namespace, traces: Path, rows_per_s: float) -> Iterator[dict]:
    """The shuffled DataLoader that saev trains with, over the first tokens."""
    try:
        from saev import activations, config
    except ImportError as error:
        print(f"not measured: saev ({error})")
        return
    import torch

    store = TraceStore.open(traces)
    n = min(SAEV_TOKENS, store.n_items("x"))
    folder = args.dir / "saev"
    folder.mkdir(exist_ok=True)
    tokens = np.memmap(folder / "acts000000.bin", np.float32, "w+", shape=(1, 1, n + 1, WIDTH))
    items = islice((item for trace in store for item in trace["x"]), n)
    for i, item in enumerate(items):
        tokens[0, 0, i + 1] = np.nan_to_num(item)
    tokens.flush()
    metadata = activations.Metadata("", "", (0,), n, True, WIDTH, 0, 1, n + 1, "")
    (folder / "metadata.json").write_text(json.dumps(asdict(metadata)))
    chosen = config.DataLoad(str(folder), layer=0, scale_mean=False, scale_norm=False)
    dataset = activations.Dataset(chosen)
    loader = torch.utils.data.DataLoader(dataset, BATCH_SIZE, shuffle=True)

    epochs = {f"saev {installed('saev')}": lambda number: read_all(loader)}
    seconds = alternate(epochs, 1, warm=False)
    (found,) = ratios(seconds, n, 4 * n * WIDTH)
    found[ratio_to(OURS)] = round(found["rows_per_s"] / rows_per_s, 4)
    yield {"what": "shuffled"} | found


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=2000, epochs=3))
