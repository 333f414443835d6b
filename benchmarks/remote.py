"""How fast is a global shuffle of a store in a bucket, through a cache that holds a tenth of it?

Ragged float16 rows; the server is nginx on this machine, whose cores it shares with the readers.
The anchor asks obstore for the chunks of the same rows in the same order, 64 requests at a time,
and drops them. Every turn begins with an empty cache; opening a store or dataset is not timed.

The peers read copies of the same rows in their own formats. `order` says how they are shuffled:
"global": any row may come next. "blocks": LitData shuffles files, and rows within each; MosaicML
streaming shuffles files, and rows within blocks of some of them. They are given the same cache.
`--far` puts the server as far away as a bucket is: 50 ms a request, 90 MB/s an answer.
"""

import os
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.harness import (
    FlatCopy,
    Parser,
    fail,
    finish,
    installed,
    needs_extra,
    parser,
    ragged_store,
    ratio_to,
    ratios,
    run,
    show,
)
from benchmarks.object_server import find_nginx, served
from benchmarks.peers import lance_copy, litdata_copy, mosaic_copy
from store import TraceLoader, TraceStore
from store.read.location import locate

BUCKET = "traces"
SIZES = {"256 KB": (262_144, 4096, 64), "1 MB": (1_000_000, 4096, 16)}
N_REQUESTS = 64
LATENCY_MS, STREAM_MB_S = 50.0, 90.0
CACHED = 0.1  # of the data
LEAST_CACHE = 100_000_000
MOSAIC_BYTES = 500_000_000  # of which it reads tens of rows a second
PEER_FILE_BYTES = 16_000_000  # by default 64 MB, of which such a cache would hold one or two
RAW = "obstore"

Epoch = Callable[[], int]  # -> rows that were read
Opened = Callable[[int], AbstractContextManager[Epoch]]


def main(args: Namespace) -> None:
    """All contenders, size by size."""
    results = []
    distance = (LATENCY_MS, STREAM_MB_S) if args.far else (0.0, 0.0)
    with served_bucket(args.dir, *distance) as bucket:
        for size, (row_bytes, item_bytes, batch_size) in SIZES.items():
            results += measure(args, bucket, size, row_bytes, item_bytes, batch_size)
    finish(
        "remote_far" if args.far else "remote",
        args.results,
        results,
        "median_GB_per_s",
        ratio_to(RAW),
        ("rows", "contender"),
    )


@contextmanager
def served_bucket(
    folder: Path, latency_ms: float = 0.0, stream_mb_s: float = 0.0
) -> Iterator[Path]:
    """A folder that clients see as the bucket `BUCKET`; see `served` for the distance."""
    if find_nginx() is None:
        fail("nginx: expected the program, found none; apt install nginx-light")
    with needs_extra("remote"):
        import obstore  # noqa: F401
    bucket = folder / "bucket" / BUCKET
    bucket.mkdir(parents=True, exist_ok=True)
    with served(bucket.parent, folder / "nginx", latency_ms, stream_mb_s) as url:
        os.environ |= environment(url)
        yield bucket


def environment(endpoint: str) -> dict[str, str]:
    """How the clients of all contenders find the server; it checks no signature."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ENDPOINT": endpoint,
        "S3_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "anyone",
        "AWS_SECRET_ACCESS_KEY": "anything",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def measure(
    args: Namespace, bucket: Path, size: str, row_bytes: int, item_bytes: int, batch_size: int
) -> list[dict]:
    """The contenders with rows of one size."""
    store = ragged_store(bucket, args.size_mb, row_bytes, item_bytes)
    flat = FlatCopy(store)
    data = Data(
        flat, store.path, batch_size, int(max(LEAST_CACHE, CACHED * flat.n_bytes)), args.dir
    )
    contenders: dict[str, Opened] = {
        RAW: raw(data, store),
        "ours": ours(data, 0),
        "ours, 2 threads": ours(data, 2),
    }
    orders = dict.fromkeys(contenders, "global")
    for name, (package, order, build) in PEERS.items():
        if args.far and name in SLOW_FAR:
            print(f"not measured: {name} (with such a cache it fetches its files again and again)")
            continue
        try:
            opened = build(data)
        except ImportError as error:
            print(f"not measured: {name} ({error})")
            continue
        contenders[f"{name} {installed(package)}"] = opened
        orders[f"{name} {installed(package)}"] = order
    seconds = alternate_opened(contenders, args.epochs, len(flat))
    rows = ratios(seconds, len(flat), flat.n_bytes, RAW)
    return [{"rows": size, "order": orders[row["contender"]]} | row for row in rows]


class Data:
    """The rows of one size, and how they are read.

    Attributes
    ----------
    flat
        The rows.
    path
        The store's folder in the bucket; copies in other formats stand beside it.
    batch_size, cache_bytes
        Of the readers.
    folder
        For caches.
    """

    def __init__(
        self, flat: FlatCopy, path: Path, batch_size: int, cache_bytes: int, folder: Path
    ) -> None:
        self.flat = flat
        self.path = path
        self.batch_size = batch_size
        self.cache_bytes = cache_bytes
        self.folder = folder

    def url(self, path: Path) -> str:
        """Address of a folder in the bucket."""
        return f"s3://{BUCKET}/{path.name}"

    @contextmanager
    def empty_cache(self) -> Iterator[Path]:
        """A directory that is removed in the end."""
        path = self.folder / "cache"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        yield path
        shutil.rmtree(path, ignore_errors=True)


def alternate_opened(
    contenders: Mapping[str, Opened], turns: int, n_rows: int
) -> dict[str, list[float]]:
    """Seconds of an epoch of each contender, in turns. Opening it is not timed.

    An epoch returns how many rows it has read. A slow contender reads fewer than there are; its
    seconds are scaled up to all rows.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(turns):
        for name, opened in contenders.items():
            with opened(number) as epoch:
                start = time.perf_counter()
                n_read = epoch()
                taken = time.perf_counter() - start
            seconds[name].append(taken * n_rows / n_read)
            show(f"turn {number + 1} of {turns}: {name} {taken:.2f} s for {n_read:,} rows")
    show("")
    return seconds


def raw(data: Data, store: TraceStore) -> Opened:
    """The chunks of each row as obstore gives them."""
    import obstore
    from obstore.store import from_url

    rows = chunk_ranges(store, data.flat)

    @contextmanager
    def opened(number: int) -> Iterator[Epoch]:
        client = from_url(data.url(data.path))

        def read(row: int) -> None:
            for key, start, stop in rows[row]:
                found = obstore.get_range(client, key, start=start, end=stop)
                assert len(found) == stop - start

        def epoch() -> int:
            order = [row for rows in data.flat.batches(number, data.batch_size) for row in rows]
            with ThreadPoolExecutor(N_REQUESTS) as pool:
                for _ in pool.map(read, order):
                    pass
            return len(order)

        yield epoch

    return opened


def chunk_ranges(store: TraceStore, flat: FlatCopy) -> list[list[tuple[str, int, int]]]:
    """Of each row, the objects and byte ranges of the chunks that hold it."""
    array = store.reader.column("x")
    layout = array.layout
    step = layout.chunk_items
    starts = flat.offsets[:-1] // step * step
    stops = np.minimum(-(-flat.offsets[1:] // step) * step, array.n_items)

    def of_place(start: int, stop: int, number: int) -> tuple[str, int, int]:
        base = number * layout.shard_items
        (found,) = array.shard(number).byte_ranges(start - base, stop - base, np.array([0]))
        return layout.shard_path(number), *found

    return [
        list(map(of_place, *map(np.ndarray.tolist, located)))
        for located in locate(array.array, starts, stops, np.arange(len(flat) + 1))
    ]


def ours(data: Data, num_workers: int) -> Opened:
    @contextmanager
    def opened(number: int) -> Iterator[Epoch]:
        with data.empty_cache() as cache:
            store = TraceStore.open(
                data.url(data.path), cache_dir=cache, cache_bytes=data.cache_bytes
            )
            loader = TraceLoader(
                store, ["x"], data.batch_size, shuffle=True, num_workers=num_workers
            )
            loader.set_epoch(number)

            def epoch() -> int:
                return sum(map(len, loader))

            yield epoch
            print(store.mirror.summary(), file=sys.stderr)

    return opened


def sampled(data: Data, n_bytes: int = 100_000_000) -> int:
    """Rows that a slow contender reads."""
    return max(data.batch_size, round(len(data.flat) * min(1.0, n_bytes / data.flat.n_bytes)))


def zarr_python(data: Data) -> Opened:
    import zarr
    from obstore.store import from_url
    from zarr.storage import ObjectStore

    @contextmanager
    def opened(number: int) -> Iterator[Epoch]:
        client = ObjectStore(from_url(data.url(data.path)), read_only=True)
        array = zarr.open_array(client, path="x", mode="r", zarr_format=3)
        offsets = data.flat.offsets
        n_read = sampled(data)

        def epoch() -> int:
            order = [row for rows in data.flat.batches(number, data.batch_size) for row in rows]
            with ThreadPoolExecutor(N_REQUESTS) as pool:
                read = pool.map(lambda row: array[offsets[row] : offsets[row + 1]], order[:n_read])
                return sum(len(items) > 0 for items in read)

        yield epoch

    return opened


def lance(data: Data) -> Opened:
    import lance

    path = lance_copy(data.flat, data.path)

    @contextmanager
    def opened(number: int) -> Iterator[Epoch]:
        dataset = lance.dataset(data.url(path))

        def epoch() -> int:
            batches = data.flat.batches(number, data.batch_size)
            return sum(dataset.take(rows, columns=["x"]).num_rows for rows in batches)

        yield epoch

    return opened


def litdata(data: Data) -> Opened:
    from litdata import StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # which the server here speaks
    path = litdata_copy(data.flat, data.path, PEER_FILE_BYTES)

    @contextmanager
    def opened(number: int) -> Iterator[Epoch]:
        with data.empty_cache() as cache:
            dataset = StreamingDataset(
                data.url(path),
                cache_dir=str(cache),
                shuffle=True,
                seed=number,
                max_cache_size=data.cache_bytes,
                storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
            )
            yield lambda: sum(len(sample["x"]) > 0 for sample in dataset)

    return opened


def mosaic(data: Data) -> Opened:
    path = mosaic_copy(data.flat, data.path, size_limit=PEER_FILE_BYTES)
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    @contextmanager
    def opened(number: int) -> Iterator[Epoch]:
        clean_stale_shared_memory()
        with data.empty_cache() as cache:
            dataset = StreamingDataset(
                remote=data.url(path),
                local=str(cache),
                shuffle=True,
                shuffle_seed=number,
                cache_limit=data.cache_bytes,
                batch_size=data.batch_size,
                num_canonical_nodes=1,
            )
            n_read = sampled(data, MOSAIC_BYTES)
            yield lambda: sum(len(sample["x"]) > 0 for sample in islice(dataset, n_read))
            dataset._iterator.exit()  # its threads would go on fetching

    return opened


# name -> package, how it shuffles, how it is opened
PEERS: dict[str, tuple[str, str, Callable[[Data], Opened]]] = {
    "zarr-python": ("zarr", "global", zarr_python),
    "Lance": ("pylance", "global", lance),
    "LitData": ("litdata", "blocks", litdata),
    "MosaicML streaming": ("mosaicml-streaming", "blocks", mosaic),
}


SLOW_FAR = ("MosaicML streaming",)  # near, it reads a hundredth of what others do


def options() -> Parser:
    """The options of every benchmark, and where the server stands."""
    made = parser(__doc__, size_mb=2000, epochs=3)
    made.add_argument(
        "--far",
        action="store_true",
        help=f"each request waits {LATENCY_MS:g} ms, each answer comes at {STREAM_MB_S:g} MB/s",
    )
    return made


if __name__ == "__main__":
    run(main, options())
