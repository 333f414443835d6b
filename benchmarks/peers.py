"""How fast is a packed batch of random 1 MB traces, against memory's speed and other formats?

Ragged float16 rows under a global shuffle, batches of 32, warm page cache. Every contender delivers
the same packed batch (values, row after row). The ceiling is a memcpy of the same bytes
from a flat map into one buffer. Peers that are not installed are named: pip install '.[peers]'.
"""

import shutil
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch

from benchmarks.harness import (
    FlatCopy,
    alternate,
    epoch_of,
    finish,
    installed,
    make_store,
    parser,
    ragged_rows,
    ratios,
    run,
)
from store import Column, TraceLoader

ROW_BYTES, ITEM_BYTES, BATCH_SIZE = 1_000_000, 4096, 32

Epoch = Callable[[int], None]
Fetch = Callable[[list[int]], object]


def main(args: Namespace) -> None:
    """Run all contenders that are installed."""
    path = args.dir / f"peers-{args.size_mb}.zarr"
    columns = {"x": Column("float16", (ITEM_BYTES // 2,), axis="t")}
    store = make_store(path, columns, lambda: ragged_rows(args.size_mb, ROW_BYTES, ITEM_BYTES))
    flat = FlatCopy(store)
    contenders: dict[str, Epoch] = {
        "ceiling": flat.ceiling(BATCH_SIZE),
        "ours": ours(store, 0),
        "ours, 2 threads": ours(store, 2),
        "memmap + concatenate": flat.concatenate(BATCH_SIZE),
    }
    missing = []
    for name, (package, build) in PEERS.items():
        try:
            fetch = build(flat, path)
        except ImportError as error:
            missing.append(f"{name} ({error})")
            continue
        check(fetch, flat)
        contenders[f"{name} {installed(package)}"] = epoch_with(fetch, flat)
    seconds = alternate(contenders, args.epochs)
    rows = ratios(seconds, len(flat), flat.n_bytes, "ceiling")
    finish("peers", args.results, rows, "median_GB_per_s", main="x_ceiling")
    if missing:
        print(f"not measured: {', '.join(missing)}")


def ours(store: object, num_workers: int) -> Epoch:
    loader = TraceLoader(store, ["x"], BATCH_SIZE, shuffle=True, num_workers=num_workers)
    return epoch_of(loader)


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


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """A peer's own copy of the data, made unless it is there."""
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        if partial.is_dir():
            shutil.rmtree(partial)
        make(partial)
        partial.rename(path)
    return path


def row_values(flat: FlatCopy, row: int) -> np.ndarray:
    return np.asarray(flat.items[flat.offsets[row] : flat.offsets[row + 1]])


def zarr_python(flat: FlatCopy, path: Path) -> Fetch:
    import zarr

    array = zarr.open_array(path / "x", mode="r")
    return lambda rows: np.concatenate(
        [array[flat.offsets[row] : flat.offsets[row + 1]] for row in rows]
    )


def zarrs(flat: FlatCopy, path: Path) -> Fetch:
    import zarr
    import zarrs  # noqa: F401 - registers its pipeline

    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        array = zarr.open_array(path / "x", mode="r")
        array[:1]
    return lambda rows: np.concatenate(
        [array[flat.offsets[row] : flat.offsets[row + 1]] for row in rows]
    )


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


def h5py(flat: FlatCopy, path: Path) -> Fetch:
    import h5py

    def make(target: Path) -> None:
        with h5py.File(target, "w") as file:
            file.create_dataset("x", data=flat.items)

    data = h5py.File(made_once(path.with_suffix(".h5"), make), "r")["x"]

    def fetch(rows: list[int]) -> np.ndarray:
        lengths = [flat.offsets[row + 1] - flat.offsets[row] for row in rows]
        out = np.empty((sum(lengths), *data.shape[1:]), data.dtype)
        at = 0
        for row, n in zip(rows, lengths, strict=True):
            data.read_direct(
                out, np.s_[flat.offsets[row] : flat.offsets[row + 1]], np.s_[at : at + n]
            )
            at += n
        return out

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


def lance_copy(flat: FlatCopy, path: Path) -> Path:
    """The rows in a Lance dataset beside the store, a binary value each."""
    import lance
    import pyarrow as pa

    schema = pa.schema(
        [pa.field("x", pa.large_binary(), metadata={"lance-encoding:compression": "none"})]
    )

    def make(target: Path) -> None:
        batches = (
            pa.record_batch(
                [pa.array([row_values(flat, row).tobytes()], pa.large_binary())], schema
            )
            for row in range(len(flat))
        )
        lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches), str(target))

    return made_once(path.with_suffix(".lance"), make)


def lance(flat: FlatCopy, path: Path) -> Fetch:
    import lance

    dataset = lance.dataset(str(lance_copy(flat, path)))

    def fetch(rows: list[int]) -> np.ndarray:
        column = dataset.take(rows, columns=["x"])["x"]
        return np.concatenate([np.frombuffer(value.as_buffer(), np.float16) for value in column])

    return fetch


def hf_datasets(flat: FlatCopy, path: Path) -> Fetch:
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features({"x": datasets.Value("large_binary")})

    def make(target: Path) -> None:
        rows = ({"x": row_values(flat, row).tobytes()} for row in range(len(flat)))
        made = datasets.Dataset.from_list(list(rows), features=features)
        made.save_to_disk(str(target))

    data = datasets.load_from_disk(str(made_once(path.with_suffix(".hf"), make))).with_format(
        "arrow"
    )

    def fetch(rows: list[int]) -> np.ndarray:
        column = data[rows]["x"]
        return np.concatenate([np.frombuffer(value.as_buffer(), np.float16) for value in column])

    return fetch


def litdata_copy(flat: FlatCopy, path: Path, file_bytes: int | str = "64MB") -> Path:
    """The rows in LitData's files of so many bytes beside the store."""
    from litdata.streaming.writer import BinaryWriter

    def make(target: Path) -> None:
        target.mkdir()
        writer = BinaryWriter(str(target), chunk_bytes=file_bytes)
        for row in range(len(flat)):
            writer[row] = {"x": row_values(flat, row).tobytes()}
        writer.done()
        writer.merge()

    return made_once(path.with_suffix(".litdata"), make)


def litdata(flat: FlatCopy, path: Path) -> Fetch:
    from litdata.streaming import StreamingDataset

    dataset = StreamingDataset(str(litdata_copy(flat, path)), max_cache_size="100GB")
    return lambda rows: np.concatenate(
        [np.frombuffer(dataset[row]["x"], np.float16) for row in rows]
    )


def mosaic_copy(flat: FlatCopy, path: Path, **options: int) -> Path:
    """The rows in MosaicML's files beside the store; the options are those of its writer."""
    if (
        installed("torchvision") is None
    ):  # needed by its image datasets only, and there is no build of it for every torch
        sys.modules.setdefault("streaming.vision", MagicMock())
    from streaming import MDSWriter

    def make(target: Path) -> None:
        with MDSWriter(out=str(target), columns={"x": "bytes"}, **options) as writer:
            for row in range(len(flat)):
                writer.write({"x": row_values(flat, row).tobytes()})

    return made_once(path.with_suffix(".mds"), make)


def mosaic(flat: FlatCopy, path: Path) -> Fetch:
    copy = mosaic_copy(flat, path)
    from streaming import LocalDataset

    dataset = LocalDataset(str(copy))
    return lambda rows: np.concatenate(
        [np.frombuffer(dataset[row]["x"], np.float16) for row in rows]
    )


def array_record(flat: FlatCopy, path: Path) -> Fetch:
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    def make(target: Path) -> None:
        writer = ArrayRecordWriter(str(target), "group_size:1,uncompressed")
        for row in range(len(flat)):
            writer.write(row_values(flat, row).tobytes())
        writer.close()

    reader = ArrayRecordReader(
        str(made_once(path.with_suffix(".arrayrecord"), make)), "readahead_buffer_size:0"
    )
    return lambda rows: np.concatenate(
        [np.frombuffer(data, np.float16) for data in reader.read(rows)]
    )


PEERS: dict[str, tuple[str, Callable[[FlatCopy, Path], Fetch]]] = {
    "zarr-python": ("zarr", zarr_python),
    "zarrs": ("zarrs", zarrs),
    "TensorStore": ("tensorstore", tensorstore),
    "h5py": ("h5py", h5py),
    "tensordict": ("tensordict", tensordict),
    "LitData": ("litdata", litdata),
    "MosaicML streaming": ("mosaicml-streaming", mosaic),
    "ArrayRecord": ("array-record", array_record),
    "HF datasets": ("datasets", hf_datasets),
    "Lance": ("pylance", lance),
}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=600, epochs=3))
