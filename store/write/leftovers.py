"""What a crash leaves in a store, and its removal; nothing of it was ever committed."""

import json
import os
from pathlib import Path

from store.format.array_info import ArrayInfo
from store.format.contents import (
    WORKING_DIR,
    StoredArray,
    arrays_of,
    could_be_ours,
    files_of,
    infos_of,
)
from store.format.manifest import GROUP_FILE, Manifest
from store.format.zarr_json import array_json
from store.write.array_writer import write_metadata
from store.write.files import Files

__all__ = ["clear_leftovers", "clear_unborn", "foreign_arrays", "is_unborn"]


def clear_leftovers(root: Path, manifest: Manifest, files: Files) -> None:
    """Remove what a crash left behind; nothing of it is committed.

    Metadata of arrays that is not that of the committed state is written again: it may be ahead, or
    of an earlier version of this package. Only files of names that a writer gives are touched. The
    caller holds the store's lock.
    """
    # who renamed the manifest may have died before that was durable, and its leftovers go now
    files.sync_dir(root)
    files.remove_tree(root / WORKING_DIR)
    belonging = files_of(manifest)
    foreign = foreign_arrays(root, manifest)
    for path in _paths_in(root):
        is_foreign = path.partition("/")[0] in foreign
        if path not in belonging and could_be_ours(path) and not is_foreign:
            files.remove(root / path)
            for folder in Path(path).parents[:-1]:
                if not files.remove_if_empty(root / folder):
                    break
    files.make_dirs(root / WORKING_DIR)
    infos = infos_of(manifest)
    for array in arrays_of(manifest):
        path = array.layout.path
        file = root / path / GROUP_FILE
        if file.is_file() and not _is_current(file, array, infos[path]):
            write_metadata(root, files, path, array_json(array.layout, array.n_items, infos[path]))


def foreign_arrays(root: Path, manifest: Manifest) -> set[str]:
    """Names of arrays in a store's directory that no writer of ours made, whatever they are called.

    A writer gives an array the name of its column, as an attribute (or '@' in its path), and its
    metadata comes last: an array with metadata that does not say so was added by another Zarr
    client.
    """
    known = {path.partition("/")[0] for path in files_of(manifest)}
    found = set()
    for folder in root.iterdir():
        is_ours = folder.name in known or folder.name.startswith("_") or "@" in folder.name
        is_new = folder.is_dir() and not is_ours
        if is_new and (folder / GROUP_FILE).is_file() and not _names_its_column(folder):
            found.add(folder.name)
    return found


def _names_its_column(folder: Path) -> bool:
    """Whether an array's metadata has the attribute of a column of that name."""
    try:
        metadata = json.loads((folder / GROUP_FILE).read_bytes())
        return metadata["attributes"]["column"] == folder.name
    except (ValueError, KeyError, TypeError):
        return False


def is_unborn(root: Path) -> bool:
    """Whether a directory is empty, or holds what a writer left that died before the store's first
    commit."""
    if not root.is_dir() or (root / GROUP_FILE).exists():
        return False
    return all(could_be_ours(path) for path in _paths_in(root)) and not any(
        map(_is_foreign, root.iterdir())
    )


def _is_foreign(path: Path) -> bool:
    """An empty directory of a name that no writer gives."""
    return (
        path.is_dir() and not any(path.iterdir()) and not could_be_ours(f"{path.name}/{GROUP_FILE}")
    )


def clear_unborn(root: Path, files: Files) -> None:
    """Remove what `is_unborn` found. The caller holds the lock."""
    for path in sorted(root.iterdir()):
        if path.is_dir():
            files.remove_tree(path)
        else:
            files.remove(path)


def _paths_in(root: Path) -> list[str]:
    """Every file below a directory, relative to it."""
    top = len(str(root)) + 1
    return [f"{folder}/{name}"[top:] for folder, _, names in os.walk(root) for name in names]


def _is_current(file: Path, array: StoredArray, info: ArrayInfo) -> bool:
    """Whether an array's metadata says what the writer would write, as far as that ever changes."""
    try:
        document = json.loads(file.read_bytes())
        found = [document.get(key) for key in ("shape", "dimension_names", "attributes")]
    except (ValueError, AttributeError):
        return False
    names = list(info.names) or None
    return found == [[array.n_items, *array.layout.item_shape], names, info.attributes]
