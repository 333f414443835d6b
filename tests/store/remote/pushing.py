"""Small stores that are pushed, grow, and are pulled, and what has to be in them."""

import shutil
from pathlib import Path

import numpy as np
from damage import ROWS, SMALL
from oracle import assert_same_row, write_store

from store import Column, StoreWriter, TraceStore
from store.check.verify import verify_store
from store.remote.transfer.pull import pull_store as pull
from store.remote.transfer.push import push_store as push

__all__ = ["as_files", "assert_rows", "grow", "pull", "push", "relabelled", "removed", "scored"]


def write(path: Path, n_rows: int, schema=SMALL) -> Path:
    """The first rows."""
    return write_store(path, schema, ROWS[:n_rows])


def grow(path: Path, n_rows: int) -> None:
    """Append rows until there are so many."""
    with StoreWriter.open(path) as writer:
        for trace_id, row in ROWS[len(writer) : n_rows]:
            writer.append(trace_id, row)


def assert_rows(path: Path, n_rows: int, rows=ROWS, allowed=()) -> None:
    """A store is whole but for problems of some kinds, and has just these rows."""
    kinds = {problem.kind for problem in verify_store(path).problems}
    assert kinds <= {*allowed}
    store = TraceStore.open(path, check=True)
    assert list(store.ids) == [trace_id for trace_id, _ in rows[:n_rows]]
    for number, (trace_id, row) in enumerate(rows[:n_rows]):
        assert_same_row(dict(store[number]), row)
        assert store[trace_id].row == number


def as_files(objects, path: Path, **replaced: bytes) -> Path:
    """Every object as a file, without any check; `zarr.json` may be another."""
    for key in objects.list():
        file = path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(objects.get(key))
    for name, data in replaced.items():
        (path / name.replace("_json", ".json")).write_bytes(data)
    return path


def removed(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    return path


def relabelled(path: Path) -> list:
    """Give every row another label, in a new array; the rows as they are then."""
    store = TraceStore.open(path)
    rows = [(trace_id, dict(row, label=np.int8(i + 7))) for i, (trace_id, row) in enumerate(ROWS)]
    column = SMALL.columns["label"]
    with StoreWriter.open(path) as writer:
        values = ({"label": row["label"]} for _, row in rows[: len(store)])
        writer.set_columns({"label": column}, values)
    return rows


def scored(path: Path) -> None:
    """Add a column."""
    with StoreWriter.open(path) as writer:
        values = (float(i) for i in range(len(writer)))
        writer.add_column("score", Column("float32"), values)
