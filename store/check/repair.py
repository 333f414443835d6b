"""Make a damaged store whole: clear what a crash left, write metadata again, leave out damaged rows
or columns.

Nothing is ever lost silently. Rows are dropped by making a new store of the others beside the old
one; when it is whole, the two change places in one step, and the old one stays, under another name,
until somebody removes it.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from store.check.verify import Report, verify_store
from store.errors import LockedError, NotFoundError, SchemaError, StoreError
from store.format.contents import WORKING_DIR, metadata_of, run_name, with_schema
from store.format.ids import hash_ids
from store.format.manifest import GROUP_FILE, Manifest, read_manifest
from store.format.schema import Schema
from store.format.zarr_json import group_json
from store.read.directory import StoreDirectory
from store.read.store import TraceStore
from store.reports import count
from store.write.array_writer import write_metadata
from store.write.build import build_store, partial_path
from store.write.copy import CopySource
from store.write.files import Files
from store.write.id_table import write_run
from store.write.leftovers import clear_leftovers
from store.write.lock import WriterLock

__all__ = ["Plan", "plan_repair", "repair_store"]

UNREADABLE = "?"  # in place of an id that is damaged itself


@dataclass
class Plan:
    """What a repair will do.

    Attributes
    ----------
    report
        What `verify_store` found.
    rows
        Rows to drop.
    ids
        Their ids; `UNREADABLE` for those that are damaged themselves.
    columns
        Columns to drop, so that their damage costs no row.
    by_column
        Damaged column -> how many rows that concerns.
    hopeless
        Why nothing can be done, if so.
    """

    report: Report
    rows: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    by_column: dict[str, int] = field(default_factory=dict)
    hopeless: str | None = None

    @property
    def has_work(self) -> bool:
        """Whether there is anything that a repair would do, or that it cannot mend."""
        return bool(self.report.problems or self.report.leftovers or self.columns)

    @property
    def copies(self) -> bool:
        """Whether the rows have to be copied into a new store: some are dropped, or checksums are
        lost."""
        lost = (
            p
            for p in self.report.problems
            if p.kind == "unverifiable" and p.column not in self.columns
        )
        return bool(self.rows or any(lost))

    def headline(self) -> str:
        """How many problems there are."""
        return count(len(self.report.problems), "problem")

    def lines(self, path: Path) -> list[str]:
        """What will be done, a line each."""
        if self.hopeless:
            return [f"  nothing can be done: {self.hopeless}"]
        counts = {
            "interrupted": ("file", "of an interrupted write to remove or to set back"),
            "leftover": (
                "file",
                "that no writer of a store makes, to be left alone: move away by hand",
            ),
            "document": ("file", "of metadata to write again"),
            "index": ("run", "of the id table damaged: it is built again"),
        }
        lines = []
        for kind, (what, text) in counts.items():
            if n := self.count(kind):
                lines.append(f"  {count(n, what)} {text}")
        if n := self.count("unverifiable"):
            lines.append(
                f"  checksums lost for {n:,} files; what they hold is taken as it is, into a new store"
            )
        if self.rows:
            known = ", ".join(self.ids[:5]) + ", ..." * (len(self.ids) > 5)
            dropped = f"{len(self.rows):,} of {self.report.rows:,} traces to drop ({known})"
            lines += [f"  {dropped}, to be listed in {dropped_path(path)}"]
        for name, n in self.by_column.items():
            lines += [
                f"    {n:,} of them because of column {name!r} (--drop-columns {name} drops that one instead)"
            ]
        return lines + [f"  column {name!r} to drop" for name in self.columns]

    def count(self, kind: str) -> int:
        """Files that have problems, or are leftovers, of one kind."""
        found = (*self.report.problems, *self.report.leftovers)
        return len({problem.file for problem in found if problem.kind == kind})


def plan_repair(
    path: str | Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    drop_columns: Sequence[str] = (),
) -> Plan:
    """Verify a store and say what a repair would do; changes nothing.

    Parameters
    ----------
    path
        The store.
    progress
        Called with the bytes checked so far and all of them.
    drop_columns
        Columns to drop, damaged or not. One flipped byte condemns all rows of its chunk: tens of
        thousands in a column of small numbers, which can often be made again.

    Raises
    ------
    NotFoundError
        There is no such column.
    """
    store = TraceStore.open(path)
    for name in drop_columns:
        if name not in store.schema.columns:
            raise NotFoundError(f"{store.path}: expected a column to drop, found {name!r:.200}")
    report = verify_store(path, progress=progress)
    plan = Plan(report, columns=list(drop_columns))
    rows: set[int] = set()
    by_column: dict[str, set[int]] = {}
    for problem in report.problems:
        if problem.column in drop_columns:
            continue
        if problem.kind == "damaged" and problem.rows is None and len(store):
            plan.hopeless = (
                f"{problem.text}; which rows that concerns is not known; restore it from a copy"
            )
        elif problem.kind == "damaged" and problem.rows:
            concerned = range(problem.rows[0], problem.rows[1] + 1)
            rows |= set(concerned)
            if problem.column in store.schema.columns:
                by_column.setdefault(problem.column, set()).update(concerned)
    plan.rows, plan.by_column = (
        sorted(rows),
        {name: len(found) for name, found in by_column.items()},
    )
    plan.ids = [_readable_id(store, row) for row in plan.rows]
    if rows and len(rows) == len(store):
        plan.hopeless = f"{store.path}: every row is damaged; restore it from a copy"
    return plan


def _readable_id(store: TraceStore, row: int) -> str:
    """The id of a row, if the id table knows it under this id."""
    try:
        trace_id = store.ids[row]
        return (
            trace_id
            if row in set(store.id_table.rows_with_hash(hash_ids([trace_id])[0]))
            else UNREADABLE
        )
    except StoreError:
        return UNREADABLE


def dropped_path(path: Path) -> Path:
    """The file that lists the dropped rows."""
    path = path.absolute()
    return path.with_name(path.name + ".dropped.txt")


def repaired_path(path: Path) -> Path:
    """Where the new store is made."""
    return path.with_name(path.name + ".repaired")


def damaged_path(path: Path) -> Path:
    """Where the old store is kept after rows were dropped."""
    return path.with_name(path.name + ".damaged")


def repair_store(
    path: str | Path,
    plan: Plan,
    progress: Callable[[int], None] = lambda done: None,
    files: Files | None = None,
) -> TraceStore:
    """Carry out a plan; stopped, it may be run again.

    Parameters
    ----------
    path
        The store.
    plan
        What `plan_repair` gave for it.
    progress
        Called with the number of traces copied, if rows are dropped.

    Raises
    ------
    LockedError
        A writer is at work, or the store has changed since it was verified.
    SchemaError
        Nothing can be done, or the store of an earlier repair is in the way.
    """
    root, files = Path(path).absolute(), files or Files()
    if plan.hopeless:
        raise SchemaError(plan.hopeless)
    _finish_exchange(root, files)
    kept = damaged_path(root)
    if plan.copies and kept.exists():
        raise SchemaError(
            f"{kept}: expected a new path for the damaged store, found something; move it away"
        )
    lock = WriterLock(root)
    try:
        manifest = read_manifest(root)
        if manifest.generation != plan.report.generation:
            raise LockedError(
                f"{root}: expected no commit since it was verified, found one; repair it again"
            )
        clear_leftovers(root, manifest, files)
        if plan.columns:
            manifest = _drop_columns(root, manifest, plan.columns, files)
        if plan.copies:
            _drop_rows(root, plan, progress, files)
        else:
            _write_metadata(root, manifest, plan, files)
        files.remove_tree(root / WORKING_DIR)
    finally:
        lock.release()
    return TraceStore.open(root)


def _drop_columns(root: Path, manifest: Manifest, names: Sequence[str], files: Files) -> Manifest:
    """Commit a state without some columns, and remove what they leave."""
    old = manifest.schema
    schema = Schema(
        {name: column for name, column in old.columns.items() if name not in names},
        {name: array for name, array in old.arrays.items() if name not in names},
    )
    smaller = with_schema(manifest, schema)
    write_metadata(root, files, "", group_json(smaller.to_attributes()))
    clear_leftovers(root, smaller, files)
    return smaller


def _write_metadata(root: Path, manifest: Manifest, plan: Plan, files: Files) -> None:
    """Write the documents again, and the id table if it is damaged."""
    wrong = {problem.file for problem in plan.report.problems if problem.kind == "document"}
    texts = metadata_of(manifest)
    for path in sorted(path for path in texts if f"{path}/{GROUP_FILE}" in wrong):
        write_metadata(root, files, path, texts[path])
    if plan.count("index"):
        n_rows = manifest.n_rows
        run = (0, n_rows)
        ids = TraceStore(StoreDirectory.at(root), manifest, check=True).ids[:]
        checksum = write_run(root, files, run, hash_ids(ids), np.arange(n_rows))
        manifest = manifest.next(runs=(run,), run_sums={run_name(run): checksum})
    if plan.count("index") or GROUP_FILE in wrong:
        write_metadata(root, files, "", group_json(manifest.to_attributes()))
        clear_leftovers(root, manifest, files)


def _drop_rows(root: Path, plan: Plan, progress: Callable[[int], None], files: Files) -> None:
    """Make a store of the other rows, and let it take this one's place."""
    made = repaired_path(root)
    store = TraceStore.open(root, check=not plan.count("unverifiable"))
    dropped = set(plan.rows)
    rows = [row for row in range(len(store)) if row not in dropped]
    told = {
        "of": store.uuid,
        "generation": store.generation,
        "rows": len(store),
        "dropped": len(dropped),
    }
    told["dropped_sha256"] = hashlib.sha256(repr(plan.rows).encode()).hexdigest()
    for stale in (made, partial_path(made)):
        _remove_stale(stale, told, files)
    build_store(
        made, CopySource([(store, rows)], store.provenance | {"repaired": told}), progress, files
    )
    if plan.rows:
        _list_dropped(dropped_path(root), plan, store, files)
    files.exchange(made, root)
    files.sync_dir(root.parent)
    _finish_exchange(root, files)


def _remove_stale(path: Path, told: dict[str, Any], files: Files) -> None:
    """Remove what an earlier repair began, which would have dropped other rows."""
    if (path / GROUP_FILE).is_file():
        begun = TraceStore.open(path).provenance.get("repaired", told)
        if begun["of"] == told["of"] and begun != told:
            files.remove_tree(path)


def _list_dropped(path: Path, plan: Plan, store: TraceStore, files: Files) -> None:
    """Add rows and ids, as JSON, to the list, behind those of earlier repairs."""
    lines = [
        f"# {len(plan.rows)} of {len(store)} traces of {store.uuid}, generation {store.generation}: row, id\n"
    ]
    for row, trace_id in zip(plan.rows, plan.ids, strict=True):
        lines.append(f"{row}\t{json.dumps(trace_id, ensure_ascii=False)}\n")
    text, before = "".join(lines).encode(), path.read_bytes() if path.exists() else b""
    if not before.endswith(text):  # it does if a repair was stopped right after this
        files.replace_text(path, before + text, path.with_name(path.name + ".new"))


def _finish_exchange(root: Path, files: Files) -> None:
    """Give the old store, if a repair has left it under the new one's name, the name where it is
    kept."""
    made = repaired_path(root)
    if not (made / GROUP_FILE).exists():
        return
    told = TraceStore.open(root).provenance.get("repaired", {})
    if told.get("of") == TraceStore.open(made).uuid:
        files.rename(made, damaged_path(root))
        files.sync_dir(root.parent)
