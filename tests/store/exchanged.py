"""Stores that two revisions of the package write in turns; a script, run with either of them.

    python exchanged.py write|append FOLDER

`write` makes stores of random schemas, `append` adds rows to those that are there and replaces a
column of some; both then compare every store with the rows that it must hold, and verify it.
"""

import sys
from pathlib import Path

import numpy as np
from oracle import assert_batch, make_rows  # beside this script; it may run with another revision

from store import Column, Schema, StoreWriter, TraceStore
from store.__main__ import main as store_command

N_STORES = 20
N_ROWS = 40
DTYPES = ("bool", "int8", "int64", "uint16", "float16", "float32", "float64", "bfloat16")
SIZES = {"layers": 4, "hidden": 3}


def random_schema(number: int) -> Schema:
    """A schema with columns of any kind: raw, compressed, split, ragged, small chunks, text."""
    rng = np.random.default_rng([7, number])
    columns = {f"column_{i}": random_column(rng) for i in range(int(rng.integers(2, 7)))}
    columns["note"] = Column("utf8", codec=(None, "zstd:3")[number % 2])
    columns["label"] = Column("int8")
    return Schema(columns)


def random_column(rng: np.random.Generator) -> Column:
    names = tuple(SIZES)[: rng.integers(3)]
    is_split = names and rng.random() < 0.5
    chunk_items = int(rng.integers(1, 9))
    return Column(
        DTYPES[rng.integers(len(DTYPES))],
        item_shape=tuple(SIZES[name] for name in names),
        axis=(None, "tokens", "steps")[rng.integers(3)],
        axis_names=names,
        split=names[:1] if is_split else (),
        codec=(None, "zstd:1", "blosc")[rng.integers(3)],
        chunk_items=chunk_items,
        shard_items=chunk_items * int(rng.integers(1, 6)),
    )


def rows_of(number: int, n_turns: int) -> list[tuple[str, dict]]:
    """What a store holds after so many turns; some have another label after each."""
    rows = []
    for turn in range(n_turns):
        for trace_id, row in make_rows(random_schema(number), N_ROWS, seed=100 * number + turn):
            rows.append((f"turn {turn}, {trace_id}", row))
    if is_relabelled(number):
        for i, (_, row) in enumerate(rows):
            row["label"] = np.int8((i + n_turns) % 2)
    return rows


def is_relabelled(number: int) -> bool:
    return number % 4 == 1


def take_turn(path: Path, number: int, turn: int) -> None:
    """Write the rows of one turn in three commits, then the labels of all."""
    rows = rows_of(number, turn + 1)
    if turn == 0:
        StoreWriter.create(path, random_schema(number)).close()
    with StoreWriter.open(path) as writer:
        for i, (trace_id, row) in enumerate(rows[turn * N_ROWS :]):
            writer.append(trace_id, row)
            if i % (N_ROWS // 3) == 0:
                writer.commit()
        if is_relabelled(number):
            writer.set_columns({"label": Column("int8")}, [{"label": row["label"]} for _, row in rows])


def check(path: Path, number: int, n_turns: int) -> None:
    """Compare a store with the rows that it must hold."""
    rows = rows_of(number, n_turns)
    with TraceStore.open(path, check=True) as store:
        assert store.ids[:] == [trace_id for trace_id, _ in rows]
        order = np.random.default_rng(number).permutation(len(rows)).tolist()
        assert_batch(store.read(order), [rows[i][1] for i in order])
    assert store_command(["verify", str(path)]) == 0


def main(turn_name: str, folder: Path) -> None:
    """Take a turn at every store."""
    folder.mkdir(exist_ok=True)
    turns = folder / "turns"
    turn = 0 if turn_name == "write" else int(turns.read_text())
    for number in range(N_STORES):
        path = folder / f"{number}.zarr"
        if turn:
            check(path, number, turn)
        take_turn(path, number, turn)
        check(path, number, turn + 1)
    turns.write_text(str(turn + 1))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
