"""Drain a source into a store: committed on the way, resumable, visible only when whole.

The store grows at `<path>.partial` and is renamed to its name at the end, so a store at `path` is
always complete. What is built already is not built again: a script that was stopped may simply run
once more. A build that is stopped by an error or a signal first commits every whole row.
"""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType

from store.errors import SchemaError, StoreError
from store.format.contents import WORKING_DIR
from store.format.manifest import GROUP_FILE
from store.read.directory import PARTIAL, check_outside
from store.read.store import TraceStore
from store.reports import count
from store.traces.identity import COMMAND, difference_of_builds
from store.write.background import BackgroundWriter
from store.write.blocks import Columns
from store.write.files import DISK, Files
from store.write.lock import WriterLock
from store.write.orphans import clear_directory, has_only_our_files, is_uninitialised
from store.write.rows import Row
from store.write.source import BlockSource, Progress, Source
from store.write.writer import StoreWriter

__all__ = [
    "HeldSignals",
    "build_store",
    "check_new",
    "check_partial",
    "command_key",
    "command_line",
    "is_partial",
    "open_begun",
    "partial_path",
    "unfinished",
]

# characters of a command that are kept: merged stores keep those of all their parts
LONGEST_COMMAND = 16_000
BLOCKS_AHEAD = 1  # that wait while one is written
SHOWN_COMMAND = 1000  # characters of a command: a shell may have put thousands of files into it


def build_store(
    path: str | Path,
    source: Source | BlockSource,
    progress: Progress = lambda done: None,
    files: Files = DISK,
    *,
    command: str | None = None,
    background: BackgroundWriter | None = None,
) -> TraceStore:
    """Write all traces of a source to a new store at `path`, or finish a build that was stopped.

    Whatever stops it (an error of the source, Ctrl-C, a full disk), the rows that are whole are
    committed first, as far as the disk allows, and the exception gets a note that says how many are
    kept.

    `progress` is called with the number of traces written after each. `command`, the command line
    that goes on with this build, is kept in the provenance, under `COMMAND`. `background` has rows
    written by a thread, which then calls `progress` as well: for sources that take long to make a
    row; others lose more by the change of threads than they gain. Blocks of rows always are.

    Raises SchemaError if something else is at `path`, or a stopped build of another source is
    beside it.
    """
    path = Path(path)
    check_new(path)
    if path.exists():
        return _finished(path, source)
    partial = partial_path(path)
    kept_command = command_key(command)
    writer = _open_partial(path, source, files, kept_command)
    if path.exists():  # another process has finished it since
        files.remove_tree(partial)
        writer.discard()
        return _finished(path, source)
    try:
        if isinstance(source, BlockSource):
            _drain_blocks(source, writer, kept_command, progress)
        else:
            _drain(source, writer, kept_command, progress, background)
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


def _drain(
    source: Source,
    writer: StoreWriter,
    kept_command: dict[str, str],
    progress: Progress,
    background: BackgroundWriter | None,
) -> None:
    """Append all rows that a source has left, and record its remarks."""
    described = source.provenance | kept_command

    def append(trace_id: str, row: Row, remarks: dict[str, object]) -> None:
        writer.provenance = described | remarks  # a commit by this row has the remarks up to it
        writer.append(trace_id, row)
        progress(len(writer))

    with HeldSignals() as signals:
        writing = background.writing(append, signals.held) if background else nullcontext(append)
        with writing as put:
            for trace_id, row in source.rows(start=len(writer)):
                with signals.held():
                    put(trace_id, row, source.remarks)
    writer.provenance = described | source.remarks


def _drain_blocks(
    source: BlockSource, writer: StoreWriter, kept_command: dict[str, str], progress: Progress
) -> None:
    """Append all blocks that a source has left, in a thread that writes while it makes the next."""
    writer.provenance = source.provenance | kept_command

    def append(trace_ids: Sequence[str], columns: Columns) -> None:
        writer.append_many(trace_ids, columns)
        progress(len(writer))

    with (
        HeldSignals() as signals,
        BackgroundWriter(BLOCKS_AHEAD).writing(append, signals.held) as put,
    ):
        for trace_ids, columns in source.blocks(start=len(writer)):
            with signals.held():
                put(trace_ids, columns)


def _kept(partial: Path) -> str:
    """How much a build that stopped has committed."""
    n_rows = 0
    with suppress(StoreError, OSError):
        n_rows = len(TraceStore.open(partial))
    if not n_rows:
        return "no trace is kept"
    traces = count(n_rows, "trace is", "traces are")
    return f"{traces} kept in {partial}; the same command goes on"


def command_key(command: str | None) -> dict[str, str]:
    """What the provenance of a build keeps of the command line that goes on with it."""
    return {COMMAND: command[:LONGEST_COMMAND]} if command else {}


def check_new(path: Path) -> None:
    """Raise SchemaError if something that is no store is where one is to be built, or if that is
    inside another store."""
    check_outside(path)
    if (path.exists() or path.is_symlink()) and not (path / GROUP_FILE).is_file():
        raise SchemaError(
            f"{path}: expected a new path, found something there; remove it or choose another"
        )


def partial_path(path: Path) -> Path:
    """Where the store at `path` grows until it is whole."""
    return path.with_name(path.name + PARTIAL)


def is_partial(path: Path) -> bool:
    """Whether a path is where a store grows until it is whole."""
    return path.name.endswith(PARTIAL)


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


def _finished(path: Path, source: Source | BlockSource) -> TraceStore:
    """The store at `path`, if it is what the source makes."""
    store = TraceStore.open(path)
    difference = _difference(store, source)
    if difference:
        raise SchemaError(
            f"{path}: expected a new path, or what the same command made, "
            f"found a store with {difference}; remove it or choose another"
        )
    left: Iterable[str]
    if isinstance(source, BlockSource):
        left = (trace_id for ids, _ in source.blocks(start=len(store)) for trace_id in ids)
    else:
        left = (trace_id for trace_id, _ in source.rows(start=len(store)))
    for trace_id in left:
        raise SchemaError(
            f"{path}: expected all traces of the source, found none of {trace_id!r}; "
            "choose another path"
        )
    return store


def _open_partial(
    path: Path, source: Source | BlockSource, files: Files, kept_command: dict[str, str]
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
    return StoreWriter.create(partial, source.schema, source.provenance | kept_command, files)


def check_partial(partial: Path) -> None:
    """Raise SchemaError unless nothing is there, or orphans that a writer clears."""
    if partial.exists() and not is_uninitialised(partial):
        raise SchemaError(
            f"{partial}: expected a build that was stopped, found something else; move it away"
        )


def _difference(begun: TraceStore, source: Source | BlockSource) -> str | None:
    """In what a store differs from what a source makes; None if it may go on with it."""
    return difference_of_builds(begun.provenance, begun.schema, source.provenance, source.schema)


NUMBERS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], object]


class HeldSignals:
    """A context in which signals can be held back for a while; their handlers run later.

    Only in the main thread, which alone gets signals, and only signals that Python handles: what
    ends the process at once still does.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._is_held = False
        self._waiting: int | None = None

    def __enter__(self) -> "HeldSignals":
        if threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_held:
            self._waiting = number
        else:
            self._handlers[number](number, frame)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back until the block has ended; then the last one is handled."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            number = self._waiting
            self._waiting = None
            if number is not None:
                self._handlers[number](number, None)
