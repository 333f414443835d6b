"""Files and Zarr metadata of a store against what was committed; no chunk is read."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from store.check.report import INTERRUPTED, Problem
from store.errors import CorruptError, is_no_damage
from store.format.contents import WORKING_DIR, metadata_files
from store.format.manifest import COLUMNS_KEY, GROUP_FILE, KEY, MAX_FILE_BYTES, Manifest
from store.format.zarr_json import column_paths, earlier_infos, group_json
from store.read.directory import paths_below
from store.write.orphans import check_newest, strange_files

__all__ = ["metadata_problems"]

# of an array's metadata: these follow from all columns of a store
INFO_KEYS = ("dimension_names", "attributes")
Fault = tuple[str, str, str]  # file, kind, text
EMPTY: list = [None, [], {}]  # what a key that says nothing may hold


def metadata_problems(
    root: Path, manifest: Manifest, has_writer: Callable[[], bool]
) -> Iterator[Problem]:
    """Everything wrong with files and metadata, and what an interrupted write left.

    While `has_writer` says that a writer is at work, its uncommitted files are no problem.
    """
    try:
        check_newest(root, manifest)
    except CorruptError as error:  # what the files have more is no interrupted write
        yield Problem("document", GROUP_FILE, str(error))
        return
    for file, kind, text in (*_files(root, manifest), *_metadata(root, manifest)):
        if kind != "interrupted" or not has_writer():
            yield Problem(kind, file, f"{file}: {text}")


def _files(root: Path, manifest: Manifest) -> Iterator[Fault]:
    """Links, and files that are not committed; missing ones are found when they are read."""
    found = paths_below(root)
    links = {path.relative_to(root).as_posix() for path in found if path.is_symlink()}
    for name in sorted(links):
        yield name, "leftover", "expected files and directories only, found a link"
    for name, is_ours in strange_files(root, manifest):
        if name in links:
            continue
        if is_ours:
            yield name, "interrupted", INTERRUPTED
        else:
            yield name, "leftover", "expected no file that does not belong, found one"


def _metadata(root: Path, manifest: Manifest) -> Iterator[Fault]:
    """Metadata that other Zarr clients would misread."""
    earlier_of = earlier_infos(manifest.schema)
    for file, text in {GROUP_FILE: group_json(), **metadata_files(manifest)}.items():
        try:
            found = _read_object(root / file)
        except ValueError as error:
            yield file, "document", str(error)
            continue
        if file == GROUP_FILE:
            yield from _compare_columns(manifest, found.pop("attributes", None))
        expected = json.loads(text)
        earlier = dict(expected)  # as earlier versions of this package wrote it
        info = earlier_of.get(file.removesuffix(f"/{GROUP_FILE}"))
        if info:
            earlier |= {"dimension_names": list(info.names), "attributes": info.attributes}
        for key in sorted(expected.keys() | found.keys()):
            wanted = expected.get(key)
            value = found.get(key)
            says_nothing = key in expected and wanted in EMPTY and value in EMPTY
            if says_nothing or value in (wanted, earlier.get(key)):
                continue
            is_array = expected["node_type"] == "array"
            is_ahead = is_array and _may_be_ahead(root, key, wanted, value)
            kind = "interrupted" if is_ahead else "document"
            yield file, kind, f"expected {key} {wanted!r:.80}, found {value!r:.80}"


def _read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises ValueError."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        if is_no_damage(error):
            raise
        raise ValueError(f"expected Zarr metadata, found: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, found {type(found).__name__}")
    return found


def _compare_columns(manifest: Manifest, attributes: object) -> Iterator[Fault]:
    """Where other Zarr clients find the columns; the first stores did not say that."""
    if not isinstance(attributes, dict):
        attributes = {}
    columns = attributes.get(COLUMNS_KEY)
    expected = column_paths(manifest.schema)
    is_first_store = attributes.keys() == {KEY}
    if columns != expected and not is_first_store:
        wanted = f"attribute {COLUMNS_KEY} {expected!r:.80}"
        yield GROUP_FILE, "document", f"expected {wanted}, found {columns!r:.80}"


def _may_be_ahead(root: Path, key: str, committed: Any, found: object) -> bool:
    """Whether a writer may have written this of an array for a commit that is not done."""
    if not (root / WORKING_DIR).is_dir():
        return False
    match found:
        case [int(n_items), *item_shape] if key == "shape":
            return item_shape == committed[1:] and n_items > committed[0]
    return key in INFO_KEYS
