"""What does a flat store of shuffled tokens cost and give, and how fast are others' shuffles?

States of 4 KB, float16, as many as fill --size-mb. To make the store is compared with copying its
bytes twice, durably; to read it in order, from memory and from the disk, with reading its files
from end to end. Then batches of shuffled tokens, from memory: `TokenLoader` with both of its
shuffles and the flat store, against the mixing buffer of SAELens (32,768 tokens, half of them kept,
its defaults for a context of 512), fed with blocks of one array in memory, and the shuffled
DataLoader of saev over its own files, whose states are float32: there rows/s compare. They are
measured where they are installed: pip install sae-lens saev.
"""

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.data import files_of, make_store, random_rows, sequential
from benchmarks.harness import Epoch, alternate, epoch_of, parser, run
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
COPIES, SEQUENTIAL, OURS = "two copies", "read of the files", "TokenLoader"
BUFFER = 64 * 512
SAEV_TOKENS = 20_000  # it takes 30 times as long for one


def main(args: Namespace) -> None:
    """Make, read in order, and shuffle."""
    column = Column("float16", (WIDTH,), "t")
    n_rows = max(1, args.size_mb * 10**6 // (sum(LENGTHS) // 2 * 2 * WIDTH))
    path = args.dir / "traces.zarr"
    store = make_store(path, {"x": column}, lambda: random_rows(n_rows, (WIDTH,), LENGTHS))
    n_bytes = 2 * WIDTH * store.n_items("x")
    flat = build_flat(store, args.dir / "flat.zarr", n_bytes)

    def measured(seconds: dict[str, list[float]], anchor: str) -> list[dict]:
        return ratios(seconds, len(flat), n_bytes, anchor)

    made = alternate(makers(store, flat, args.dir, n_bytes), args.epochs, warm=False)
    rows = [{"what": "make"} | row for row in measured(made, COPIES)]
    files = [file for file in files_of(flat.path / "x") if file.parent.name == "c"]
    readers = {SEQUENTIAL: sequential(files), "TraceLoader": partial(read_flat, flat.path)}
    for what, cold in (("read", ()), ("read, cold", [flat.path])):
        rows += [
            {"what": what} | row
            for row in measured(alternate(readers, args.epochs, cold=cold), SEQUENTIAL)
        ]
    turns = alternate(shuffles(store, flat, args.dir), args.epochs)
    rows += [{"what": "shuffled"} | row for row in measured(turns, OURS)]
    rows += saev_rows(args, store, rows)
    main_figures = (ratio_to(COPIES), ratio_to(SEQUENTIAL), ratio_to(OURS))
    finish(
        "flat_tokens", args.results, rows, "median_GB_per_s", main_figures, ("what", "contender")
    )


def build_flat(store: TraceStore, path: Path, memory_bytes: int) -> TraceStore:
    """The flat store, in the order of the first epoch."""
    source = FlatSource(store, ["x"], partial_path(path) / "_tmp", 3 * memory_bytes, shuffle=True)
    assert source.is_scattered == (path.stem == "buckets")
    return build_store(path, source)


def makers(store: TraceStore, flat: TraceStore, folder: Path, n_bytes: int) -> dict[str, Epoch]:
    """The bytes copied twice, and the store made in one pass and in two; what is made is
    removed."""
    files = files_of(flat.path / "x")

    def copy_twice(number: int) -> None:
        for suffix in ("first", "second"):
            for i, file in enumerate(files):
                DISK.copy_file(file, folder / f"{i}.{suffix}")
        for copied in (*folder.glob("*.first"), *folder.glob("*.second")):
            copied.unlink()

    def make(number: int, name: str, memory_bytes: int) -> None:
        path = folder / f"{name}.zarr"
        build_flat(store, path, memory_bytes)
        DISK.remove_tree(path)

    return {
        COPIES: copy_twice,
        "from memory": partial(make, name="memory", memory_bytes=n_bytes),
        f"through {N_BUCKETS} buckets": partial(
            make, name="buckets", memory_bytes=n_bytes // N_BUCKETS
        ),
    }


def read_flat(path: Path, number: int) -> None:
    """Opened anew: of the files nothing is mapped before."""
    for _ in TraceLoader(path, ["x"], BATCH_SIZE, num_workers=1):
        pass


def shuffles(store: TraceStore, flat: TraceStore, folder: Path) -> dict[str, Epoch]:
    """Batches of shuffled tokens, from what is in memory."""
    contenders = {
        OURS: epoch_of(TokenLoader(store, ["x"], BATCH_SIZE, True, num_workers=1)),
        "TokenLoader, blocks": epoch_of(
            TokenLoader(store, ["x"], BATCH_SIZE, "blocks", num_workers=1, buffer=BUFFER)
        ),
        "flat store": epoch_of(TraceLoader(flat, ["x"], BATCH_SIZE, num_workers=1)),
    }
    try:
        from sae_lens.training.mixing_buffer import mixing_buffer
    except ImportError as error:
        print(f"not measured: SAELens ({error})")
        return contenders
    import torch

    states = torch.cat([torch.from_numpy(trace["x"].copy()) for trace in store])

    def mixed(number: int) -> None:
        for batch in mixing_buffer(BUFFER, BATCH_SIZE, iter(states.split(BATCH_SIZE))):
            batch.contiguous()

    return contenders | {f"SAELens {installed('sae-lens')}": mixed}


def saev_rows(args: Namespace, store: TraceStore, rows: list[dict]) -> Iterator[dict]:
    """The shuffled DataLoader that saev trains with, over the first tokens."""
    try:
        from saev import activations, config
    except ImportError as error:
        print(f"not measured: saev ({error})")
        return
    import torch

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

    def epoch(number: int) -> None:
        for _ in loader:
            pass

    seconds = alternate({f"saev {installed('saev')}": epoch}, 1, warm=False)
    (found,) = ratios(seconds, n, 4 * n * WIDTH)
    ours = next(row for row in rows if row["contender"] == OURS)
    found[ratio_to(OURS)] = round(found["rows_per_s"] / ours["rows_per_s"], 4)
    yield {"what": "shuffled"} | found


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=2000, epochs=3))
