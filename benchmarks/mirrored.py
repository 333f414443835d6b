"""What does a mirror cost that holds all of a store, against the same store opened locally?

Ragged float16 rows under a global shuffle; the server is nginx on this machine. The first epoch
fetches: `fetched_x_rows` is what it asked for over the bytes of its rows. Of the epochs that
follow, none asks for anything; they take turns with those of the local store.
"""

import shutil
from argparse import Namespace

from benchmarks.data import ragged_store
from benchmarks.harness import Epoch, alternate, loader_epoch, parser, run
from benchmarks.remote import BUCKET, served_bucket
from benchmarks.remote import SIZES as FETCHED
from benchmarks.tables import finish, ratios
from store import TraceStore

# bytes of a row, bytes of an item, rows of a batch
SIZES = {"4 KB": (4096, 128, 256), **FETCHED}
LOCAL = "opened locally"


def main(args: Namespace) -> None:
    """The local store and its mirror, size by size."""
    results = []
    with served_bucket(args.dir) as bucket:
        for size, (row_bytes, item_bytes, batch_size) in SIZES.items():
            store = ragged_store(bucket, args.size_mb, row_bytes, item_bytes)
            rows = measure(args, store, batch_size)
            results += [{"rows": size} | row for row in rows]
    finish("mirrored", args.output, results, "rows", "contender")


def measure(args: Namespace, store: TraceStore, batch_size: int) -> list[dict]:
    """Epochs of a store and of its mirror, which was empty before."""
    cache = args.dir / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    url = f"s3://{BUCKET}/{store.path.name}"
    mirrored = TraceStore.open(url, cache_dir=cache, cache_bytes=4 * args.size_mb * 10**6 + 10**8)
    n_bytes = store.n_items("x") * store.schema.columns["x"].item_bytes
    contenders: dict[str, Epoch] = {}
    for n in (0, 2):
        ending = f", {n} threads" if n else ""
        contenders[f"{LOCAL}{ending}"] = loader_epoch(store, batch_size, n)
        contenders[f"mirrored{ending}"] = loader_epoch(mirrored, batch_size, n)
    contenders["mirrored"](0)
    fetched = mirrored.mirror.stats()["fetched_bytes"]
    seconds = alternate(contenders, args.epochs)
    assert mirrored.mirror.stats()["fetched_bytes"] == fetched
    rows = ratios(seconds, len(store), n_bytes, LOCAL, f"{LOCAL}, 2 threads")
    share = round(fetched / n_bytes, 4)
    return [
        row | ({"fetched_x_rows": share} if row["contender"] == "mirrored" else {}) for row in rows
    ]


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=600, epochs=7))
