"""How near to a gather from one array in memory are shuffled tokens of a store?

Items of 8 KB and 1 KB of float16, warm page cache: whole items, and one layer of four that are
stored plane by plane or side by side. The anchors are `np.take` of the same batches from an array
in memory that has these items alone, into new memory as one writes it, or into one buffer. Their
order is made before; ours make it, and find row and position of each token.
"""

from argparse import Namespace

import numpy as np

from benchmarks.data import make_store, random_rows
from benchmarks.harness import Epoch, alternate, epoch_of, parser, run
from benchmarks.tables import finish, ratios
from store import Column, TokenLoader, permutation

TAKE, INTO = "np.take", "np.take into a buffer"
ITEM_BYTES = {"8 KB": 8192, "1 KB": 1024}
BATCH_SIZE = 8192
LENGTHS = (300, 501)  # tokens of a trace
LAYERS = {"whole": None, "layer of 4": (), "layer of 4, split": ("layers",)}


def main(args: Namespace) -> None:
    """The items of each size, read in each way."""
    results = []
    for size, item_bytes in ITEM_BYTES.items():
        for kind, split in LAYERS.items():
            results += compare(args, item_bytes, split, {"item": size, "read": kind})
    finish("tokens", args.output, results, "item", "read", "contender")


def compare(args: Namespace, item_bytes: int, split: tuple[str, ...] | None, named: dict) -> list:
    """Rows of the table for one kind of items."""
    n_layers = 1 if split is None else 4
    shape = (n_layers, item_bytes // 2)
    column = Column("float16", shape, "t", ("layers", "hidden"), split or ())
    mean_bytes = sum(LENGTHS) // 2 * n_layers * item_bytes
    n_rows = max(1, args.size_mb * 10**6 // mean_bytes)
    path = args.dir / f"tokens-{item_bytes}-{len(split or 'x')}-{n_layers}.zarr"
    store = make_store(path, {"x": column}, lambda: random_rows(n_rows, shape, LENGTHS))
    layer = slice(0, 1) if split is None else 2
    select = {"x": {"layers": layer}}
    items = np.concatenate([trace["x"][:, layer].reshape(-1, shape[1]) for trace in store])
    check(TokenLoader(store, ["x"], BATCH_SIZE, True, select=select), items, store.offsets("t"))
    contenders = {TAKE: take(items), INTO: take(items, is_into_buffer=True)}
    for n in (0, 1, 2):
        loader = TokenLoader(store, ["x"], BATCH_SIZE, True, select=select, num_workers=n)
        contenders[f"ours, {n} threads"] = epoch_of(loader)
    seconds = alternate(contenders, args.epochs)
    return [named | row for row in ratios(seconds, len(items), items.nbytes, TAKE, INTO)]


def take(items: np.ndarray, is_into_buffer: bool = False) -> Epoch:
    """Batches of a shuffled array; each is held until the next one has come."""
    buffer = np.zeros((BATCH_SIZE, *items.shape[1:]), items.dtype) if is_into_buffer else None
    orders = {}

    def epoch(number: int) -> None:
        order = orders.setdefault(number, permutation(len(items), 0, number))
        for start in range(0, len(order), BATCH_SIZE):
            chosen = order[start : start + BATCH_SIZE]
            # "clip" alone lets NumPy write into the buffer itself
            out = None if buffer is None else buffer[: len(chosen)]
            batch = np.take(items, chosen, 0, out, "raise" if out is None else "clip")  # noqa: F841

    return epoch


def check(loader: TokenLoader, items: np.ndarray, offsets: np.ndarray) -> None:
    """One batch is what it should be."""
    batch = next(iter(loader))
    wanted = items[offsets[batch.rows] + batch.positions.numpy()]
    assert np.array_equal(batch["x"][:, 0].numpy().view(np.int16), wanted.view(np.int16))


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=1000, epochs=5))
