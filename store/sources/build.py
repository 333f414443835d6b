"""Drain a source into a store: committed as it goes, resumed where it stopped, visible only when whole.

The store grows at `<path>.partial` and is renamed to its name at the end, so whoever finds a store at `path`
finds all of it.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from store.errors import SchemaError, StoreError
from store.reader import TraceStore
from store.sources import Source
from store.writer import StoreWriter

__all__ = ["build_store"]

COMMIT_ROWS = 1024  # a stopped build loses at most these

Progress = Callable[[int, int], None]


def build_store(path: str | Path, source: Source, progress: Progress = lambda done, total: None) -> TraceStore:
    """Write all traces of a source to a new store at `path`, or finish a build that was stopped.

    Parameters
    ----------
    path
        Where the store shall be; must not exist.
    source
        The traces.
    progress
        Called with (traces written, all traces) after each.

    Raises
    ------
    SchemaError
        Something is at `path`, or a stopped build of another source is beside it.
    """
    path = Path(path)
    if path.exists():
        raise SchemaError(f"{path}: expected a new path, found something there; remove it or choose another")
    partial = path.with_name(path.name + ".partial")
    with _open_partial(partial, source) as writer:
        for trace_id, row in source.rows(start=len(writer)):
            writer.append(trace_id, row)
            if len(writer) % COMMIT_ROWS == 0:
                writer.commit()
            progress(len(writer), len(source))
    partial.rename(path)
    return TraceStore.open(path)


def _open_partial(partial: Path, source: Source) -> StoreWriter:
    try:
        begun = TraceStore.open(partial)
    except StoreError:  # nothing there, or a crash before the first file was whole: begin
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        return StoreWriter.create(partial, source.schema, source.provenance)
    if begun.schema != source.schema or begun.provenance != source.provenance:
        raise SchemaError(f"{partial}: expected a stopped build of the same traces, found another; remove it")
    return StoreWriter.open(partial)
