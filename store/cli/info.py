"""`python -m store info`: what a store holds."""

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from store.cli import shared_options
from store.cli.command import Command
from store.read.store import TraceStore
from store.reports import aligned, count, say, size_text
from store.write.build import command_line, is_partial

__all__ = ["Info"]

EXAMPLES = """\
examples:
  python -m store info traces.zarr
  python -m store info traces.zarr --json | python -m json.tool
"""


class Info(Command):
    """Print what a store holds, and where its traces come from."""

    epilog = EXAMPLES
    store: Path = shared_options.STORE
    json: bool = shared_options.JSON

    def run(self) -> int:
        info = describe(TraceStore.open(self.store))
        if self.json:
            print(json.dumps(info, indent=1))
        else:
            say(_info_text(info))
        return 0


def describe(store: TraceStore) -> dict:
    info = {"unfinished": command_line(store)} if is_partial(store.path) else {}
    return info | {
        "path": store.location,
        "rows": len(store),
        "bytes": store.file_bytes(),
        "generation": store.generation,
        "uuid": store.uuid,
        "columns": {name: _describe_column(store, name) for name in store.schema.stored},
        "provenance": store.provenance,
    }


def _describe_column(store: TraceStore, name: str) -> dict:
    column = store.schema.stored[name]
    return {
        "dtype": column.dtype,
        "item_shape": list(column.item_shape),
        "axis": store.schema.axis_of(name),
        "axis_names": list(column.axis_names),
        "items": store.n_items(name),
        "bytes": store.file_bytes(name),
        "codec": column.codec or "raw",
        "split": list(column.split),
        "segments": len(store.manifest.segments.get(store.schema.layout(name).path, [0])),
    }


def _info_text(info: dict) -> str:
    traces = count(info["rows"], "trace")
    size = size_text(info["bytes"])
    lines = [f"{info['path']}: {traces}, {size}, generation {info['generation']}"]
    if "unfinished" in info:
        lines.append(f"unfinished; go on with: {info['unfinished']}")
    n_segments = max(column["segments"] for column in info["columns"].values())
    if n_segments > 1:
        lines.append(f"merged by reference: columns have up to {n_segments:,} segments")
    provenance = [f"{key}: {_one_line(value)}" for key, value in info["provenance"].items()]
    lines += ["", *aligned(_cells(info["columns"])), "", "provenance", *(provenance or ["(none)"])]
    return "\n".join(lines)


def _cells(columns: dict) -> Iterator[tuple[str, ...]]:
    """A row for each column, below a head."""
    yield "column", "dtype", "shape of a row", "items", "on disk", "codec"
    for name, column in columns.items():
        items = f"{column['items']:,}"
        size = size_text(column["bytes"])
        yield name, column["dtype"], _shape_text(column), items, size, column["codec"]


def _shape_text(column: dict) -> str:
    if column["dtype"] == "utf8":
        return "text"
    parts = [column["axis"]] if column["axis"] else []
    # axes have names, or none of them has
    for size, name in zip_longest(column["item_shape"], column["axis_names"]):
        parts.append(f"{size} {name}" if name else str(size))
    return " x ".join(parts) or "one number"


def _one_line(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)
