"""Make a damaged store whole: remove orphans, write metadata again, drop damaged rows or columns.

Files that other stores have are taken from there first, so that nothing is dropped because of
them. What is left is verified and planned again: it may be judged by them, as values by offsets.

Nothing is ever lost silently. Rows are dropped by making a new store of the others beside the old
one; when it is whole, the two are swapped in one step, and the old one stays, under another name,
until the user removes it.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from store.check.report import Problem, Report, array_of
from store.check.restore import find_copies, find_sums, restore_files
from store.check.verify import BytesProgress, verify_store
from store.errors import CorruptError, LockedError, NotFoundError, SchemaError, StoreError
from store.format.contents import (
    WORKING_DIR,
    StoredArray,
    arrays_of,
    checked_arrays,
    metadata_files,
    run_name,
    with_schema,
)
from store.format.ids import hash_ids
from store.format.manifest import GROUP_FILE, Manifest, read_manifest
from store.format.schema import Schema
from store.read.arrays.chunk_sums import ChunkSums
from store.read.directory import StoreDirectory
from store.read.source import StoreSource, address_of
from store.read.store import TraceStore
from store.reports import count
from store.write.array_writer import write_metadata, write_run
from store.write.build import build_store, partial_path
from store.write.files import DISK, Files
from store.write.lock import WriterLock
from store.write.orphans import check_newest, clear_orphans
from store.write.source import CopySource, Progress
from store.write.writer import publish

__all__ = ["Plan", "damaged_path", "dropped_path", "plan_repair", "repair_store"]

CHECKSUMS = "_checksums/"
UNREADABLE = "?"  # replaces an id that is damaged itself
SHOWN_IDS = 5
# kind of problem -> what is counted, and what is done about it
REMEDIES = {
    "interrupted": ("file", "{} of an interrupted write to remove or to set back"),
    "leftover": ("file", "{} that no writer of a store makes, to be left alone: move away by hand"),
    "document": ("file", "{} of metadata to write again"),
    "index": ("run", "{} of the id table damaged: it is built again"),
    "unverifiable": (
        "file",
        "checksums lost for {}; what they hold is taken as it is, into a new store",
    ),
}


@dataclass
class Plan:
    """What a repair will do: rows to drop, with their ids (`UNREADABLE` for those that are damaged
    themselves), and columns to drop, so that their damage costs no row.

    `others` are the stores that were searched; `restored` has their files that take the place of
    damaged ones, by the path inside the store, and if there are some, a plan has nothing else.
    `by_column` has how many rows the damage of a column concerns; `hopeless` why nothing can be
    done, if so; `unchecked` the paths of arrays that have lost checksums.
    """

    report: Report
    columns: Sequence[str]
    others: Sequence[TraceStore]
    restored: Mapping[str, Path] = field(default_factory=dict)
    rows: Sequence[int] = ()
    ids: Sequence[str] = ()
    by_column: Mapping[str, int] = field(default_factory=dict)
    hopeless: str | None = None
    unchecked: Collection[str] = ()

    @property
    def has_work(self) -> bool:
        """Whether there is anything that a repair would do, or that it cannot mend."""
        return bool(self.report.problems or self.report.leftovers or self.columns)

    @property
    def copies(self) -> bool:
        """Whether the rows have to be copied: some are dropped, or checksums are lost."""
        return bool(self.rows or self.unchecked)

    def headline(self) -> str:
        """How many problems there are."""
        return count(len(self.report.problems), "problem")

    def lines(self, path: Path) -> Iterator[str]:
        """What will be done, a line each."""
        if self.hopeless:
            yield f"  nothing can be done: {self.hopeless}"
            return
        if self.restored:
            first = next(iter(self.restored.values()))
            damaged = count(len(self.restored), "damaged file")
            yield f"  {damaged} to take from other stores, the first is {first}"
            yield "  the rest is verified and planned again then"
            if left := self._left():
                rest = count(len(left), "file")
                yield f"  {rest} none of them has whole: traces may be dropped then, or kept as is"
            return
        for kind, (noun, remedy) in REMEDIES.items():
            files = self.files(kind)
            if files:
                yield "  " + remedy.format(count(len(files), noun))
        if self.rows:
            ids = ", ".join(self.ids[:SHOWN_IDS])
            if len(self.ids) > SHOWN_IDS:
                ids += ", ..."
            n_dropped = f"{len(self.rows):,} of {self.report.rows:,} traces"
            list_path = dropped_path(path)
            yield f"  {n_dropped} to drop ({ids}), to be listed in {list_path}"
        for name, n_rows in self.by_column.items():
            option = f"--drop-columns {name} drops that one instead"
            yield f"    {n_rows:,} of them because of column {name!r} ({option})"
        for name in self.columns:
            yield f"  column {name!r} to drop"

    def _left(self) -> set[str]:
        """Files of columns that stay, whose bytes are not known to be right, and are not taken."""
        kinds = {"damaged", "unverifiable"}
        if any(file.startswith(CHECKSUMS) for file in self.restored):
            kinds.remove("unverifiable")
        left = set()
        for problem in self.report.problems:
            if problem.kind in kinds and problem.column not in self.columns:
                left.add(problem.file)
        return left - self.restored.keys()

    def files(self, kind: str) -> set[str]:
        """Files that have problems, or are orphans, of one kind."""
        found = (*self.report.problems, *self.report.leftovers)
        return {problem.file for problem in found if problem.kind == kind}


def plan_repair(
    path: str | Path,
    progress: BytesProgress = lambda done, total: None,
    drop_columns: Sequence[str] = (),
    others: Iterable[TraceStore] = (),
) -> Plan:
    """Verify a store and say what a repair would do; changes nothing.

    `drop_columns` are dropped, damaged or not: one flipped byte condemns all rows of its chunk,
    tens of thousands in a column of small numbers, which can often be made again. `others` may have
    whole copies of damaged files: parts of a merge, or a backup.

    Raises NotFoundError if there is no such column, SchemaError for a store at an address.
    """
    address = address_of(path)
    if address is not None:
        raise SchemaError(
            f"{address}: expected a store on this machine, found an address, which is only "
            "read; pull it, repair that, and push it to another address"
        )
    store = TraceStore.open(path)
    for name in drop_columns:
        if name not in store.schema.columns:
            raise NotFoundError(f"{store.path}: expected a column to drop, found {name!r:.200}")
    report = verify_store(path, progress=progress)
    dropped = _paths(store.manifest) - _paths(_without(store.manifest, drop_columns))
    kept = [problem for problem in report.problems if array_of(problem.file) not in dropped]
    others = tuple(others) if kept else ()
    restored = find_copies(store, kept, others) | find_sums(store, kept, others)
    if restored:
        return Plan(report, drop_columns, others, restored)
    lost = {array_of(problem.file) for problem in kept if problem.kind == "unverifiable"}
    unchecked = [
        array.layout.path
        for array in checked_arrays(store.manifest)
        if lost & {array.layout.path, array.checksums.layout.path}
    ]
    problems = [one for one in kept if one.kind == "damaged"]
    damaged, hopeless = _damaged_rows(store, problems)
    rows = sorted(set().union(*damaged.values()))
    by_column = {name: len(damaged[name]) for name in damaged if name in store.schema.columns}
    if rows and len(rows) == len(store):
        hopeless = f"{store.path}: every row is damaged; restore it from a copy"
        if by_column:
            hopeless += f", or do without: --drop-columns {','.join(by_column)}"
    try:
        check_newest(store.path, store.manifest)
    except CorruptError as error:
        hopeless = str(error)
    ids = [_readable_id(store, row) for row in rows]
    return Plan(report, drop_columns, others, {}, rows, ids, by_column, hopeless, unchecked)


def _damaged_rows(
    store: TraceStore, problems: Iterable[Problem]
) -> tuple[dict[str, set[int]], str | None]:
    """Column, or "" of offsets -> its damaged rows; and why nothing can be done, if so."""
    damaged: dict[str, set[int]] = defaultdict(set)
    hopeless = None
    for problem in problems:
        if problem.rows:
            first, last = problem.rows
            damaged[problem.column or ""].update(range(first, last + 1))
        elif len(store):
            hopeless = (
                f"{problem.text}; which rows that concerns is not known; restore it from a copy"
            )
    return damaged, hopeless


def _paths(manifest: Manifest) -> set[str]:
    return {array.layout.path for array in arrays_of(manifest)}


def _readable_id(store: TraceStore, row: int) -> str:
    """The id of a row, if the id table knows the row under this id."""
    try:
        trace_id = store[row].id
        (hashed,) = hash_ids([trace_id])
        if row in store.reader.id_table.rows_with_hash(hashed):
            return trace_id
    except StoreError:
        pass
    return UNREADABLE


def dropped_path(path: Path) -> Path:
    """The file that lists the dropped rows."""
    return Path(f"{path.resolve()}.dropped.txt")


def damaged_path(path: Path) -> Path:
    """Where the old store is kept after rows were dropped."""
    return Path(f"{path.resolve()}.damaged")


def _repaired_path(path: Path) -> Path:
    return Path(f"{path.resolve()}.repaired")


def repair_store(
    path: str | Path,
    plan: Plan,
    progress: Progress = lambda done: None,
    files: Files = DISK,
    planned: Callable[[Plan], None] = lambda plan: None,
) -> TraceStore:
    """Carry out a plan, which `plan_repair` returned for this store; stopped, it may be run again.

    `progress` is called with the number of traces copied, if rows are dropped; `planned` with each
    plan that is made after files were taken. Raises LockedError if a writer is at work, or the
    store has changed since it was verified; SchemaError if nothing can be done, or the store of an
    earlier repair is in the way; CorruptError if the disk does not keep what is written.
    """
    root = Path(path).resolve()  # a link stays one
    while plan.restored:
        taken = plan.restored
        with _mending(root, plan, files):
            restore_files(root, taken, files)
        plan = plan_repair(root, drop_columns=plan.columns, others=plan.others)
        planned(plan)
        for file in taken.keys() & plan.restored.keys():
            raise CorruptError(
                f"{root / file}: expected the bytes that were copied there, found it damaged "
                "again; copy the store to another disk"
            )
    if plan.hopeless:
        raise SchemaError(plan.hopeless)
    _finish_exchange(root, files)
    kept = damaged_path(root)
    if plan.copies and kept.exists():
        raise SchemaError(
            f"{kept}: expected a new path for the damaged store, found something; move it away"
        )
    with _mending(root, plan, files) as manifest:
        if plan.columns:
            manifest = _drop_columns(root, manifest, plan.columns, files)
        if plan.copies:
            _drop_rows(root, plan, progress, files)
        else:
            _write_metadata(root, manifest, plan, files)
    return TraceStore.open(root)


@contextmanager
def _mending(root: Path, plan: Plan, files: Files) -> Iterator[Manifest]:
    """Hold the lock of a store that is as it was verified, and clear it."""
    with WriterLock(root):
        manifest = read_manifest(root)
        if manifest.generation != plan.report.generation:
            raise LockedError(f"{root}: a commit changed it since it was verified; repair it again")
        clear_orphans(root, manifest, files)
        yield manifest
        files.remove_tree(root / WORKING_DIR)


def _drop_columns(root: Path, manifest: Manifest, names: Sequence[str], files: Files) -> Manifest:
    """Commit a state without some columns, and remove their files."""
    return _publish(root, _without(manifest, names), files)


def _without(manifest: Manifest, names: Sequence[str]) -> Manifest:
    """The next state, without some columns."""
    columns = dict(manifest.schema.columns)
    arrays = dict(manifest.schema.arrays)
    for name in names:
        columns.pop(name, None)
        arrays.pop(name, None)
    return with_schema(manifest, Schema(columns, arrays), {}, {}, manifest.provenance)


def _publish(root: Path, manifest: Manifest, files: Files) -> Manifest:
    """Commit a state, and remove the files that do not belong to it."""
    publish(root, manifest, files)
    clear_orphans(root, manifest, files)
    return manifest


def _write_metadata(root: Path, manifest: Manifest, plan: Plan, files: Files) -> None:
    """Write damaged metadata again, and the id table if it is damaged."""
    wrong = plan.files("document")
    for file, text in sorted(metadata_files(manifest).items()):
        if file in wrong:
            write_metadata(root, files, file.removesuffix(f"/{GROUP_FILE}"), text)
    if plan.files("index"):
        _publish(root, _with_new_index(root, manifest, files), files)
    elif GROUP_FILE in wrong:
        _publish(root, manifest, files)


def _with_new_index(root: Path, manifest: Manifest, files: Files) -> Manifest:
    """The next state, after writing a new id table."""
    ids = TraceStore(StoreSource(StoreDirectory.at(root)), manifest, check=True).ids[:]
    n_rows = len(ids)
    run = (0, n_rows)
    checksum = write_run(root, files, run, hash_ids(ids), np.arange(n_rows))
    sums = {run_name(run): checksum}
    return manifest.next(runs=(run,), run_sums=sums)


class _Unchecked(StoreSource):
    """A store of which some arrays have lost their checksums: the others are checked."""

    def __init__(self, directory: StoreDirectory, unchecked: Collection[str]) -> None:
        super().__init__(directory)
        self.unchecked = unchecked

    def sums(self, array: StoredArray, check: Manifest | None) -> ChunkSums | None:
        """See `StoreSource`."""
        return super().sums(array, None if array.layout.path in self.unchecked else check)


def _drop_rows(root: Path, plan: Plan, progress: Progress, files: Files) -> None:
    """Make a store of the other rows, and swap it with this one."""
    repaired = _repaired_path(root)
    source = _Unchecked(StoreDirectory.at(root), plan.unchecked)
    store = TraceStore(source, read_manifest(root), check=True)
    kept = np.delete(np.arange(len(store)), plan.rows)
    record = {
        "of": store.uuid,
        "generation": store.generation,
        "rows": len(store),
        "dropped": len(plan.rows),
        "dropped_sha256": hashlib.sha256(repr(plan.rows).encode()).hexdigest(),
    }
    for earlier in (repaired, partial_path(repaired)):
        if (earlier / GROUP_FILE).is_file():
            begun = TraceStore.open(earlier).provenance.get("repaired", record)
            if begun["of"] == record["of"] and begun != record:  # it would have dropped other rows
                files.remove_tree(earlier)
    rows = CopySource([(store, kept.tolist())], store.provenance | {"repaired": record})
    build_store(repaired, rows, progress, files)
    if plan.rows:
        _list_dropped(dropped_path(root), plan, store, files)
    files.exchange(repaired, root)
    files.sync_dir(root.parent)
    _finish_exchange(root, files)


def _list_dropped(path: Path, plan: Plan, store: TraceStore, files: Files) -> None:
    """Append rows and ids, as JSON, to the list of earlier repairs."""
    n_dropped = f"{len(plan.rows)} of {len(store)} traces"
    text = f"# {n_dropped} of {store.uuid}, generation {store.generation}: row, id\n"
    for row, trace_id in zip(plan.rows, plan.ids, strict=True):
        quoted = json.dumps(trace_id, ensure_ascii=False)
        text += f"{row}\t{quoted}\n"
    new = text.encode()
    before = path.read_bytes() if path.exists() else b""
    if not before.endswith(new):  # it does if a repair was stopped right after this
        files.replace_text(path, before + new)


def _finish_exchange(root: Path, files: Files) -> None:
    """Move the old store to where it is kept, if a repair stopped after swapping the stores."""
    old = _repaired_path(root)
    if not (old / GROUP_FILE).exists():
        return
    record = TraceStore.open(root).provenance.get("repaired", {})
    if record.get("of") == TraceStore.open(old).uuid:
        files.rename_durably(old, damaged_path(root))
