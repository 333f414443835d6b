"""Files and Zarr metadata of a store against what was committed; no chunk is read."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from store.check.report import INTERRUPTED, Problem
from store.format.array_info import column_paths, earlier_infos
from store.format.contents import WORKING_DIR, could_be_ours, documents_of, files_of
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
        for name, kind, text in (*self._files(), *self._metadata()):
            is_orphan = kind == "interrupted"
            if not (is_orphan and self.has_writer()):
                yield Problem(kind, name, f"{name}: {text}")

    def _files(self) -> Iterator[Fault]:
        """Links, and files that are not committed; missing ones are found when they are read."""
        belonging = files_of(self.manifest)
        foreign = foreign_arrays(self.root, self.manifest)
        for folder, directories, names in os.walk(self.root):
            files = set(names)
            for name in sorted([*directories, *names]):
                path = Path(folder, name)
                inside = path.relative_to(self.root).as_posix()
                if path.is_symlink():
                    yield inside, "leftover", "expected files and directories only, found a link"
                elif name in files and inside not in belonging:
                    is_foreign = inside.partition("/")[0] in foreign
                    if could_be_ours(inside) and not is_foreign:
                        yield inside, "interrupted", INTERRUPTED
                    else:
                        yield inside, "leftover", "expected no file that does not belong, found one"

    def _metadata(self) -> Iterator[Fault]:
        """Metadata that other Zarr clients would misread."""
        earlier_of = earlier_infos(self.manifest.schema)
        for path, text in {"": group_json(), **documents_of(self.manifest)}.items():
            file = f"{path}/{GROUP_FILE}".lstrip("/")
            expected = json.loads(text)
            earlier = dict(expected)  # as earlier versions of this package wrote it
            if path in earlier_of:
                earlier["dimension_names"] = list(earlier_of[path].names)
                earlier["attributes"] = earlier_of[path].attributes
            for kind, fault in self._compare(file, expected, earlier):
                yield file, kind, fault

    def _compare(
        self, file: str, expected: dict[str, Any], earlier: dict[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """One file, which is as expected or as earlier versions wrote it."""
        try:
            with (self.root / file).open("rb") as opened:
                found = json.loads(opened.read(MAX_METADATA_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            yield "document", f"expected Zarr metadata, found: {error}"
            return
        if not isinstance(found, dict):
            yield "document", f"expected an object, found {type(found).__name__}"
            return
        if file == GROUP_FILE:
            yield from self._compare_columns(found.pop("attributes", None))
            del expected["attributes"]
        is_array = expected["node_type"] == "array"
        for key in sorted(expected.keys() | found.keys()):
            wanted = expected.get(key)
            value = found.get(key)
            says_nothing = key in expected and wanted in EMPTY and value in EMPTY
            if value not in (wanted, earlier.get(key)) and not says_nothing:
                is_ahead = is_array and self._may_be_ahead(key, wanted, value)
                kind = "interrupted" if is_ahead else "document"
                yield kind, f"expected {key} {wanted!r:.80}, found {value!r:.80}"

    def _compare_columns(self, attributes: object) -> Iterator[tuple[str, str]]:
        """Where other Zarr clients find the columns; the first stores did not say that."""
        found = attributes if isinstance(attributes, dict) else {}
        columns = found.get(COLUMNS_KEY)
        expected = column_paths(self.manifest.schema)
        is_of_a_first_store = found.keys() == {KEY}
        if columns != expected and not is_of_a_first_store:
            what = f"attribute {COLUMNS_KEY}"
            yield "document", f"expected {what} {expected!r:.80}, found {columns!r:.80}"

    def _may_be_ahead(self, key: str, wanted: object, value: object) -> bool:
        """Whether a writer may have written this of an array for a commit that is not done."""
        if not (self.root / WORKING_DIR).is_dir():
            return False
        return key in INFO_KEYS or (key == "shape" and _is_longer(value, wanted))


def _is_longer(found: object, committed: object) -> bool:
    """Whether a shape is that of an array which a commit, not yet done, has made longer."""
    if not (isinstance(found, list) and isinstance(committed, list) and found):
        return False
    if not isinstance(found[0], int):
        return False
    return found[1:] == committed[1:] and found[0] > committed[0]
