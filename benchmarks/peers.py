"""How fast is a packed batch of random 1 MB traces, against memory's speed and other formats?

Ragged float16 rows under a global shuffle, batches of 32, warm page cache. Every contender delivers
the same packed batch (values, row after row). The ceiling is a memcpy of the same bytes
from a flat map into one buffer. Peers that are not installed are named: pip install '.[peers]'.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch

from benchmarks.data import MEGABYTE_ROWS, made_once, ragged_store
from benchmarks.flat_copy import FlatCopy
from benchmarks.harness import Epoch, alternate, loader_epoch, parser, run
from benchmarks.tables import finish, ratios

BATCH_SIZE = 32

Fetch = Callable[[list[int]], object]


def main(args: Namespace) -> None:
    """Run all contenders that are installed."""
    store = ragged_store(args.dir, args.size_mb, *MEGABYTE_ROWS)
    flat = FlatCopy(store)
    contenders: dict[str, Epoch] = {
        "ceiling": flat.ceiling(BATCH_SIZE),
        "ours": loader_epoch(store, BATCH_SIZE),
        "ours, 2 threads": loader_epoch(store, BATCH_SIZE, num_workers=2),
        "memmap + concatenate": flat.concatenate(BATCH_SIZE),
    }
    missing = []
    for name, (package, build) in PEERS.items():
        try:
            fetch = build(flat, store.path)
        except ImportError as error:
            missing.append(f"{name} ({error})")
            continue
        check(fetch, flat)
        contenders[f"{name} {version(package)}"] = epoch_with(fetch, flat)
    seconds = alternate(contenders, args.epochs)
    rows = ratios(seconds, len(flat), flat.n_bytes, "ceiling")
    finish("peers", args.output, rows)
    if args.output is not None:
        draw(rows, args.output / "peers.png")
    if missing:
        print(f"not measured: {', '.join(missing)}")


def draw(rows: list[dict], path: Path) -> None:
    """A bar for each contender."""
    from matplotlib import pyplot as plt

    names, speeds = zip(*((row["contender"], row["median_GB_per_s"]) for row in rows), strict=True)
    colors = ["tab:orange" if "ours" in name else "tab:gray" for name in names]
    figure, axis = plt.subplots(figsize=(8, 0.8 + 0.26 * len(rows)), layout="constrained")
    axis.bar_label(axis.barh(names, speeds, color=colors), padding=3)
    axis.set_xlabel("median GB/s")
    axis.invert_yaxis()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def epoch_with(fetch: Fetch, flat: FlatCopy) -> Epoch:
    def epoch(number: int) -> None:
        for rows in flat.batches(number, BATCH_SIZE):
            batch = fetch(rows)  # noqa: F841 - held until the next one has come, as a training loop does

    return epoch


def check(fetch: Fetch, flat: FlatCopy) -> None:
    """A contender that delivers something else is not measured."""
    rows = [5, 3, 9]
    found = np.asarray(fetch(rows)).reshape(-1).view(np.uint8)
    assert np.array_equal(found, flat.expected(rows).reshape(-1).view(np.uint8)), fetch


def joined(values: Iterable[object]) -> np.ndarray:
    """The packed batch of rows that came as buffers of bytes."""
    return np.concatenate([np.frombuffer(value, np.float16) for value in values])


def sliced(array: object, flat: FlatCopy) -> Fetch:
    """Slices of an array that has the items of all rows."""
    offsets = flat.offsets
    return lambda rows: np.concatenate([array[offsets[row] : offsets[row + 1]] for row in rows])


def zarr_python(flat: FlatCopy, path: Path) -> Fetch:
    import zarr

    return sliced(zarr.open_array(path / "x", mode="r"), flat)


def zarrs(flat: FlatCopy, path: Path) -> Fetch:
    import zarr
    import zarrs  # noqa: F401 - registers its pipeline

    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        array = zarr.open_array(path / "x", mode="r")
        array[:1]
    return sliced(array, flat)


def tensorstore(flat: FlatCopy, path: Path) -> Fetch:
    import tensorstore as ts

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/x/"}}
    context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
    array = ts.open(spec, read=True, context=context).result()

    def fetch(rows: list[int]) -> np.ndarray:
        # all in flight at once
        reads = [array[flat.offsets[row] : flat.offsets[row + 1]].read() for row in rows]
        return np.concatenate([read.result() for read in reads])

    return fetch


def tensordict(flat: FlatCopy, path: Path) -> Fetch:
    from tensordict import MemoryMappedTensor

    def make(target: Path) -> None:
        MemoryMappedTensor.from_tensor(torch.from_numpy(np.array(flat.items)), filename=str(target))

    file = made_once(path.with_suffix(".memmap"), make)
    tensor = MemoryMappedTensor.from_filename(str(file), torch.float16, flat.items.shape)
    return lambda rows: torch.cat(
        [tensor[flat.offsets[row] : flat.offsets[row + 1]] for row in rows]
    )


def hf_datasets(flat: FlatCopy, path: Path) -> Fetch:
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features({"x": datasets.Value("large_binary")})

    def make(target: Path) -> None:
        rows = [{"x": row} for row in flat.row_bytes()]
        made = datasets.Dataset.from_list(rows, features=features)
        made.save_to_disk(str(target))

    data = datasets.load_from_disk(str(made_once(path.with_suffix(".hf"), make)))
    arrow = data.with_format("arrow")
    return lambda rows: joined(value.as_buffer() for value in arrow[rows]["x"])


def mosaic(flat: FlatCopy, path: Path) -> Fetch:
    # needed by its image datasets only, and there is no build of it for every torch
    if find_spec("torchvision") is None:
        sys.modules.setdefault("streaming.vision", MagicMock())
    from streaming import LocalDataset, MDSWriter

    def make(target: Path) -> None:
        with MDSWriter(out=str(target), columns={"x": "bytes"}) as writer:
            for row in flat.row_bytes():
                writer.write({"x": row})

    dataset = LocalDataset(str(made_once(path.with_suffix(".mds"), make)))
    return lambda rows: joined(dataset[row]["x"] for row in rows)


PEERS: dict[str, tuple[str, Callable[[FlatCopy, Path], Fetch]]] = {
    "zarr-python": ("zarr", zarr_python),
    "zarrs": ("zarrs", zarrs),
    "TensorStore": ("tensorstore", tensorstore),
    "tensordict": ("tensordict", tensordict),
    "MosaicML streaming": ("mosaicml-streaming", mosaic),
    "HF datasets": ("datasets", hf_datasets),
}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=600, epochs=3))
