"""The one way rows enter a store: append, then commit; a commit is whole or it never happened.

Order of a commit, each step durable before the next begins:

1. shards: chunks go to working files in `_tmp/`; a full shard, or a copy of the tail, is fsynced
   and renamed
   to its final name, and the directories are fsynced. Readers of the old generation do not notice:
   a grown tail begins with the items it had, and checksums of whole chunks never change.
2. the arrays' `zarr.json`, the new run of the id table: the same way.
3. the group's `zarr.json` with the next generation: the truth. Before its rename the commit has not
   happened,
   after it the rows survive a power cut.

What a crash leaves behind (files in `_tmp/`, shards and runs beyond the manifest, metadata ahead of
it) is invisible to readers, and is cleared by the next writer before it does anything else.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np

from store.errors import (
    CorruptError,
    IncompleteError,
    LockedError,
    SchemaError,
    StoreError,
    closest,
)
from store.format.array_info import ArrayInfo, array_infos
from store.format.contents import (
    GROUPS,
    WORKING_DIR,
    StoredArray,
    column_array,
    files_of,
    offsets_array,
    run_name,
    with_schema,
)
from store.format.ids import hash_ids, plan_runs
from store.format.layout import ArrayLayout, checksums_layout
from store.format.manifest import GROUP_FILE, MAX_FILE_BYTES, Manifest, read_manifest
from store.format.schema import TRACE_ID, Column, Schema
from store.format.values import encode_text, encode_value
from store.format.zarr_json import group_json
from store.read.directory import StoreDirectory
from store.read.id_table import check_run
from store.read.store import TraceStore
from store.write.array_writer import ArrayWriter, write_metadata
from store.write.files import Files
from store.write.id_table import write_run
from store.write.leftovers import clear_leftovers, clear_unborn, is_unborn
from store.write.lock import WriterLock

__all__ = ["StoreWriter"]

MAX_ID_BYTES = 1024
CLOSED = "it was closed"
COMMIT_ROWS, COMMIT_BYTES, COMMIT_S = 2**18, 2**30, 60.0  # a killed job loses at most these


class StoreWriter:
    """Appends rows to a store; use `create` or `open`, best as a context manager.

    `close`, or a clean exit of the block, commits what was appended. An exception that leaves the
    block does not: a RuntimeWarning says how many rows are discarded. A writer also commits by
    itself, after so many rows, bytes or seconds that a killed job loses a minute's work
    (`COMMIT_ROWS`, `COMMIT_BYTES`, `COMMIT_S`).

    Attributes
    ----------
    provenance : dict
        JSON object that says where the traces come from; what it is set to is written with the next
        commit.

    Examples
    --------
    >>> with StoreWriter.create(path, Schema({"label": Column("int8")})) as writer:  # doctest: +SKIP
    ...     writer.append("tc_33", {"label": 1})
    """

    def __init__(self, root: Path, manifest: Manifest | None, files: Files) -> None:
        self.root, self.files = root.absolute(), files
        self._unusable: str | None = None
        self._new_ids: dict[str, None] = {}
        files.make_dirs(self.root)
        self._lock = WriterLock(self.root)
        try:
            if manifest:
                _clear_new(self.root, files)
            # under the lock: no commit of another comes after it
            self._begin(manifest or read_manifest(self.root))
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, manifest: Manifest) -> None:
        """Take up the arrays where the manifest says that they end."""
        if (self.root / GROUP_FILE).exists():
            clear_leftovers(self.root, manifest, self.files)
        self.files.make_dirs(self.root / WORKING_DIR)
        self._adopt(manifest)
        self.provenance = deepcopy(manifest.provenance)
        infos = array_infos(self.schema)
        self._columns = {
            name: self._array_writer(
                column_array(self.schema, name, manifest.n_items_of(name)), infos
            )
            for name in self.schema.stored
        }
        self._offsets = {axis: self._offsets_writer(axis, infos) for axis in self.schema.axes}
        self._n_items = dict.fromkeys(self.schema.axes, 0) | manifest.n_items
        self._began, self._new_bytes = time.monotonic(), 0

    @classmethod
    def create(
        cls,
        path: str | Path,
        schema: Schema,
        provenance: Mapping | None = None,
        files: Files | None = None,
    ) -> "StoreWriter":
        """Start a new, empty store at `path`, which must not exist or be an empty directory.

        Parameters
        ----------
        path
            Directory of the store.
        schema
            Its columns.
        provenance
            JSON object that says where the traces come from.

        Raises
        ------
        SchemaError
            Something is at `path` already.
        """
        root, files = Path(path), files or Files()
        _check_new(root)
        manifest = Manifest(schema, provenance=dict(provenance or {}))
        # refuses provenance that is no JSON before anything exists
        group_json(manifest.to_attributes())
        writer = cls(root, manifest, files)
        try:
            for group in GROUPS:
                write_metadata(root, files, group, group_json())
            writer._publish(replace(manifest, tails=writer._commit_arrays()))
        except BaseException:
            writer.discard()
            raise
        return writer

    @classmethod
    def copy(
        cls,
        path: str | Path,
        store: TraceStore,
        provenance: Mapping | None = None,
        files: Files | None = None,
        progress: Callable[[int], None] = lambda done: None,
    ) -> "StoreWriter":
        """Start a new store at `path` with all rows of another, whose files are copied byte for
        byte.

        Parameters
        ----------
        path
            Directory of the new store, which must not exist or be an empty directory.
        store
            The other store.
        provenance
            JSON object of the new store; the other's if None.
        progress
            Called after each file with the rows that the bytes copied so far amount to.

        Raises
        ------
        SchemaError
            Something is at `path` already.
        LockedError
            The other store was appended to meanwhile.
        """
        root, files = Path(path), files or Files()
        _check_new(root)
        files.make_dirs(root)
        lock = WriterLock(root)
        try:
            _clear_new(root, files)
            cls._copy_files(root, store, provenance, files, progress)
        finally:
            lock.release()
        return cls.open(root, files)

    @staticmethod
    def _copy_files(
        root: Path,
        store: TraceStore,
        provenance: Mapping | None,
        files: Files,
        progress: Callable[[int], None],
    ) -> None:
        manifest = read_manifest(store.path)
        try:
            sizes = {
                inside: (store.path / inside).stat().st_size
                for inside in files_of(manifest) - {GROUP_FILE}
            }
            total, done = max(1, sum(sizes.values())), 0
            for inside in sorted(sizes):
                files.make_dirs((root / inside).parent)
                files.copy_file(store.path / inside, root / inside)
                done += sizes[inside]
                progress(len(store) * done // total)
        except FileNotFoundError as error:
            if read_manifest(store.path).generation == store.generation:
                raise CorruptError(
                    f"{error.filename}: expected a file of the store, found none"
                ) from error
        if not manifest.generation == store.generation == read_manifest(store.path).generation:
            raise LockedError(
                f"{store.path}: expected no commit while it was copied, found one; copy it again"
            )
        for directory in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            files.sync_dir(directory)
        copied = replace(
            manifest,
            uuid=Manifest(manifest.schema).uuid,
            provenance=dict(provenance or store.provenance),
        )
        text = group_json(copied.to_attributes())
        _check_size(root, text)
        files.replace_text(root / GROUP_FILE, text, root / f"{GROUP_FILE}.new")

    @classmethod
    def open(cls, path: str | Path, files: Files | None = None) -> "StoreWriter":
        """Append to the store at `path`."""
        root = Path(path)
        read_manifest(root)  # says what is wrong with the path, if anything
        return cls(root, None, files or Files())

    def _adopt(self, manifest: Manifest) -> None:
        self._manifest, self._committed = (
            manifest,
            TraceStore(StoreDirectory.at(self.root), manifest),
        )

    def _publish(self, manifest: Manifest) -> None:
        """The moment of the commit."""
        text = group_json(manifest.to_attributes())
        _check_size(self.root, text)
        write_metadata(self.root, self.files, "", text)
        self._adopt(manifest)

    def _commit_arrays(self) -> dict[str, list[int]]:
        """Publish every array's items; return the checksums of their padded last chunks."""
        writers = (*self._columns.values(), *self._offsets.values())
        return {writer.layout.path: tail for writer in writers if (tail := writer.commit())}

    def _array_writer(self, array: StoredArray, infos: Mapping[str, ArrayInfo]) -> ArrayWriter:
        return ArrayWriter(self.root, self.files, array, infos[array.layout.path], self._manifest)

    def _offsets_writer(self, axis: str, infos: Mapping[str, ArrayInfo]) -> ArrayWriter:
        array = offsets_array(axis, self._manifest.n_rows)
        if (self.root / GROUP_FILE).exists():
            return self._array_writer(array, infos)
        return self._new_offsets(axis, infos)

    def _new_offsets(self, axis: str, infos: Mapping[str, ArrayInfo]) -> ArrayWriter:
        writer = self._array_writer(offsets_array(axis, -1), infos)
        writer.append(np.zeros(1, np.int64))
        return writer

    @property
    def schema(self) -> Schema:
        return self._manifest.schema

    @property
    def generation(self) -> int:
        """Number of commits so far."""
        return self._manifest.generation

    def __len__(self) -> int:
        """Rows, the uncommitted ones included."""
        return self._manifest.n_rows + len(self._new_ids)

    def append(self, trace_id: str, row: Mapping[str, object]) -> None:
        """Add one row; nothing is added if anything about it is wrong. Now and then it commits
        (class docstring).

        Parameters
        ----------
        trace_id
            Its unique id.
        row
            A value for every column: arrays `(n, *item_shape)` for ragged columns (equal `n` on an
            axis), `item_shape` for fixed ones, strings for utf8. Integers may be of any integer
            dtype if they fit; floating dtypes are never rounded silently. torch tensors are
            welcome. The memory may be reused.

        Raises
        ------
        SchemaError
            The row does not fit the schema, or the id is taken.
        """
        self._check_usable()
        self._check_id(trace_id)
        items = self._check_row(trace_id, row)
        lengths = _axis_lengths(f"trace {trace_id!r}", items, self.schema)
        # unless it comes to its end
        self._unusable = f"appending trace {trace_id!r} stopped half-way"
        for axis, n in lengths.items():
            self._n_items[axis] += n
            self._offsets[axis].append(np.array([self._n_items[axis]], np.int64))
        for name, value in items.items():
            self._columns[name].append(value)
            self._new_bytes += value.nbytes
        self._new_ids[trace_id] = None
        self._unusable = None
        late = time.monotonic() - self._began >= COMMIT_S
        if late or len(self._new_ids) >= COMMIT_ROWS or self._new_bytes >= COMMIT_BYTES:
            self.commit()

    def _check_usable(self) -> None:
        if not self._unusable and not self._lock.is_held:
            self._unusable = "it belongs to the process that this one was forked from"
        if self._unusable:
            raise IncompleteError(
                f"{self.root}: expected a writer in order, found that {self._unusable}; what was committed is safe: "
                "go on with a new StoreWriter.open"
            )

    def _check_id(self, trace_id: str) -> None:
        if (
            not isinstance(trace_id, str)
            or not 0 < len(encode_text(trace_id, "trace_id")) <= MAX_ID_BYTES
        ):
            raise SchemaError(
                f"trace_id: expected a string of 1 to {MAX_ID_BYTES} bytes, found {trace_id!r:.200}"
            )
        if trace_id in self._new_ids or trace_id in self._committed:
            raise SchemaError(
                f"trace_id {trace_id!r}: expected a new id, found it in the store already"
            )

    def _check_row(self, trace_id: str, row: Mapping[str, object]) -> dict[str, np.ndarray]:
        """Every column's items `(n, *item_shape)`, `trace_id` included."""
        columns = self.schema.columns
        unknown = [name for name in row if name not in columns]
        if unknown:
            known = closest(str(unknown[0]), columns)
            raise SchemaError(
                f"trace {trace_id!r}: expected columns of the schema, found {unknown[0]!r:.200}{known}"
            )
        missing = [name for name in columns if name not in row]
        if missing:
            raise SchemaError(
                f"trace {trace_id!r}: expected a value for every column, found none for {missing}"
            )
        encoded = {name: self._encode(trace_id, name, row[name]) for name in columns}
        return {TRACE_ID: encode_text(trace_id, "trace_id"), **encoded}

    def _encode(self, trace_id: str, name: str, value: object) -> np.ndarray:
        return encode_value(
            value, self.schema.columns[name], f"trace {trace_id!r}, column {name!r}"
        )

    def set_columns(
        self,
        columns: Mapping[str, Column],
        rows: Iterable[Mapping[str, object]],
        provenance: Mapping | None = None,
    ) -> None:
        """Add columns, or replace some, in all committed rows; durable and visible when it returns.

        Nothing else is touched. A column that is replaced goes to a new array, so that readers of
        an older generation never see a mixture; once the old array is gone, they are told to open
        the store again.

        Parameters
        ----------
        columns
            Name -> `Column`. A ragged one may be on an axis that is there, with the lengths of the
            others, or on a new one. Only what keeps the offsets can be replaced: no strings.
        rows
            A value of each for every row, in order.
        provenance
            JSON object that takes the place of the store's, if given.

        Raises
        ------
        SchemaError
            A value does not fit, or there are more or fewer rows; the store is as it was.
        """
        self._check_usable()
        if self._new_ids:
            raise SchemaError(
                f"{self.root}: expected committed rows only, found {len(self._new_ids)} new; commit first"
            )
        old = {
            name: self.schema.layout(name).path for name in columns if name in self.schema.columns
        }
        for name in old:
            self._check_replaced(name, columns[name])
        arrays = self.schema.arrays | {name: self._next_array(name) for name in old}
        schema = Schema({**self.schema.columns, **columns}, arrays)
        self._unusable = "setting columns stopped half-way"  # unless it comes to its end
        infos = array_infos(schema)
        writers = {
            name: self._array_writer(column_array(schema, name, 0), infos) for name in columns
        }
        offsets = {
            axis: self._new_offsets(axis, infos)
            for axis in schema.axes
            if axis not in self.schema.axes
        }
        made = (*writers.values(), *offsets.values())
        try:
            ends = self._fill(schema, writers, offsets, rows)
            tails = {writer.layout.path: tail for writer in made if (tail := writer.commit())}
        except BaseException:
            for writer in made:
                writer.close()
                self._remove_array(writer.layout)
            self._unusable = None
            raise
        told = self.provenance if provenance is None else dict(provenance)
        self._publish(with_schema(self._manifest, schema, ends, tails, provenance=told))
        self.provenance, self._n_items = told, dict(self._manifest.n_items)
        for name in old:
            self._columns[name].close()
            with suppress(OSError):  # what stays is cleared by the next writer
                self._remove_array(self._columns[name].layout)
        self._columns |= writers
        self._offsets |= offsets
        self._unusable = None
        # a dimension may have another name now
        for writer in (*self._columns.values(), *self._offsets.values()):
            with suppress(OSError):  # what stays is written by the next writer
                writer.describe(infos[writer.layout.path])

    def add_column(self, name: str, column: Column, values: Iterable[object]) -> None:
        """Add one column, with a value for every committed row, in order; see `set_columns`."""
        if name in self.schema.columns:
            raise SchemaError(
                f"{self.root}, column {name!r}: expected a new column, found it there; see set_columns"
            )
        self.set_columns({name: column}, ({name: value} for value in values))

    def _next_array(self, name: str) -> str:
        """A name for the array that takes the place of a column's, which none of its arrays has
        had."""
        _, _, number = self.schema.layout(name).path.partition("@")
        # a copied store has numbers ahead of its generation
        last = max(self._manifest.generation, int(number or 0))
        return f"{name}@{last + 1}"

    def _check_replaced(self, name: str, column: Column) -> None:
        """Offsets stay as they are, so a column can be replaced on its axis only, and a string not
        at all."""
        axis = self.schema.axis_of(name)
        if column.is_text or column.axis != axis:
            expected = f"a column of axis {axis!r}" if axis else "a fixed column"
            raise SchemaError(
                f"column {name!r}: expected {expected}, and no string, in its place, found {column}; use another name"
            )

    def _fill(
        self,
        schema: Schema,
        writers: dict[str, ArrayWriter],
        offsets: dict[str, ArrayWriter],
        rows: Iterable[Mapping[str, object]],
    ) -> dict[str, int]:
        """Write the values of all rows; raises SchemaError if they do not fit. The items of every
        new axis."""
        axes = {axis for name in writers if (axis := schema.axis_of(name))} - offsets.keys()
        known = {axis: np.diff(self._committed.offsets(axis)) for axis in axes}
        ends, n_rows = dict.fromkeys(offsets, 0), 0
        for row in rows:
            where = f"row {n_rows}"
            items = {
                name: encode_value(row[name], schema.columns[name], f"{where}, column {name!r}")
                for name in writers
            }
            for axis, n in _axis_lengths(where, items, schema).items():
                if axis in ends:
                    ends[axis] += n
                    offsets[axis].append(np.array([ends[axis]], np.int64))
                elif n_rows < len(self) and n != known[axis][n_rows]:
                    raise SchemaError(
                        f"{where}: expected {known[axis][n_rows]} items on axis {axis!r}, found {n}"
                    )
            for name, value in items.items():
                writers[name].append(value)
            n_rows += 1
        if n_rows != len(self):
            raise SchemaError(
                f"{self.root}: expected values for its {len(self)} rows, found {n_rows}"
            )
        return ends

    def _remove_array(self, layout: ArrayLayout) -> None:
        for path in (layout.path, checksums_layout(layout).path):
            self.files.remove_tree(self.root / path)

    def commit(self) -> None:
        """Make every appended row durable and visible; returns when they would survive a power cut.

        Raises
        ------
        OSError
            The disk is full, or another fault of it. The store is at its last commit, and the rows
            after it have to be appended again, with a new writer.
        """
        self._check_usable()
        if self._new_ids:
            self._unusable = "a commit stopped half-way"  # unless it comes to its end
            tails = self._commit_arrays()
            kept, first = plan_runs(self._manifest.runs, len(self))
            self._commit_runs(
                kept, first, n_rows=len(self), n_items=dict(self._n_items), tails=tails
            )
            self._new_ids.clear()
            self._unusable = None
        elif self.provenance != self._manifest.provenance:
            self._publish(self._manifest.next(provenance=self.provenance))
        self._began, self._new_bytes = time.monotonic(), 0

    def merge_runs(self) -> None:
        """Commit, and make one run of the id table: the fastest to look up, and the same bytes
        however often one committed before.
        """
        self.commit()
        if len(self._manifest.runs) > 1:
            self._commit_runs((), 0)

    def _commit_runs(
        self, kept: tuple[tuple[int, int], ...], first: int, **changes: object
    ) -> None:
        """Commit with these runs of the id table and a new one of all rows from `first` on."""
        new = first, len(self)
        sums = {
            name: n for name, n in self._manifest.run_sums.items() if name in map(run_name, kept)
        }
        sums[run_name(new)] = self._write_run(*new)
        merged = set(self._manifest.runs) - set(kept)
        changes |= {"runs": (*kept, new), "run_sums": sums, "provenance": self.provenance}
        self._publish(self._manifest.next(**changes))
        # readers of an older generation find these ids in the run that took them in
        for run in merged:
            with suppress(OSError):  # what stays is cleared by the next writer
                self.files.remove_tree(self.root / "_index" / run_name(run))

    def _write_run(self, first: int, n_rows: int) -> int:
        """Build the id table's run for rows `first:n_rows` from the runs it takes in and the new
        ids; its checksum."""
        taken = [run for run in self._manifest.runs if run[0] >= first]
        old = [self._committed.id_table.run(run) for run in taken]
        # damage must not get a new checksum
        for run, (hashes, rows) in zip(taken, old, strict=True):
            check_run(run, hashes, rows, self._manifest.run_sums)
        hashes = np.concatenate([*(h for h, _ in old), hash_ids(self._new_ids)])
        rows = np.concatenate([*(r for _, r in old), np.arange(self._manifest.n_rows, n_rows)])
        return write_run(self.root, self.files, (first, n_rows), hashes, rows)

    def close(self) -> None:
        """Commit what was appended, as closing a file does, and release the files and the lock.

        They are released whatever happens. A second call does nothing.

        Raises
        ------
        IncompleteError
            An append or a commit failed before, and rows appended since the last commit are lost;
            it says how many.
        OSError
            This commit failed; see `commit`.
        """
        if not self._lock.is_held:
            return
        failed, n_lost = self._unusable, self._n_lost()
        try:
            if not failed:
                self.commit()
        finally:
            self.discard()
        if failed and n_lost:
            again = "append them again with a new StoreWriter.open"
            raise IncompleteError(f"{self.root}: {failed}, and {_discarded(n_lost)}; {again}")

    def discard(self) -> None:
        """Release the files and the lock without a commit: rows appended since the last commit are
        gone.

        A second call does nothing.
        """
        if not self._lock.is_held:
            return
        has_leftovers = bool(self._unusable or self._new_ids)
        self._unusable = CLOSED
        self._new_ids.clear()
        try:
            for writer in (*self._columns.values(), *self._offsets.values()):
                writer.close()
            with suppress(OSError, StoreError):  # what stays is cleared by the next writer
                if has_leftovers:
                    clear_leftovers(self.root, read_manifest(self.root), self.files)
                self.files.remove_tree(self.root / WORKING_DIR)
        finally:
            self._lock.release()

    def _n_lost(self) -> int:
        """Rows that would be gone without another commit."""
        if not self._lock.is_held:  # they belong to the process that this one was forked from
            return 0
        if self._unusable and self._new_ids:  # a commit that failed may have come far enough
            with suppress(StoreError):
                return max(0, len(self) - read_manifest(self.root).n_rows)
        return len(self._new_ids)

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._unusable == CLOSED:
            return
        if kind is None:
            try:
                self.commit()
            finally:
                self.discard()
            return
        n_lost = self._n_lost()
        self.discard()
        if n_lost:
            warnings.warn(f"{self.root}: {_discarded(n_lost)}", RuntimeWarning, stacklevel=2)

    def __del__(self) -> None:
        lock = getattr(self, "_lock", None)  # none if somebody else has it
        if lock is not None and lock.is_held and self._new_ids:
            text = f"{self.root}: the writer was not closed; {_discarded(len(self._new_ids))}"
            warnings.warn(text, RuntimeWarning, stacklevel=1, source=self)


def _discarded(n: int) -> str:
    """How many rows are lost."""
    rows = "1 row" if n == 1 else f"{n:,} rows"
    verb = "is" if n == 1 else "are"
    return f"{rows} appended since the last commit {verb} discarded"


def _axis_lengths(where: str, items: dict[str, np.ndarray], schema: Schema) -> dict[str, int]:
    """Items of a row on every ragged axis; raises SchemaError if columns of one axis disagree."""
    first: dict[str, str] = {}
    for name, value in items.items():
        axis = schema.axis_of(name)
        if axis is not None and len(items[first.setdefault(axis, name)]) != len(value):
            raise SchemaError(
                f"{where}, column {name!r}: expected {len(items[first[axis]])} items on axis {axis!r} like column "
                f"{first[axis]!r}, found {len(value)}"
            )
    return {axis: len(items[name]) for axis, name in first.items()}


def _check_size(root: Path, text: bytes) -> None:
    """Raise SchemaError for metadata that no reader would take."""
    if len(text) > MAX_FILE_BYTES:
        raise SchemaError(
            f"{root}: expected metadata of at most {MAX_FILE_BYTES} bytes, found {len(text)}"
        )


def _check_new(root: Path) -> None:
    """Raise SchemaError unless a store may begin here: nothing is there, or what one left that
    never came to be."""
    if root.exists() and not is_unborn(root):
        raise SchemaError(
            f"{root}: expected a new path, found something there; open it to append, or remove it"
        )


def _clear_new(root: Path, files: Files) -> None:
    """Check again under the lock, which the caller holds, and clear what a store left that never
    came to be."""
    _check_new(root)
    clear_unborn(root, files)
