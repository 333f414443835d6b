"""Drain a source into a store: committed on the way, resumable, visible only when whole.

The store grows at `<path>.partial` and is renamed to its name at the end, so a store at `path` is
always complete. What is built already is not built again: a script that was stopped may simply run
once more. A build that is stopped by an error or a signal first commits every whole row.
"""

import json
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from store.errors import SchemaError, StoreError
from store.format.contents import WORKING_DIR
from store.format.manifest import GROUP_FILE
from store.read.store import TraceStore
from store.reports import count
from store.traces.label_keys import LABELS_BEFORE, without_labelling, without_rule_columns
from store.write.behind import Put, WriteBehind
from store.write.copy import Progress
from store.write.files import DISK, Files
from store.write.lock import WriterLock
from store.write.orphans import clear_directory, has_only_our_files, is_uninitialised
from store.write.rows import Row
from store.write.signals import HeldSignals
from store.write.source import COMMAND, UNDECIDING, Source
from store.write.space import SpaceCheck, row_bytes
from store.write.writer import StoreWriter

__all__ = [
    "LONGEST_COMMAND",
    "build_store",
    "check_new",
    "check_partial",
    "command_line",
    "identity",
    "is_partial",
    "open_begun",
    "partial_path",
    "unfinished",
]

SUFFIX = ".partial"
SHOWN_DIFFERENCES = 3
DIGEST = "_sha256"
IN_WORDS = {  # key of the provenance -> what it means that its values differ
    "subset.of": "traces of another store",
    "subset.rows_sha256": "other traces",
}
# characters of a command that are kept: merged stores keep those of all their parts
LONGEST_COMMAND = 16_000
SHOWN_COMMAND = 1000  # characters of a command: a shell may have put thousands of files into it


def build_store(
    path: str | Path,
    source: Source,
    progress: Progress = lambda done: None,
    files: Files = DISK,
    *,
    command: str | None = None,
    space: SpaceCheck | None = None,
    behind: WriteBehind | None = None,
) -> TraceStore:
    """Write all traces of a source to a new store at `path`, or finish a build that was stopped.

    Whatever stops it (an error of the source, Ctrl-C, a full disk), the rows that are whole are
    committed first, as far as the disk allows, and the exception gets a note that says how many are
    kept.

    Parameters
    ----------
    progress
        Called with the number of traces written after each.
    command
        The command line that goes on with this build; it is kept in the provenance, under
        `COMMAND`.
    space
        Called with the number of traces written and the bytes of the last one after each.
    behind
        Has rows written by a thread, which then calls `progress` and `space` as well. For sources
        that take long to make a row; others lose more by the change of threads than they gain.

    Raises
    ------
    SchemaError
        Something else is at `path`, or a stopped build of another source is beside it.
    """
    path = Path(path)
    check_new(path)
    if path.exists():
        return _finished(path, source)
    partial = partial_path(path)
    command_key = {COMMAND: command[:LONGEST_COMMAND]} if command else {}
    writer = _open_partial(path, source, files, command_key)
    if path.exists():  # another process has finished it since
        files.remove_tree(partial)
        writer.discard()
        return _finished(path, source)
    try:
        _drain(source, _Rows(writer, source, command_key, progress, space), behind)
        writer.merge_runs()
    except BaseException as error:
        # the disk may be full, or the writer have stopped half-way
        with suppress(StoreError, OSError):
            writer.commit()
        writer.discard()
        error.add_note(_kept(partial))
        raise
    try:  # under the writer's lock: nobody else takes it for a build that was stopped
        writer.commit()
        files.remove_tree(partial / WORKING_DIR)
        files.rename_durably(partial, path)
    finally:
        writer.discard()
    return TraceStore.open(path)


class _Rows:
    """Appends the rows of a source, and records the remarks that belong to them."""

    def __init__(
        self,
        writer: StoreWriter,
        source: Source,
        command_key: dict[str, str],
        progress: Progress,
        space: SpaceCheck | None,
    ) -> None:
        self.writer = writer
        self.schema = source.schema
        self.described = source.provenance | command_key
        self.progress = progress
        self.space = space
        self._remarks: dict[str, Any] | None = None

    def append(self, trace_id: str, row: Row, remarks: dict[str, Any]) -> None:
        """Add a row; a commit that it causes has the remarks up to this row."""
        self.remark(remarks)
        self.writer.append(trace_id, row)
        n_rows = len(self.writer)
        self.progress(n_rows)
        if self.space and not self.space.has_looked:
            self.space(n_rows, row_bytes(row, self.schema))

    def remark(self, remarks: dict[str, Any]) -> None:
        """Record remarks in the provenance of the next commit."""
        if remarks != self._remarks:
            self.writer.provenance = self.described | remarks
            self._remarks = remarks


def _drain(source: Source, rows: _Rows, behind: WriteBehind | None) -> None:
    """Append all rows that a source has left."""
    with HeldSignals() as signals:
        writing = behind.writing(rows.append, signals.held) if behind else nullcontext(rows.append)
        append: Put
        with writing as append:
            for trace_id, row in source.rows(start=len(rows.writer)):
                with signals.held():
                    append(trace_id, row, source.remarks)
    rows.remark(source.remarks)


def _kept(partial: Path) -> str:
    """How much a build that stopped has committed."""
    n_rows = 0
    with suppress(StoreError, OSError):
        n_rows = len(TraceStore.open(partial))
    if not n_rows:
        return "no trace is kept"
    traces = count(n_rows, "trace is", "traces are")
    return f"{traces} kept in {partial}; the same command goes on"


def check_new(path: Path) -> None:
    """Raise SchemaError if something that is no store is where one is to be built."""
    if (path.exists() or path.is_symlink()) and not (path / GROUP_FILE).is_file():
        raise SchemaError(
            f"{path}: expected a new path, found something there; remove it or choose another"
        )


def partial_path(path: Path) -> Path:
    """Where the store at `path` grows until it is whole."""
    return path.with_name(path.name + SUFFIX)


def is_partial(path: Path) -> bool:
    """Whether a path is where a store grows until it is whole."""
    return path.name.endswith(SUFFIX)


def open_begun(path: Path) -> TraceStore | None:
    """What a build of the store at `path` has committed, finished or not; None if nothing."""
    if path.exists():
        return TraceStore.open(path)
    try:
        return TraceStore.open(partial_path(path))
    except StoreError:  # nothing there, or a crash before the first file was whole
        return None


def unfinished(path: Path) -> str | None:
    """That a store is not finished, and the command that continues; None if it is, or not begun."""
    if path.exists():
        return None
    partial = partial_path(path)
    if not (partial / GROUP_FILE).is_file():
        return None
    begun = TraceStore.open(partial)
    return (
        f"{path}: expected a store, found that it is not finished: {partial} holds "
        f"{count(len(begun), 'trace')} of it. Go on with: {command_line(begun)}"
    )


def command_line(begun: TraceStore) -> str:
    """The command that continues a build, as far as the store knows it."""
    command = begun.provenance.get(COMMAND)
    if not isinstance(command, str):
        return "the command that began it"
    if len(command) > SHOWN_COMMAND:
        return f"{command[:SHOWN_COMMAND]} ..."
    return command


def _finished(path: Path, source: Source) -> TraceStore:
    """The store at `path`, if it is what the source makes."""
    store = TraceStore.open(path)
    difference = _difference(store, source)
    if difference:
        raise SchemaError(
            f"{path}: expected a new path, or what the same command made, "
            f"found a store with {difference}; remove it or choose another"
        )
    for trace_id, _ in source.rows(start=len(store)):
        raise SchemaError(
            f"{path}: expected all traces of the source, found none of {trace_id!r}; "
            "choose another path"
        )
    return store


def _open_partial(
    path: Path, source: Source, files: Files, command_key: dict[str, str]
) -> StoreWriter:
    """The writer of a build that was stopped, or of a new one."""
    partial = partial_path(path)
    begun = open_begun(path)
    if begun is not None:
        difference = _difference(begun, source)
        if not difference:
            return StoreWriter.open(partial, files)
        if len(begun):
            raise SchemaError(
                f"{partial}: expected what the same command began, found {difference}; "
                "repeat that command, or remove this"
            )
        # it holds no trace, only the settings of an attempt that failed
        with WriterLock(partial):
            if not len(TraceStore.open(partial)) and has_only_our_files(partial):
                files.remove(partial / GROUP_FILE)
                clear_directory(partial, files)
    check_partial(partial)
    return StoreWriter.create(partial, source.schema, source.provenance | command_key, files)


def check_partial(partial: Path) -> None:
    """Raise SchemaError unless nothing is there, or orphans that a writer clears."""
    if partial.exists() and not is_uninitialised(partial):
        raise SchemaError(
            f"{partial}: expected a build that was stopped, found something else; move it away"
        )


def identity(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What of the provenance decides the rows: not the remarks, nor the command that was typed."""
    kept = {key: value for key, value in provenance.items() if key not in UNDECIDING}
    return json.loads(json.dumps(kept))  # as a store gives it back


def _difference(begun: TraceStore, source: Source) -> str | None:
    """The first few things in which a store differs from what a source makes; None if equal."""
    old = identity(begun.provenance)
    new = identity(source.provenance)
    schema = begun.schema
    if LABELS_BEFORE in old:  # it was labelled again since
        old = without_labelling(old)
        new = without_labelling(new)
        schema = without_rule_columns(schema, source.schema)
    columns = f"columns {list(begun.schema.columns)} instead of {list(source.schema.columns)}"
    if schema.columns.keys() != source.schema.columns.keys():
        return columns
    if old == new and schema == source.schema:
        return None
    old = _flat(old)
    new = _flat(new)
    keys = [key for key in {**new, **old} if old.get(key) != new.get(key)]
    if not keys:
        return f"{columns}, or of other shapes"
    shown = [_in_words(key, old.get(key), new.get(key)) for key in keys[:SHOWN_DIFFERENCES]]
    if len(keys) > SHOWN_DIFFERENCES:
        shown.append(f"and {len(keys) - SHOWN_DIFFERENCES} more")
    return ", ".join(shown)


def _in_words(key: str, old: Any, new: Any) -> str:
    """A difference of the provenance; digests and identifiers, which say nothing, are not shown."""
    if key in IN_WORDS:
        return f"{IN_WORDS[key]} ({key})"
    if key.endswith(".uuid"):
        return f"another store ({key})"
    if key.endswith(DIGEST) and None not in (old, new):
        return f"other {key.removesuffix(DIGEST)}"
    return f"{key} {old!r:.200} instead of {new!r:.200}"


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}, "c": [{"d": 2}]} -> {"a.b": 1, "c.0.d": 2}, to show only what differs."""
    if isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {name: value}
    flat: dict[str, Any] = {}
    prefix = f"{name}." if name else ""
    for key, part in value.items():
        flat |= _flat(part, f"{prefix}{key}")
    return flat
