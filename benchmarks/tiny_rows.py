"""What does it cost to write tiny rows, one by one and in blocks, against plain files?

Rows of twelve columns, 90 bytes on average: three ragged ones, eight numbers and a text. The anchor
writes the same arrays with `numpy.save` and one fsync each: it has no ids, chunks or checksums.
"""

import os
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.harness import Epoch, alternate, parser, run
from benchmarks.tables import finish, ratios
from store import Column, Ragged, Schema, StoreWriter

ROW_BYTES = 90
BLOCK_ROWS = 4096
RAGGED = {"logprob": "float32", "token": "int32", "rank": "int32"}
NUMBERS = [f"feature_{i}" for i in range(8)]
SCHEMA = Schema(
    {name: Column(dtype, axis="tokens") for name, dtype in RAGGED.items()}
    | dict.fromkeys(NUMBERS, Column("float32"))
    | {"question": Column("utf8")}
)


class Rows:
    """All rows in memory, column by column."""

    def __init__(self, n_rows: int) -> None:
        rng = np.random.default_rng(0)
        self.ids = [f"trace_{i}" for i in range(n_rows)]
        self.texts = [f"question {i % 1000}" for i in range(n_rows)]
        self.offsets = np.cumsum([0, *rng.integers(0, 8, n_rows)])
        n_items = self.offsets[-1]
        self.ragged = {name: rng.integers(0, 9, n_items).astype(RAGGED[name]) for name in RAGGED}
        self.numbers = {name: rng.random(n_rows, np.float32) for name in NUMBERS}

    def __len__(self) -> int:
        return len(self.ids)

    def block(self, start: int, stop: int) -> dict:
        first, last = self.offsets[[start, stop]]
        offsets = self.offsets[start : stop + 1] - first
        ragged = {name: Ragged(part[first:last], offsets) for name, part in self.ragged.items()}
        numbers = {name: part[start:stop] for name, part in self.numbers.items()}
        return {**ragged, **numbers, "question": self.texts[start:stop]}

    def row(self, i: int) -> dict:
        first, last = self.offsets[i : i + 2]
        ragged = {name: part[first:last] for name, part in self.ragged.items()}
        numbers = {name: part[i] for name, part in self.numbers.items()}
        return {**ragged, **numbers, "question": self.texts[i]}


def main(args: Namespace) -> None:
    """Alternate the plain files and both ways to append."""
    rows = Rows(args.size_mb * 10**6 // ROW_BYTES)
    path = args.dir / "tiny.zarr"
    contenders = {
        "plain files": plain(args.dir / "tiny", rows),
        "row by row": ours(path, rows, one_by_one),
        f"blocks of {BLOCK_ROWS:,} rows": ours(path, rows, in_blocks),
    }
    seconds = alternate(contenders, args.epochs)
    found = ratios(seconds, len(rows), len(rows) * ROW_BYTES, "row by row")
    finish("tiny_rows", args.output, found)


def plain(folder: Path, rows: Rows) -> Epoch:
    def epoch(number: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        texts = np.frombuffer("".join(rows.texts).encode(), np.uint8)
        arrays = {"offsets": rows.offsets, "texts": texts, **rows.ragged, **rows.numbers}
        for name, array in arrays.items():
            with (folder / name).open("wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())

    return epoch


def ours(path: Path, rows: Rows, append: Callable[[StoreWriter, Rows], None]) -> Epoch:
    def epoch(number: int) -> None:
        shutil.rmtree(path, ignore_errors=True)
        with StoreWriter.create(path, SCHEMA) as writer:
            append(writer, rows)

    return epoch


def one_by_one(writer: StoreWriter, rows: Rows) -> None:
    for i, trace_id in enumerate(rows.ids):
        writer.append(trace_id, rows.row(i))


def in_blocks(writer: StoreWriter, rows: Rows) -> None:
    for start in range(0, len(rows), BLOCK_ROWS):
        stop = min(len(rows), start + BLOCK_ROWS)
        writer.append_many(rows.ids[start:stop], rows.block(start, stop))


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=20, epochs=3))
