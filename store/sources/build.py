"""Drain a source into a store: committed as it goes, resumed where it stopped, visible only when whole.

The store grows at `<path>.partial` and is renamed to its name at the end, so whoever finds a store at `path`
finds all of it. What is built already is not built again: a script that was stopped may simply run once more.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from store.errors import SchemaError, StoreError
from store.files import Files
from store.leftovers import is_unborn
from store.reader import TraceStore
from store.sources import REMARKS, Source
from store.writer import StoreWriter

__all__ = ["build_store", "check_new", "check_partial", "identity", "open_begun", "partial_path"]

Progress = Callable[[int], None]


def build_store(
    path: str | Path, source: Source, progress: Progress = lambda done: None, files: Files | None = None
) -> TraceStore:
    """Write all traces of a source to a new store at `path`, or finish a build that was stopped.

    Parameters
    ----------
    path
        Where the store shall be.
    source
        The traces.
    progress
        Called with the number of traces written after each.
    files
        The file operations to use.

    Raises
    ------
    SchemaError
        Something else is at `path`, or a stopped build of another source is beside it.
    """
    path, files = Path(path), files or Files()
    check_new(path)
    if path.exists():
        return _finished(path, source)
    partial = partial_path(path)
    with _open_partial(path, source, files) as writer:
        try:
            _drain(source, writer, progress)
        except BaseException:
            writer.discard()  # nothing is lost: the next build goes on from the last commit
            raise
    files.rename(partial, path)
    files.sync_dir(path.parent)
    return TraceStore.open(path)


def _drain(source: Source, writer: StoreWriter, progress: Progress) -> None:
    """Append all traces that the store does not have, and finish it."""
    for trace_id, row in source.rows(start=len(writer)):
        writer.provenance = source.provenance | source.remarks
        writer.append(trace_id, row)
        progress(len(writer))
    writer.provenance = source.provenance | source.remarks
    writer.merge_runs()


def check_new(path: Path) -> None:
    """Raise SchemaError if something that is no store is where one shall be built."""
    if (path.exists() or path.is_symlink()) and not (path / "zarr.json").is_file():
        raise SchemaError(f"{path}: expected a new path, found something there; remove it or choose another")


def partial_path(path: Path) -> Path:
    """Where the store at `path` is until it is whole."""
    return path.with_name(path.name + ".partial")


def open_begun(path: Path) -> TraceStore | None:
    """What a build of the store at `path` has committed, stopped or finished; None if nothing."""
    if path.exists():
        return TraceStore.open(path)
    try:
        return TraceStore.open(partial_path(path))
    except StoreError:  # nothing there, or a crash before the first file was whole
        return None


def _finished(path: Path, source: Source) -> TraceStore:
    """The store at `path`, if it is what the source makes."""
    store = TraceStore.open(path)
    if not _is_begun(store, source):
        raise SchemaError(
            f"{path}: expected a new path, or what the same command made, found a store with "
            f"{_difference(store, source)}; remove it or choose another"
        )
    for trace_id, _ in source.rows(start=len(store)):
        raise SchemaError(f"{path}: expected all traces of the source, found none of {trace_id!r}; choose another path")
    return store


def _open_partial(path: Path, source: Source, files: Files) -> StoreWriter:
    partial = partial_path(path)
    begun = open_begun(path)
    if begun is None:
        check_partial(partial)
        return StoreWriter.create(partial, source.schema, source.provenance, files)
    if not _is_begun(begun, source):
        raise SchemaError(
            f"{partial}: expected what the same command began, found {_difference(begun, source)}; "
            "repeat that command, or remove this"
        )
    return StoreWriter.open(partial, files)


def check_partial(partial: Path) -> None:
    """Raise SchemaError unless nothing is there, or what a crash left before the first commit: a writer clears it."""
    if partial.exists() and not is_unborn(partial):
        raise SchemaError(f"{partial}: expected a build that was stopped, found something else; move it away")


def _is_begun(begun: TraceStore, source: Source) -> bool:
    """Whether a store holds what the source makes, or its beginning."""
    return begun.schema == source.schema and identity(begun.provenance) == source.provenance


def identity(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Provenance without remarks on how it went."""
    return {key: value for key, value in provenance.items() if key != REMARKS}


def _difference(begun: TraceStore, source: Source) -> str:
    """The first thing in which a stopped build differs from a source."""
    columns = f"columns {list(begun.schema.columns)} in place of {list(source.schema.columns)}"
    if begun.schema.columns.keys() != source.schema.columns.keys():
        return columns
    for key in [*source.provenance, *identity(begun.provenance)]:
        if begun.provenance.get(key) != source.provenance.get(key):
            return f"{key} {begun.provenance.get(key)!r:.200} in place of {source.provenance.get(key)!r:.200}"
    return f"{columns}, or of other shapes"
