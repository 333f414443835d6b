"""The one way rows enter a store: append, then commit; a commit is whole or it never happened.

Order of a commit, each step durable before the next begins:

1. shards: chunks go to working files in `_tmp/`; a full shard, or a copy of the tail, is fsynced
   and renamed to its final name, and the directories are fsynced. Readers of the old generation do
   not notice: a grown tail begins with the items it had, and checksums of whole chunks never
   change.
2. the arrays' `zarr.json`, the new run of the id table: the same way.
3. the group's `zarr.json` with the next generation: the truth. Before its rename the commit has not
   happened, after it the rows survive a power cut.

What a crash leaves (files in `_tmp/`, shards and runs beyond the manifest, metadata ahead of it) is
invisible to readers; the next writer removes it before it does anything else.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from store.errors import IncompleteError, SchemaError, StoreError
from store.format.contents import GROUPS, WORKING_DIR, run_name, with_schema
from store.format.ids import Run, hash_ids, plan_runs
from store.format.manifest import MAX_FILE_BYTES, Manifest, read_manifest
from store.format.schema import TRACE_ID, Column, Schema
from store.format.zarr_json import group_json
from store.read.directory import StoreDirectory, check_no_address, local_path
from store.read.source import StoreSource
from store.read.store import TraceStore
from store.reports import count
from store.traces.layers import check_recorded
from store.write.array_writer import merge_runs, write_metadata
from store.write.blocks import Columns, encode_block
from store.write.files import DISK, Files
from store.write.lock import WriterLock
from store.write.orphans import clear_directory, clear_orphans, is_uninitialised
from store.write.rows import (
    Row,
    RowArrays,
    axis_lengths,
    encode_id,
    encode_row,
    schema_with,
)

__all__ = ["StoreWriter", "group_text", "publish"]

CLOSED = "it was closed"
# a writer commits by itself after so much: a killed job loses at most this
COMMIT_ROWS = 2**18
COMMIT_BYTES = 2**30
COMMIT_S = 60.0


P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate["StoreWriter", P], T]


def _one_thread(method: Method[P, T]) -> Method[P, T]:
    """Let threads that share a writer take turns at its methods."""

    @wraps(method)
    def locked(writer: "StoreWriter", *args: P.args, **named: P.kwargs) -> T:
        with writer._lock.threads:
            return method(writer, *args, **named)

    return locked


class StoreWriter:
    """Appends rows to a store; use `create` or `open`, best as a context manager.

    `close`, or a clean exit of the block, commits what was appended. An exception that leaves the
    block does not: a RuntimeWarning says how many rows are discarded. A writer also commits by
    itself, after so many rows, bytes or seconds that a killed job loses a minute's work
    (`COMMIT_ROWS`, `COMMIT_BYTES`, `COMMIT_S`).

    Threads may share a writer: what they call takes turns.

    Attributes
    ----------
    provenance
        JSON object that says where the traces come from; a change is written with the next commit.

    Examples
    --------
    >>> schema = Schema({"label": Column("int8")})
    >>> with StoreWriter.create(path, schema) as writer:  # doctest: +SKIP
    ...     writer.append("tc_33", {"label": 1})
    """

    def __init__(self, root: Path, new: Manifest | None, files: Files) -> None:
        """Prepare to append, under the lock, to a new store of this manifest, or the one there."""
        self.root = root.absolute()
        self.files = files
        self._unusable: str | None = None  # why nothing more can be appended or committed
        self._new_ids: dict[str, None] = {}
        files.make_dirs(self.root)
        self._lock = WriterLock(self.root)
        try:  # no one else commits from here on
            if new:
                manifest = new
                _check_new(self.root)
                clear_directory(self.root, files)
                files.make_dirs(self.root / WORKING_DIR)
            else:
                manifest = read_manifest(self.root)
                clear_orphans(self.root, manifest, files)
            self._adopt(manifest)
            self._n_rows = manifest.n_rows  # the uncommitted ones included
            schema = manifest.schema
            self._arrays = RowArrays(
                self.root, files, manifest, schema.stored, schema.axes, new=bool(new)
            )
        except BaseException:
            self._lock.release()
            raise
        self.provenance = deepcopy(manifest.provenance)
        self._new_bytes = 0  # of values since the last commit
        self._committed_at = time.monotonic()

    @classmethod
    def create(
        cls,
        path: str | Path,
        schema: Schema,
        provenance: Mapping | None = None,
        files: Files = DISK,
    ) -> "StoreWriter":
        """Create an empty store at `path`, which must not exist or be an empty directory.

        `provenance` is a JSON object that says where the traces come from. Raises SchemaError if
        something is at `path` already.
        """
        root = local_path(path)
        _check_new(root)
        manifest = Manifest(schema, provenance=dict(provenance or {}))
        # refuses provenance that is no JSON, or contradicts itself, before anything exists
        group_text(root, manifest)
        check_recorded(manifest.provenance)
        writer = cls(root, manifest, files)
        try:
            for group in GROUPS:
                write_metadata(root, files, group, group_json())
            writer._publish(replace(manifest, tails=writer._arrays.commit()))
        except BaseException:
            writer.discard()
            raise
        return writer

    @classmethod
    def open(cls, path: str | Path, files: Files = DISK) -> "StoreWriter":
        """Append to the store at `path`."""
        root = local_path(path)
        read_manifest(root)  # raises if there is no store, before a directory is made or locked
        return cls(root, None, files)

    def _adopt(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._committed = TraceStore(StoreSource(StoreDirectory.at(self.root)), manifest)

    def _publish(self, manifest: Manifest) -> None:
        """The moment of the commit."""
        publish(self.root, manifest, self.files)
        self._adopt(manifest)

    @property
    def schema(self) -> Schema:
        return self._manifest.schema

    @property
    def generation(self) -> int:
        """Number of commits so far."""
        return self._manifest.generation

    def __len__(self) -> int:
        """Rows, the uncommitted ones included."""
        return self._n_rows

    def __contains__(self, trace_id: str) -> bool:
        """Whether a row has this id, the uncommitted ones included."""
        return trace_id in self._new_ids or trace_id in self._committed

    def append(self, trace_id: str, row: Row) -> None:
        """Add one row, or nothing if anything about it is wrong; it may commit (see the class).

        A row has a value for every column: arrays `(n, *item_shape)` for ragged columns (equal `n`
        on an axis), `item_shape` for fixed ones, strings for utf8. Integers may be of any integer
        dtype if they fit; floating dtypes are never rounded silently. torch tensors are welcome.
        The memory may be reused.

        Raises SchemaError if the row does not fit the schema, or the id is taken.
        """
        where = f"trace {trace_id!r}"
        schema = self._manifest.schema
        items = {TRACE_ID: encode_id(trace_id), **encode_row(row, schema.columns, where)}
        lengths = axis_lengths(items, schema, where)
        with self._lock.threads:
            self._check_usable()
            if self._manifest.schema is not schema:  # another thread has set columns since
                self.append(trace_id, row)
                return
            if trace_id in self:
                raise _taken(trace_id)
            self._unusable = f"appending {where} stopped half-way"
            self._arrays.append(items, lengths)
            self._new_ids[trace_id] = None
            self._count(1, items)

    def append_many(self, trace_ids: Sequence[str], columns: Columns) -> None:
        """Add many rows at once, or none of them if anything is wrong; it may commit.

        The store gets the bytes that `append` row by row gives it, many times as fast where rows
        are small. All are committed together.

        Parameters
        ----------
        trace_ids
            Of each row.
        columns
            Name -> the values of all rows, for every column: `Ragged(values, offsets)` for a ragged
            column, `(n_rows, *item_shape)` for a fixed one, strings for utf8. A `Batch` serves, and
            an Arrow table with lists for arrays; ids in them are not looked at.

        Raises
        ------
        SchemaError
            A value does not fit the schema, columns have different numbers of rows, or an id is
            taken or there twice.
        """
        schema = self._manifest.schema
        block = encode_block(trace_ids, columns, schema)
        with self._lock.threads:
            self._check_usable()
            if self._manifest.schema is not schema:  # another thread has set columns since
                self.append_many(trace_ids, columns)
                return
            self._check_ids(trace_ids)
            self._unusable = f"appending {count(len(trace_ids), 'row')} stopped half-way"
            self._arrays.append_block(block.items, block.lengths)
            self._new_ids |= dict.fromkeys(trace_ids)
            self._count(len(trace_ids), block.items)

    def _check_ids(self, trace_ids: Sequence[str]) -> None:
        """Raise SchemaError unless all ids are new, and each there once."""
        is_known = self._committed.reader.id_table.rows_of_hashes(hash_ids(trace_ids)) >= 0
        seen: set[str] = set()
        for trace_id, may_be_there in zip(trace_ids, is_known.tolist(), strict=True):
            if trace_id in seen:
                raise _taken(trace_id, "twice among the rows")
            if trace_id in self._new_ids or (may_be_there and trace_id in self._committed):
                raise _taken(trace_id)
            seen.add(trace_id)

    def _count(self, n_rows: int, items: Mapping[str, np.ndarray]) -> None:
        """Count rows that were appended; commit if it is time."""
        self._n_rows += n_rows
        self._new_bytes += sum([value.nbytes for value in items.values()])
        self._unusable = None
        is_late = time.monotonic() - self._committed_at >= COMMIT_S
        if is_late or len(self._new_ids) >= COMMIT_ROWS or self._new_bytes >= COMMIT_BYTES:
            self.commit()

    def _check_usable(self) -> None:
        if not self._unusable and not self._lock.is_held:
            self._unusable = "it belongs to the process that this one was forked from"
        if self._unusable:
            raise IncompleteError(
                f"{self.root}: this writer cannot write any more, because {self._unusable}; "
                "committed rows are safe: reopen the store with StoreWriter.open"
            )

    @_one_thread
    def set_columns(
        self,
        columns: Mapping[str, Column],
        rows: Iterable[Row],
        provenance: Mapping | None = None,
    ) -> None:
        """Add columns, or replace some, in all committed rows; durable and visible when it returns.

        Nothing else is touched. A replaced column goes to a new array, so that readers of an older
        generation never see a mixture; once the old array is gone, they get an error that says to
        open the store again.

        Parameters
        ----------
        columns
            Name -> `Column`. A ragged one may be on an existing axis, with the lengths of the
            others, or on a new one. Only what keeps the offsets can be replaced: no strings.
        rows
            A value of each for every row, in order.
        provenance
            JSON object that replaces the store's, if given.

        Raises
        ------
        SchemaError
            A value does not fit, or there are more or fewer rows; the store is as it was.
        """
        self._check_usable()
        if self._new_ids:
            raise SchemaError(
                f"{self.root}: expected committed rows only, found {len(self._new_ids)} new; "
                "commit first"
            )
        schema = schema_with(self._manifest, columns)
        new_axes = [axis for axis in schema.axes if axis not in self.schema.axes]
        self._unusable = "setting columns stopped half-way"
        new = RowArrays(self.root, self.files, Manifest(schema), columns, new_axes, new=True)
        try:
            new.append_to_all(schema, rows, self._committed)
            if not self._lock.is_held:  # what makes the rows has closed this writer
                self._check_usable()
            tails = new.commit()
        except BaseException:
            new.remove()
            if self._lock.is_held:
                self._unusable = None
            raise
        provenance = self.provenance if provenance is None else dict(provenance)
        self._publish(
            with_schema(self._manifest, schema, new.n_items, tails, provenance=provenance)
        )
        self.provenance = provenance
        for replaced in self._arrays.take_over(new):
            with suppress(OSError):  # the next writer removes what remains
                replaced.remove()
        self._unusable = None
        self._arrays.describe(self._manifest)  # a dimension may have another name now

    @_one_thread
    def add_column(self, name: str, column: Column, values: Iterable[object]) -> None:
        """Add one column, with a value for every committed row, in order; see `set_columns`."""
        if name in self.schema.columns:
            raise SchemaError(
                f"{self.root}, column {name!r}: expected a new column, found it there; "
                "see set_columns"
            )
        self.set_columns({name: column}, ({name: value} for value in values))

    @_one_thread
    def commit(self) -> None:
        """Make every appended row durable and visible; returns when they would survive a power cut.

        Raises OSError if the disk is full, or for another fault of it. The store is at its last
        commit, and the rows after it have to be appended again, with a new writer.
        """
        self._check_usable()
        if self._new_ids:
            self._unusable = "a commit stopped half-way"
            tails = self._arrays.commit()
            kept, first = plan_runs(self._manifest.runs, len(self))
            self._commit_runs(kept, first, tails)
            self._new_ids.clear()
            self._unusable = None
        elif self.provenance != self._manifest.provenance:
            self._publish(self._manifest.next(provenance=self.provenance))
        self._committed_at = time.monotonic()
        self._new_bytes = 0

    @_one_thread
    def merge_runs(self) -> None:
        """Commit, and make one run of the id table.

        It is the fastest to look up, and has the same bytes however many commits came before.
        """
        self.commit()
        if len(self._manifest.runs) > 1:
            self._commit_runs((), 0, self._manifest.tails)

    def _commit_runs(
        self, kept: tuple[Run, ...], first: int, tails: Mapping[str, list[int]]
    ) -> None:
        """Commit with these runs of the id table and a new one of all rows from `first` on."""
        old = self._manifest
        new = (first, len(self))
        checksum = merge_runs(self.root, self.files, old, new, self._new_ids)
        merged = [run_name(run) for run in old.runs if run not in kept]
        sums = {name: crc for name, crc in old.run_sums.items() if name not in merged}
        manifest = old.next(
            n_rows=len(self),
            n_items=dict(self._arrays.n_items),
            tails=tails,
            runs=(*kept, new),
            run_sums={**sums, run_name(new): checksum},
            provenance=self.provenance,
        )
        self._publish(manifest)
        # readers of an older generation find these ids in the run that contains them now
        for name in merged:
            with suppress(OSError):  # the next writer removes what remains
                self.files.remove_tree(self.root / "_index" / name)

    @_one_thread
    def close(self) -> None:
        """Commit what was appended, as closing a file does, and release the files and the lock.

        They are released whatever happens. A second call does nothing. Raises IncompleteError, with
        the number of rows that are lost since the last commit, if an append or a commit failed
        before; OSError if this commit fails, see `commit`.
        """
        if not self._lock.is_held:
            return
        failure = self._unusable
        n_lost = self._n_lost()
        try:
            if not failure:
                self.commit()
        finally:
            self.discard()
        if failure and n_lost:
            raise IncompleteError(
                f"{self.root}: {failure}, and {_discarded(n_lost)}; "
                "append them again with a new StoreWriter.open"
            )

    @_one_thread
    def discard(self) -> None:
        """Release the files and the lock without a commit; rows since the last commit are lost.

        A second call does nothing.
        """
        if not self._lock.is_held:
            return
        has_orphans = bool(self._unusable or self._new_ids)
        self._unusable = CLOSED
        self._new_ids.clear()
        self._n_rows = self._manifest.n_rows
        try:
            self._arrays.close()
            with suppress(OSError, StoreError):  # the next writer removes what remains
                # where a build was moved from, another one may have begun
                is_there = self._lock.is_of(self.root)
                if is_there and has_orphans:
                    clear_orphans(self.root, read_manifest(self.root), self.files)
                if is_there:
                    self.files.remove_tree(self.root / WORKING_DIR)
        finally:
            self._lock.release()

    def _n_lost(self) -> int:
        """Rows that would be lost without another commit."""
        if not self._lock.is_held:  # it was closed, or is that of the process forked from
            return 0
        if self._unusable and self._new_ids:  # a failed commit may still have reached its last step
            with suppress(StoreError):
                return max(0, len(self) - read_manifest(self.root).n_rows)
        return len(self._new_ids)

    def __enter__(self) -> "StoreWriter":
        return self

    @_one_thread
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
            return
        n_lost = self._n_lost()
        self.discard()
        if n_lost:
            warnings.warn(f"{self.root}: {_discarded(n_lost)}", RuntimeWarning, stacklevel=3)

    def __del__(self) -> None:
        lock = getattr(self, "_lock", None)  # none if another writer holds it
        if lock is not None and lock.is_held and self._new_ids:
            text = f"{self.root}: the writer was not closed; {_discarded(len(self._new_ids))}"
            warnings.warn(text, RuntimeWarning, stacklevel=1, source=self)


def _taken(trace_id: str, where: str = "in the store already") -> SchemaError:
    return SchemaError(f"trace_id {trace_id!r}: expected a new id, found it {where}")


def _discarded(n: int) -> str:
    since = "appended since the last commit"
    return f"{count(n, f'row {since} is', f'rows {since} are')} discarded"


def group_text(root: Path, manifest: Manifest) -> bytes:
    """The metadata of the store itself; raises SchemaError if no reader would accept it."""
    text = group_json(manifest.to_attributes())
    if len(text) > MAX_FILE_BYTES:
        raise SchemaError(
            f"{root}: expected metadata of at most {MAX_FILE_BYTES} bytes, found {len(text)}"
        )
    return text


def publish(root: Path, manifest: Manifest, files: Files) -> None:
    """Commit a state: all that it names is durable by now."""
    write_metadata(root, files, "", group_text(root, manifest))


def _check_new(root: Path) -> None:
    """Raise SchemaError unless a store may be created here.

    That is where nothing is, or what a writer left that died before its first commit.
    """
    check_no_address(root)
    if root.exists() and not is_uninitialised(root):
        raise SchemaError(
            f"{root}: expected a new path, found something there; open it to append, or remove it"
        )
