"""How fast is a global shuffle of a store in a bucket, through a cache that holds a tenth of it?

Ragged float16 rows; the server is nginx on this machine, whose cores it shares with the readers.
The anchor asks obstore for the chunks of the same rows in the same order, 64 requests at a time,
and drops them. Every turn begins with an empty cache; opening a store or dataset is not timed.

The peers read copies of the same rows in their own formats. `order` says how they are shuffled:
"global": any row may come next. "blocks": LitData shuffles files, and rows within each. They are
given the same cache. Left out: zarr-python and MosaicML streaming, measured once, with less than a
tenth of the anchor's speed, and MosaicML's less than a thirtieth.
`--far` puts the server as far away as a bucket is: 50 ms a request, 90 MB/s an answer. `--tls` has
it speak https://, as buckets do. `cpu_s_per_GB` is of all processes but the server, in the median.
"""

import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.data import MEGABYTE_ROWS, made_once, ragged_store
from benchmarks.flat_copy import FlatCopy
from benchmarks.harness import clocks, fail, loader_epoch, parser, run, take_turns
from benchmarks.object_server import find_nginx, served
from benchmarks.tables import finish, ratios
from store import TraceStore

BUCKET = "traces"
SIZES = {"256 KB": (262_144, 4096, 64), "1 MB": (*MEGABYTE_ROWS, 16)}
N_REQUESTS = 64
LATENCY_MS, STREAM_MB_S = 50.0, 90.0
CACHED = 0.1  # of the data
LEAST_CACHE = 100_000_000
PEER_FILE_BYTES = 16_000_000  # by default 64 MB, of which such a cache would hold one or two
RAW = "obstore"

Epoch = Callable[[], object]
Opened = Callable[[int], AbstractContextManager[Epoch]]


def main(args: Namespace) -> None:
    """All contenders, size by size."""
    results = []
    distance = (LATENCY_MS, STREAM_MB_S) if args.far else (0.0, 0.0)
    with served_bucket(args.dir, *distance, args.tls) as bucket:
        for size, (row_bytes, item_bytes, batch_size) in SIZES.items():
            results += measure(args, bucket, size, row_bytes, item_bytes, batch_size)
    name = "_".join(["remote", *["far"] * args.far, *["tls"] * args.tls])
    finish(name, args.output, results, "rows", "contender")


@contextmanager
def served_bucket(
    folder: Path, latency_ms: float = 0.0, stream_mb_s: float = 0.0, with_tls: bool = False
) -> Iterator[Path]:
    """A folder that clients see as the bucket `BUCKET`; see `served` for the distance."""
    if find_nginx() is None:
        fail("nginx: expected the program, found none; apt install nginx-light")
    bucket = folder / "bucket" / BUCKET
    bucket.mkdir(parents=True, exist_ok=True)
    with served(bucket.parent, folder / "nginx", latency_ms, stream_mb_s, with_tls) as url:
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
        "AWS_ALLOW_HTTP": str(endpoint.startswith("http:")).lower(),
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
        try:
            opened = build(data)
        except ImportError as error:
            print(f"not measured: {name} ({error})")
            continue
        contenders[f"{name} {version(package)}"] = opened
        orders[f"{name} {version(package)}"] = order
    cpu_s: dict[str, list[float]] = {name: [] for name in contenders}
    turns = {name: partial(once_opened, opened, cpu_s[name]) for name, opened in contenders.items()}
    seconds = take_turns(turns, args.epochs)
    rows = ratios(seconds, len(flat), flat.n_bytes, RAW)
    gigabytes = flat.n_bytes / 1e9
    return [
        {"rows": size, "order": orders[row["contender"]]}
        | row
        | {"cpu_s_per_GB": round(median(cpu_s[row["contender"]]) / gigabytes, 3)}
        for row in rows
    ]


@dataclass(frozen=True)
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

    flat: FlatCopy
    path: Path
    batch_size: int
    cache_bytes: int
    folder: Path

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


def once_opened(opened: Opened, cpu_s: list[float], number: int) -> float:
    """Seconds of an epoch, whose processor time is noted. Opening what it reads is not timed."""
    with opened(number) as epoch:
        before = processor_s()
        seconds = clocks(epoch)[0]
        # that of the turn before may have ended: it is in no difference
        after = processor_s()
        cpu_s.append(sum(after[one] - before.get(one, 0.0) for one in after))
        return seconds


def processor_s() -> dict[str, float]:
    """Processor seconds of this process with those that ended under it, and of each process that
    fetches."""
    found = {"self": sum(os.times()[:4])}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if b"store.remote.cache.fetcher" in status.with_name("cmdline").read_bytes():
                fields = status.read_text().rpartition(")")[2].split()
                ticks = sum(map(int, fields[11:13]))
                found[status.parent.name] = ticks / os.sysconf("SC_CLK_TCK")
    return found


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

        def epoch() -> None:
            order = [row for rows in data.flat.batches(number, data.batch_size) for row in rows]
            with ThreadPoolExecutor(N_REQUESTS) as pool:
                for _ in pool.map(read, order):
                    pass

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
        for located in array.locate(starts, stops, np.arange(len(flat) + 1))
    ]


def ours(data: Data, num_workers: int) -> Opened:
    @contextmanager
    def opened(number: int) -> Iterator[Epoch]:
        with data.empty_cache() as cache:
            store = TraceStore.open(
                data.url(data.path), cache_dir=cache, cache_bytes=data.cache_bytes
            )
            yield partial(loader_epoch(store, data.batch_size, num_workers), number)
            print(store.mirror.summary(), file=sys.stderr)

    return opened


def lance_copy(flat: FlatCopy, path: Path) -> Path:
    """The rows in a Lance dataset beside the store, a binary value each."""
    import lance
    import pyarrow as pa

    schema = pa.schema(
        [pa.field("x", pa.large_binary(), metadata={"lance-encoding:compression": "none"})]
    )

    def make(target: Path) -> None:
        rows = (pa.array([row], pa.large_binary()) for row in flat.row_bytes())
        batches = (pa.record_batch([row], schema) for row in rows)
        lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches), str(target))

    return made_once(path.with_suffix(".lance"), make)


def lance(data: Data) -> Opened:
    import lance

    path = lance_copy(data.flat, data.path)

    @contextmanager
    def opened(number: int) -> Iterator[Epoch]:
        dataset = lance.dataset(data.url(path))

        def epoch() -> None:
            for rows in data.flat.batches(number, data.batch_size):
                dataset.take(rows, columns=["x"])

        yield epoch

    return opened


def litdata_copy(flat: FlatCopy, path: Path) -> Path:
    """The rows in LitData's files beside the store."""
    from litdata.streaming.writer import BinaryWriter

    def make(target: Path) -> None:
        target.mkdir()
        writer = BinaryWriter(str(target), chunk_bytes=PEER_FILE_BYTES)
        for number, row in enumerate(flat.row_bytes()):
            writer[number] = {"x": row}
        writer.done()
        writer.merge()

    return made_once(path.with_suffix(".litdata"), make)


def litdata(data: Data) -> Opened:
    from litdata import StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # which the server here speaks
    path = litdata_copy(data.flat, data.path)

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
            yield lambda: [len(sample["x"]) for sample in dataset]

    return opened


# name -> package, how it shuffles, how it is opened
PEERS: dict[str, tuple[str, str, Callable[[Data], Opened]]] = {
    "Lance": ("pylance", "global", lance),
    "LitData": ("litdata", "blocks", litdata),
}


FAR = f"each request waits {LATENCY_MS:g} ms, each answer comes at {STREAM_MB_S:g} MB/s"
OPTIONS = {"--far": (False, FAR), "--tls": (False, "the server speaks https://")}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=2000, epochs=3, options=OPTIONS))
