"""What a crash leaves in a store, and its removal; nothing of it was ever committed."""

import json
import os
from pathlib import Path

from store.array_writer import write_document
from store.contents import WORKING_DIR, arrays_of, could_be_ours, files_of
from store.files import Files
from store.manifest import GROUP_FILE, Manifest
from store.zarr_json import array_json

__all__ = ["clear_leftovers", "clear_unborn", "is_unborn"]


def clear_leftovers(root: Path, manifest: Manifest, files: Files) -> None:
    """Remove what a crash left behind, and set back metadata that is ahead of the manifest; nothing of it is committed.

    Only files of names that a writer gives are touched. The caller holds the store's lock.
    """
    files.sync_dir(root)  # who renamed the manifest may have died before that was durable, and its leftovers go now
    files.remove_tree(root / WORKING_DIR)
    belonging = files_of(manifest)
    for path in _paths_in(root):
        if path not in belonging and could_be_ours(path):
            files.remove(root / path)
            for folder in Path(path).parents[:-1]:
                if not files.remove_if_empty(root / folder):
                    break
    files.make_dirs(root / WORKING_DIR)
    for array in arrays_of(manifest):
        path = root / array.layout.path / GROUP_FILE
        if path.is_file() and _shape_in(path) != [array.n_items, *array.layout.item_shape]:
            write_document(root, files, array.layout.path, array_json(array.layout, array.n_items, array.names))


def is_unborn(root: Path) -> bool:
    """Whether a directory is empty, or holds what a writer left that died before the store's first commit."""
    if not root.is_dir() or (root / GROUP_FILE).exists():
        return False
    return all(could_be_ours(path) for path in _paths_in(root)) and not any(map(_is_foreign, root.iterdir()))


def _is_foreign(path: Path) -> bool:
    """An empty directory of a name that no writer gives."""
    return path.is_dir() and not any(path.iterdir()) and not could_be_ours(f"{path.name}/{GROUP_FILE}")


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


def _shape_in(path: Path) -> object:
    """The shape in an array's metadata; None if it cannot be read."""
    try:
        return json.loads(path.read_bytes()).get("shape")
    except (ValueError, AttributeError):
        return None
