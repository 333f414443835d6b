"""What does writing cost, against a plain sequential file of the same bytes? Both end in an fsync.

1 MB ragged rows, committed once at the end: chunks, checksums, offsets, id table, metadata.
"""

import os
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np

from benchmarks.data import MEGABYTE_ROWS
from benchmarks.harness import Epoch, alternate, parser, run
from benchmarks.tables import finish, ratios
from store import Column, Schema, StoreWriter

ROW_BYTES, ITEM_BYTES = MEGABYTE_ROWS


def main(args: Namespace) -> None:
    """Alternate the plain file and the store."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(195, 294, args.size_mb * 10**6 // ROW_BYTES)
    pool = np.frombuffer(rng.bytes(64 * 2**20), np.float16).reshape(-1, ITEM_BYTES // 2)
    rows = [
        pool[start : start + n]
        for start, n in zip(rng.integers(0, len(pool) - 300, len(lengths)), lengths, strict=True)
    ]
    n_bytes = sum(row.nbytes for row in rows)
    contenders = {
        "plain file": plain(args.dir / "write.flat", rows),
        "ours": ours(args.dir / "write.zarr", rows, None),
        "ours, zstd:1": ours(args.dir / "write.zarr", rows, "zstd:1"),
    }
    seconds = alternate(contenders, args.epochs)
    found = ratios(seconds, len(rows), n_bytes, "plain file")
    finish("write", args.output, found)


def plain(path: Path, rows: list[np.ndarray]) -> Epoch:
    def epoch(number: int) -> None:
        path.unlink(missing_ok=True)
        with path.open("wb") as file:
            for row in rows:
                file.write(row.data)
            file.flush()
            os.fsync(file.fileno())

    return epoch


def ours(path: Path, rows: list[np.ndarray], codec: str | None) -> Epoch:
    schema = Schema({"x": Column("float16", (ITEM_BYTES // 2,), "t", codec=codec)})

    def epoch(number: int) -> None:
        shutil.rmtree(path, ignore_errors=True)
        with StoreWriter.create(path, schema) as writer:
            for i, row in enumerate(rows):
                writer.append(f"trace_{i}", {"x": row})

    return epoch


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=1000, epochs=5))
