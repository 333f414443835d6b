"""Which files the sources of an import name, and of which kind each is.

The first bytes decide the kind; of a text, and of a damaged file, the name. To find both, no more
is read of a file than how it begins.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from store.errors import NotFoundError, SchemaError
from store.importers.arrays.array_files import (
    NPY,
    open_hdf5,
    open_npy,
    open_npz,
    open_safetensors,
)
from store.importers.arrays.contents import Contents
from store.importers.arrays.pickled import open_pickled
from store.importers.arrays.tables import open_arrow, open_json_lines, open_parquet
from store.importers.damage import damage
from store.importers.pickles import GZIP_MAGIC
from store.importers.pickles.torch_files import LEGACY_MAGIC, ZIP_MAGIC

__all__ = [
    "ARRAYS",
    "LISTED",
    "PICKLES",
    "READ",
    "SAFETENSORS",
    "Given",
    "check_apart",
    "describe",
    "digest_given",
    "find_given",
    "given_files",
    "kind_of",
    "of_older_formats",
    "relative_names",
]


class Format(NamedTuple):
    """A format of arrays; it is opened by a path, the files there, and the most bytes of one."""

    name: str  # in a list of all
    open: Callable[[Path, Sequence[Path], int], Contents]
    magics: tuple[bytes, ...] = ()  # first bytes that tell it from others


NPZ = ".npz"
SAFETENSORS = ".safetensors"
ARRAYS = {  # by kind, as of `Given`; a new one is one line here
    "npz": Format(NPZ, lambda path, _, limit: open_npz(path, limit)),
    "npy": Format(".npy", open_npy, (b"\x93NUMPY",)),
    "safetensors": Format(SAFETENSORS, lambda path, *_: open_safetensors(path)),
    "Arrow": Format(
        "Arrow", lambda path, files, _: open_arrow(path, files), (b"ARROW1", b"\xff" * 4)
    ),
    "Parquet": Format("Parquet", lambda path, _, limit: open_parquet(path, limit), (b"PAR1",)),
    "HDF5": Format("HDF5", lambda path, _, limit: open_hdf5(path, limit), (b"\x89HDF\r\n\x1a\n",)),
}
LISTED = ", ".join(form.name for form in ARRAYS.values())
READ = f"{LISTED}, JSON lines, pickles or .pt of arrays"
LOOKED_AT = 4096  # bytes of a file that may be text
TEXT_SUFFIXES = (".txt", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".md")
OLD_SUFFIXES = {  # and the kind of a file that is called so, whatever is in it
    ".pkl": "pickle",
    ".pickle": "pickle",
    ".pkl.gz": "gzip pickle",
    ".pickle.gz": "gzip pickle",
    ".pt": "torch",
    ".pth": "torch",
}
OLD_MAGICS = {  # of files that may be called otherwise: other pickles begin like texts
    GZIP_MAGIC: "gzip pickle",
    ZIP_MAGIC: "torch",
    LEGACY_MAGIC: "torch",
    **{bytes([0x80, protocol]): "pickle" for protocol in range(2, 6)},
}
PICKLES = ("pickle", "gzip pickle", "torch")
FOR_OTHERS = {  # kind -> what is to be done with its files
    "text": "see python -m store label for scores, python -m store extract for questions",
    "JSON lines": "python -m store import --inspect {} proposes a --map",
    "gzip text": "unpack it with gunzip",
    "store": "see python -m store merge and subset",
}
STATE = "state.json"
DATASET = (STATE, "dataset_info.json")  # files of a folder of Dataset.save_to_disk
MAX_STATE_BYTES = 1 << 24  # a name takes some 60 of them


@dataclass(frozen=True)
class Given:
    """One thing to read: a file, or the folder of several that belong together.

    Its kind is one of `ARRAYS`, of `PICKLES`, "JSON lines", "text", "gzip text", "store",
    "unknown".
    """

    path: Path
    kind: str
    files: tuple[Path, ...] = ()

    @property
    def n_bytes(self) -> int:
        """Of all files now."""
        return sum(file.stat().st_size for file in self.files)

    def open(self, max_bytes: int) -> Contents:
        """Open arrays or a table, of which no array may take more than `max_bytes` of memory.

        Raises a StoreError for a file that is damaged, or of a kind without keys; the message does
        not name it.
        """
        if self.kind in PICKLES:
            return open_pickled(self.path, self.kind, max_bytes)
        if self.kind == "JSON lines":
            return open_json_lines(self.path)
        if self.kind not in ARRAYS:
            advice = f"; {FOR_OTHERS[self.kind]}" if self.kind in FOR_OTHERS else ""
            raise SchemaError(f"expected {READ}, found {describe(self.kind)}{advice}")
        return ARRAYS[self.kind].open(self.path, self.files, max_bytes)


def find_given(sources: Sequence[str]) -> list[Given]:
    """Return what files, folders and patterns name, sorted by path.

    Raises NotFoundError for a source that names nothing, CorruptError where the state of a saved
    dataset does not name its files.
    """
    found: dict[Path, Given] = {}  # by resolved path: a file named twice is read once
    for source in sources:
        path = Path(source)
        paths = [path] if source and path.exists() else _match_pattern(source)
        given = [item for path in paths for item in _given_at(path)]
        if not given:
            raise NotFoundError(f"{source}: expected files, a folder or a pattern, found none")
        for item in given:
            found.setdefault(item.path.resolve(), item)
    return sorted(found.values(), key=lambda item: item.path.absolute())


def of_older_formats(given: Sequence[Given], sources: Sequence[str]) -> list[Given]:
    """Return the files that may be older traces: pickles, and what the sources name themselves.

    Raises SchemaError for a named file that is for another command, or where there is no pickle.
    """
    named = set(map(Path, sources))
    pickles = [item for item in given if item.kind in PICKLES]
    for item in given:
        if item.kind in FOR_OTHERS and (item.path in named or not pickles):
            advice = FOR_OTHERS[item.kind].format(item.path)
            found = describe(item.kind)
            raise SchemaError(f"{item.path}: expected traces, found {found}; {advice}")
    return [item for item in given if item.kind in PICKLES or item.path in named]


def _match_pattern(pattern: str) -> list[Path]:
    """Return what a pattern names, sorted; nothing for a path without a name."""
    path = Path(pattern)
    if not path.name:
        return []
    try:
        return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    except ValueError as error:
        raise NotFoundError(f"{pattern}: expected a pattern of files, found: {error}") from error


def given_files(paths: Iterable[Path]) -> list[Given]:
    """Return files as they are given, each by itself."""
    return [Given(path, kind_of(path), (path,)) for path in paths]


def _given_at(path: Path) -> list[Given]:
    if path.is_file():
        return given_files([path])
    if not path.is_dir():
        return []
    if (path / "zarr.json").exists():
        return [Given(path, "store")]
    if all((path / name).is_file() for name in DATASET):
        return [Given(path, "Arrow", _dataset_files(path))]
    return _given_in(path)


def _dataset_files(folder: Path) -> tuple[Path, ...]:
    """Return the Arrow files of a saved dataset; raises CorruptError where its state is wrong.

    The library datasets leaves others there: what it computed (cache-*), shards of older saves.
    """
    path = folder / STATE
    with damage(f"names of files in the folder of {path}"), path.open("rb") as file:
        listed = json.loads(file.read(MAX_STATE_BYTES)).get("_data_files")
        if listed is None:
            found = sorted(folder.glob("*.arrow"))
            return tuple(one for one in found if not one.name.startswith("cache-"))
        files = [folder / entry["filename"] for entry in listed]
        others = [one.name for one in files if one.parent != folder or not one.is_file()]
        if others:
            raise ValueError(others[0])
        return tuple(files)


def _given_in(folder: Path) -> list[Given]:
    """Return what a folder and those in it hold; tables only where there is nothing else."""
    given: list[Given] = []
    tables: list[Given] = []
    arrays: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            given += _given_at(path) if not path.is_symlink() else []
            continue
        kind = kind_of(path) if path.is_file() else "unknown"  # a pipe, a link to nothing
        if kind == "npy":
            arrays.append(path)
        elif kind == "JSON lines":
            tables.append(Given(path, kind, (path,)))
        elif kind not in ("text", "unknown"):
            given.append(Given(path, kind, (path,)))
    if arrays:
        given.append(Given(folder, "npy", tuple(arrays)))
    return given or tables


def kind_of(path: Path) -> str:
    """Return the kind of a file; see `Given`."""
    with path.open("rb") as file:
        first = file.read(LOOKED_AT)
    if path.name.endswith(SAFETENSORS):
        return "safetensors"
    for kind, form in ARRAYS.items():
        if first.startswith(form.magics):
            return kind
    if first[8:9] == b"{" and not _is_text(first):
        return "safetensors"
    suffix = _old_suffix(path)
    name = path.name.lower()
    if first.startswith(GZIP_MAGIC) and name.removesuffix(".gz").endswith(TEXT_SUFFIXES):
        return "gzip text"
    if name.endswith(TEXT_SUFFIXES) or (not suffix and _is_text(first)):
        return "JSON lines" if first.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] == b"{" else "text"
    named = OLD_SUFFIXES.get(suffix, "unknown")
    kind = next((OLD_MAGICS[magic] for magic in OLD_MAGICS if first.startswith(magic)), named)
    may_be_npz = kind == "torch" and not suffix
    return "npz" if may_be_npz and _is_npz(path) else kind


def _is_npz(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return path.name.lower().endswith(NPZ)
    return bool(names) and all(name.endswith(NPY) for name in names)


def _old_suffix(path: Path) -> str:
    """Return the suffix of a file that is called like one of older traces, else ''."""
    name = path.name.lower()
    return next((suffix for suffix in OLD_SUFFIXES if name.endswith(suffix)), "")


def _is_text(first: bytes) -> bool:
    """Return whether a file begins with a line of words; a pickle's first lines have no spaces."""
    try:
        text = first.decode()
    except UnicodeDecodeError as error:
        if error.start < len(first) - 3 or not error.start:  # a character may be cut at the end
            return False
        text = first[: error.start].decode()
    line = text.lstrip("\ufeff").partition("\n")[0].rstrip("\r")
    return line.isprintable() and any(mark in line for mark in ' ,;{"')


def describe(kind: str) -> str:
    others = {"text": "a text file", "store": "a store", "unknown": "none of these"}
    return others.get(kind, f"a {kind} file")


def relative_names(files: Sequence[Path]) -> list[str]:
    """Return the files' names below the folder that holds them all."""
    folders = [file.absolute().parent for file in files]
    root = os.path.commonpath(folders) if folders else "/"
    encoded = [os.fsencode(file.absolute().relative_to(root)) for file in files]
    return [name.decode(errors="backslashreplace") for name in encoded]


def digest_given(given: Sequence[Given]) -> str:
    """Return a checksum of the files' names, sizes and times, not of their contents."""
    lines = "".join(_file_lines(given))
    return hashlib.sha256(lines.encode()).hexdigest()


def _file_lines(given: Sequence[Given]) -> Iterator[str]:
    names = relative_names([item.path for item in given])
    for item, name in zip(given, names, strict=True):
        for file in item.files:
            stat = file.stat()
            shown = os.fsencode(file.name).decode(errors="backslashreplace")
            yield f"{name}\t{shown}\t{stat.st_size}\t{stat.st_mtime_ns}\n"


def check_apart(out: Path, sources: Sequence[str]) -> None:
    """Raise SchemaError for a store to be made among what is imported.

    It would be one of the things to import itself when the import goes on, or is repeated.
    """
    place = out.resolve()
    for source in sources:
        folders = [path for path in (Path(source), *_match_pattern(source)) if path.is_dir()]
        is_within = any(place.is_relative_to(folder.resolve()) for folder in folders)
        if is_within or out.absolute().match(str(Path(source).absolute())):
            raise SchemaError(
                f"{out}: expected a path outside of what is imported, found it within {source}; "
                "choose another OUT, or a pattern of the files"
            )
