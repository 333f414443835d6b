"""Orphans: what a crash leaves in a store, and its removal; nothing of it was ever committed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from store.errors import CorruptError
from store.format.contents import (
    WORKING_DIR,
    StoredArray,
    arrays_of,
    could_be_ours,
    files_of,
    infos_of,
    offsets_array,
)
from store.format.manifest import GROUP_FILE, Manifest
from store.format.schema import TRACE_ID
from store.format.zarr_json import ArrayInfo, array_json
from store.write.array_writer import write_metadata
from store.write.files import Files

__all__ = [
    "check_newest",
    "clear_directory",
    "clear_orphans",
    "has_only_our_files",
    "is_uninitialised",
    "paths_in",
    "strange_files",
]


def clear_orphans(root: Path, manifest: Manifest, files: Files) -> None:
    """Remove what a crash left in a store, and make its working directory; under the store's lock.

    Array metadata that differs from the committed state is written again: it may be ahead, or of an
    earlier version of this package. Only files with names that a writer gives are touched. The
    working directory stays while there are orphans: without it they are none, see `check_newest`,
    whose error is raised.
    """
    check_newest(root, manifest)
    # the last writer may have died before its manifest's rename was durable, and orphans go now
    files.sync_dir(root)
    files.make_dirs(root / WORKING_DIR)
    clear_directory(root / WORKING_DIR, files)
    for path, is_ours in strange_files(root, manifest):
        if is_ours:
            files.remove(root / path)
            for folder in Path(path).parents[:-1]:
                if not files.remove_if_empty(root / folder):
                    break
    infos = infos_of(manifest)
    for array in arrays_of(manifest):
        path = array.layout.path
        info = infos[path]
        file = root / path / GROUP_FILE
        if file.is_file() and not _is_current(file, array, info):
            text = array_json(array.layout, array.n_places, info)
            write_metadata(root, files, path, text)


def check_newest(root: Path, manifest: Manifest) -> None:
    """Raise CorruptError if rows were committed after the state in `zarr.json`: it is an older one.

    A writer makes its working directory before anything else, and removes it after its last commit;
    one that was interrupted leaves it. Without it, what other files have more was committed.
    """
    if (root / WORKING_DIR).is_dir():
        return
    offsets = root / offsets_array(TRACE_ID, manifest.n_rows).layout.path
    try:
        (n_offsets,) = json.loads((offsets / GROUP_FILE).read_bytes())["shape"]
        n_rows = n_offsets - 1
        has_run = any((root / "_index").glob(f"*-{n_rows}"))
    except (OSError, ValueError, KeyError, TypeError):  # damaged: it tells nothing
        return
    if n_rows > manifest.n_rows and has_run:
        raise CorruptError(
            f"{root / GROUP_FILE}: expected the state of the last commit, found {manifest.n_rows} "
            f"rows, and files of {n_rows}; restore the newest copy of it. If there is none, make "
            f"an empty directory {root / WORKING_DIR}: then the next writer removes the others"
        )


def strange_files(root: Path, manifest: Manifest) -> Iterator[tuple[str, bool]]:
    """Files in a store's directory that are not committed, and whether a writer of ours made them.

    A writer records the column of an array in its metadata (or in '@' in its path), and metadata is
    written last: another Zarr client added an array with metadata that does not name its column.
    """
    belonging = files_of(manifest)
    ours = {path.partition("/")[0] for path in belonging}
    arrays = {folder.name for folder in root.iterdir() if (folder / GROUP_FILE).is_file()}
    foreign = {name for name in arrays - ours if not _is_named_by_us(root / name)}
    for path in paths_in(root):
        if path not in belonging:
            yield path, could_be_ours(path) and path.partition("/")[0] not in foreign


def _is_named_by_us(folder: Path) -> bool:
    if folder.name.startswith("_") or "@" in folder.name:
        return True
    try:
        metadata = json.loads((folder / GROUP_FILE).read_bytes())
        return metadata["attributes"]["column"] == folder.name
    except (ValueError, KeyError, TypeError):
        return False


def is_uninitialised(root: Path) -> bool:
    """Whether a directory is empty, or holds only what a writer left that died creating a store."""
    return root.is_dir() and not (root / GROUP_FILE).exists() and has_only_our_files(root)


def has_only_our_files(root: Path) -> bool:
    """Whether every file, and every empty directory of the top level, has a name of a writer's."""
    for folder in root.iterdir():
        is_empty = folder.is_dir() and not any(folder.iterdir())
        if is_empty and not could_be_ours(f"{folder.name}/{GROUP_FILE}"):
            return False
    return all(path == GROUP_FILE or could_be_ours(path) for path in paths_in(root))


def clear_directory(root: Path, files: Files) -> None:
    """Remove everything in a directory; under its lock."""
    for path in sorted(root.iterdir()):
        if path.is_dir():
            files.remove_tree(path)
        else:
            files.remove(path)


def paths_in(root: Path) -> Iterator[str]:
    """Every file below a directory, relative to it."""
    for folder, _, names in os.walk(root):
        for name in sorted(names):
            yield Path(folder, name).relative_to(root).as_posix()


def _is_current(file: Path, array: StoredArray, info: ArrayInfo) -> bool:
    """Whether an array's metadata has what a writer writes, of the keys that ever change."""
    try:
        metadata = json.loads(file.read_bytes())
        found = [metadata.get(key) for key in ("shape", "dimension_names", "attributes")]
    except (ValueError, AttributeError):
        return False
    shape = [array.n_places, *array.layout.item_shape]
    return found == [shape, list(info.names) or None, info.attributes]
