"""Rows of existing stores, passed on bit for bit: row by row as a source, or as whole files."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from store.errors import CorruptError, LockedError
from store.format.contents import files_of
from store.format.manifest import GROUP_FILE, Manifest, read_manifest
from store.read.store import TraceStore
from store.write.files import Files
from store.write.source import Source

__all__ = ["CopySource", "Progress", "copy_files"]

Progress = Callable[[int], None]


class CopySource(Source):
    """Rows of one store after the other.

    Parameters
    ----------
    parts
        Stores with the same columns, each with its row numbers in the order to copy them.
    renamed
        (part, row of its store) -> the id in the copy, where it differs.
    """

    def __init__(
        self,
        parts: Sequence[tuple[TraceStore, Sequence[int]]],
        provenance: dict[str, Any],
        renamed: Mapping[tuple[int, int], str] | None = None,
    ) -> None:
        self.parts = parts
        self.provenance = provenance
        self.renamed = renamed or {}
        first_store, _ = parts[0]
        self.schema = first_store.schema

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self.parts)

    def rows(self, start: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield `(trace_id, row)` from row number `start` of the copy on."""
        for part, (store, rows) in enumerate(self.parts):
            for row in map(int, rows[start:]):
                trace = store[row]
                trace_id = self.renamed.get((part, row), trace.id)
                yield trace_id, dict(trace)
            start = max(0, start - len(rows))


def copy_files(store: TraceStore, root: Path, files: Files, progress: Progress) -> Manifest:
    """Copy all files of a store to `root`, durably, except the one with its manifest.

    `progress` is called after each file with the rows that the bytes copied so far amount to.
    Returns the manifest of what was copied. Raises LockedError if the store was appended to
    meanwhile.
    """
    manifest = read_manifest(store.path)
    names = sorted(files_of(manifest) - {GROUP_FILE})
    try:
        sizes = {name: (store.path / name).stat().st_size for name in names}
        total = max(1, sum(sizes.values()))
        done = 0
        for name, size in sizes.items():
            target = root / name
            files.make_dirs(target.parent)
            files.copy_file(store.path / name, target)
            done += size
            progress(len(store) * done // total)
    except FileNotFoundError as error:
        if read_manifest(store.path).generation == store.generation:
            raise CorruptError(
                f"{error.filename}: expected a file of the store, found none"
            ) from error
    if not manifest.generation == store.generation == read_manifest(store.path).generation:
        raise LockedError(f"{store.path}: a commit changed it while it was copied; copy it again")
    files.sync_dirs(Path(folder) for folder, _, _ in os.walk(root))
    return manifest
