"""Files and Zarr metadata of a store against what was committed; no chunk is read."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from store.check.report import INTERRUPTED, Problem
from store.format.array_info import column_paths, earlier_infos
from store.format.contents import WORKING_DIR, could_be_ours, files_of, metadata_of
from store.format.manifest import COLUMNS_KEY, GROUP_FILE, KEY, Manifest
from store.format.zarr_json import group_json
from store.write.orphans import foreign_arrays

__all__ = ["MetadataCheck"]

MAX_METADATA_BYTES = 64 * 1024 * 1024
# of an array's metadata: these follow from all columns of a store
INFO_KEYS = ("dimension_names", "attributes")
Fault = tuple[str, str, str]  # file, kind, text
EMPTY: tuple[object, ...] = (None, [], {})  # what a key that says nothing may hold


class MetadataCheck:
    """Compares the files of a store, and the metadata of its groups and arrays, with its manifest.

    Parameters
    ----------
    root, manifest
        The store, and what is committed.
    has_writer
        Whether a writer is at work, whose uncommitted files are no problem.
    """

    def __init__(self, root: Path, manifest: Manifest, has_writer: Callable[[], bool]) -> None:
        self.root = root
        self.manifest = manifest
        self.has_writer = has_writer

    def problems(self) -> Iterator[Problem]:
        """Everything wrong with files and metadata, and what an interrupted write left."""
        for file, kind, text in (*self._files(), *self._metadata()):
            if kind != "interrupted" or not self.has_writer():
                yield Problem(kind, file, f"{file}: {text}")

    def _files(self) -> Iterator[Fault]:
        """Links, and files that are not committed; missing ones are found when they are read."""
        belonging = files_of(self.manifest)
        foreign = foreign_arrays(self.root, self.manifest)
        for path, is_file in self._entries():
            name = path.relative_to(self.root).as_posix()
            top, _, _ = name.partition("/")
            if path.is_symlink():
                yield name, "leftover", "expected files and directories only, found a link"
            elif name in belonging or not is_file:
                continue
            elif could_be_ours(name) and top not in foreign:
                yield name, "interrupted", INTERRUPTED
            else:
                yield name, "leftover", "expected no file that does not belong, found one"

    def _entries(self) -> Iterator[tuple[Path, bool]]:
        """Everything below the store, and whether it is a file."""
        for folder, directories, names in os.walk(self.root):
            files = set(names)
            for name in sorted([*directories, *names]):
                yield Path(folder, name), name in files

    def _metadata(self) -> Iterator[Fault]:
        """Metadata that other Zarr clients would misread."""
        earlier_of = earlier_infos(self.manifest.schema)
        texts = {"": group_json(), **metadata_of(self.manifest)}
        for path, text in texts.items():
            expected = json.loads(text)
            earlier = dict(expected)  # as earlier versions of this package wrote it
            info = earlier_of.get(path)
            if info:
                earlier["dimension_names"] = list(info.names)
                earlier["attributes"] = info.attributes
            file = f"{path}/{GROUP_FILE}".lstrip("/")
            yield from self._compare(file, expected, earlier)

    def _compare(
        self, file: str, expected: dict[str, Any], earlier: dict[str, Any]
    ) -> Iterator[Fault]:
        """One file, which is as expected or as earlier versions wrote it."""
        try:
            with (self.root / file).open("rb") as opened:
                text = opened.read(MAX_METADATA_BYTES)
            found = json.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            yield file, "document", f"expected Zarr metadata, found: {error}"
            return
        if not isinstance(found, dict):
            kind = type(found).__name__
            yield file, "document", f"expected an object, found {kind}"
            return
        if file == GROUP_FILE:
            del expected["attributes"]
            attributes = found.pop("attributes", None)
            yield from self._compare_columns(attributes)
        is_array = expected["node_type"] == "array"
        for key in sorted(expected.keys() | found.keys()):
            wanted = expected.get(key)
            value = found.get(key)
            says_nothing = key in expected and wanted in EMPTY and value in EMPTY
            if says_nothing or value in (wanted, earlier.get(key)):
                continue
            is_ahead = is_array and self._may_be_ahead(key, wanted, value)
            kind = "interrupted" if is_ahead else "document"
            yield file, kind, f"expected {key} {wanted!r:.80}, found {value!r:.80}"

    def _compare_columns(self, attributes: object) -> Iterator[Fault]:
        """Where other Zarr clients find the columns; the first stores did not say that."""
        if not isinstance(attributes, dict):
            attributes = {}
        if attributes.keys() == {KEY}:  # a first store
            return
        columns = attributes.get(COLUMNS_KEY)
        expected = column_paths(self.manifest.schema)
        if columns != expected:
            wanted = f"attribute {COLUMNS_KEY} {expected!r:.80}"
            yield GROUP_FILE, "document", f"expected {wanted}, found {columns!r:.80}"

    def _may_be_ahead(self, key: str, wanted: object, value: object) -> bool:
        """Whether a writer may have written this of an array for a commit that is not done."""
        if not (self.root / WORKING_DIR).is_dir():
            return False
        return key in INFO_KEYS or (key == "shape" and _is_longer(value, wanted))


def _is_longer(found: object, committed: object) -> bool:
    """Whether a shape is that of an array which a commit, not yet done, has made longer."""
    if not (isinstance(found, list) and isinstance(committed, list) and found):
        return False
    n_items, *item_shape = found
    n_committed, *committed_shape = committed
    is_count = isinstance(n_items, int)
    return is_count and item_shape == committed_shape and n_items > n_committed
