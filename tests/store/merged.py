"""Stores that are merged by reference."""

import shutil
from pathlib import Path

import pytest
from oracle import write_store

from store import Schema, TraceStore
from store.transform.merge import merge_stores


def write_merged(path: Path, schema: Schema, rows: list[tuple[str, dict]], n_parts: int) -> Path:
    """Write rows to parts, and merge them by reference; small columns have segments as well."""
    step = -(-max(len(rows), 1) // n_parts)
    parts = []
    for i in range(0, len(rows), step):
        part = path.with_name(f"{path.name}.part{i}")
        parts.append(TraceStore.open(write_store(part, schema, rows[i : i + step])))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("store.write.link.SMALL_ITEM_BYTES", 0)
        store = merge_stores(path, parts, lambda done: None)
    assert len(store.manifest.segments) == len(schema.columns)
    for part in parts:
        shutil.rmtree(part.path)
    return path
