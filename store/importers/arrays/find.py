"""Which kind each file that is given has, decided by its first bytes, and the files of folders."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from store.errors import CorruptError, NotFoundError, SchemaError
from store.importers.arrays.contents import Contents
from store.importers.arrays.hdf5 import Hdf5File
from store.importers.arrays.numpy_files import NpyFolder, NpzFile, is_npz
from store.importers.arrays.pickled import open_pickled
from store.importers.arrays.safetensors import SafetensorsFile
from store.importers.arrays.tables import ArrowFile, JsonLinesFile, ParquetFile
from store.importers.file_imports import match_pattern
from store.importers.pickles import kind_of_file

__all__ = ["ARRAYS", "PICKLES", "READ", "Given", "find_given", "kind_of", "open_contents"]

SAFETENSORS = ".safetensors"
MAGICS = {
    b"\x93NUMPY": "npy",
    b"ARROW1": "Arrow",
    b"\xff\xff\xff\xff": "Arrow",
    b"PAR1": "Parquet",
    b"\x89HDF\r\n\x1a\n": "HDF5",
}
LOOKED_AT = 4096  # bytes of a file that may be text
TEXT_SUFFIXES = (".txt", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".md")
OLD_SUFFIXES = (".pkl", ".pickle", ".pkl.gz", ".pickle.gz", ".pt", ".pth")
ARRAYS = ("safetensors", "npz", "npy", "Arrow", "Parquet", "HDF5")  # kinds; of `Given`
PICKLES = ("pickle", "gzip pickle", "torch")
UNPACKED: dict[str, Callable[[Path, int], Contents]] = {  # kinds of one file, read into memory
    "npz": NpzFile,
    "Parquet": ParquetFile,
    "HDF5": Hdf5File,
    **dict.fromkeys(PICKLES, open_pickled),
}
READ = ".npz, .npy, .safetensors, Arrow, Parquet, HDF5, JSON lines, pickles or .pt of arrays"
STATE = "state.json"
DATASET = (STATE, "dataset_info.json")  # files of a folder of Dataset.save_to_disk
MAX_STATE_BYTES = 1 << 24  # a name takes some 60 of them


@dataclass(frozen=True)
class Given:
    """One thing to read.

    Attributes
    ----------
    path
        A file, or the folder of several that belong together.
    kind
        One of `ARRAYS`, of `PICKLES`, "JSON lines", "text", "store", "unknown".
    """

    path: Path
    kind: str
    files: tuple[Path, ...] = field(default=())


def find_given(sources: Sequence[str]) -> list[Given]:
    """Return what files, folders and patterns name, sorted by path.

    Raises
    ------
    NotFoundError
        A source names nothing.
    CorruptError
        The state of a saved dataset does not name its files.
    """
    found: dict[Path, Given] = {}
    for source in sources:
        given = [item for path in _paths(source) for item in _given_at(path)]
        if not given:
            raise NotFoundError(f"{source}: expected files, a folder or a pattern, found none")
        for item in given:
            found.setdefault(item.path.resolve(), item)
    return sorted(found.values(), key=lambda item: item.path.absolute())


def _paths(source: str) -> list[Path]:
    path = Path(source)
    if source and path.exists():
        return [path]
    return match_pattern(source)


def _given_at(path: Path) -> list[Given]:
    if path.is_file():
        kind = kind_of(path)
        return [Given(path, kind, (path,))]
    if not path.is_dir():
        return []
    if (path / "zarr.json").exists():
        return [Given(path, "store")]
    if all((path / name).is_file() for name in DATASET):
        return [Given(path, "Arrow", _dataset_files(path))]
    return _given_in(path)


def _dataset_files(folder: Path) -> tuple[Path, ...]:
    """Return the Arrow files of a saved dataset; raises CorruptError where its state is wrong.

    The library datasets leave others there: what it computed (cache-*), shards of older saves.
    """
    listed = _state_of(folder).get("_data_files")
    if listed is None:
        files = sorted(folder.glob("*.arrow"))
        return tuple(file for file in files if not file.name.startswith("cache-"))
    entries = listed if isinstance(listed, list) else [listed]
    names = [entry.get("filename") if isinstance(entry, dict) else entry for entry in entries]
    return tuple(_data_file(folder, name) for name in names)


def _state_of(folder: Path) -> dict[str, Any]:
    path = folder / STATE
    with path.open("rb") as file:
        text = file.read(MAX_STATE_BYTES + 1)
    if len(text) > MAX_STATE_BYTES:
        raise CorruptError(f"{path}: expected at most {MAX_STATE_BYTES:,} bytes, found more")
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path}: expected JSON, found {error}; save it again") from error
    if not isinstance(state, dict):
        raise CorruptError(f"{path}: expected a JSON object, found {type(state).__name__}")
    return state


def _data_file(folder: Path, name: object) -> Path:
    """Return a file that the state names, which is in the folder itself."""
    is_plain = isinstance(name, str) and name == PurePath(name).name and "\\" not in name
    if is_plain and (folder / str(name)).is_file():
        return folder / str(name)
    raise CorruptError(
        f"{folder / STATE}: expected names of files in its folder, found {name!r:.100}; "
        "copy the folder again"
    )


def _given_in(folder: Path) -> list[Given]:
    """Return what a folder and those in it hold; tables only where there is nothing else."""
    given: list[Given] = []
    texts: list[Given] = []
    arrays: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            given += _given_at(path) if not path.is_symlink() else []
            continue
        if not path.is_file():  # a pipe, or a link to nothing
            continue
        item = Given(path, kind_of(path), (path,))
        if item.kind == "unknown":
            continue
        if item.kind == "npy":
            arrays.append(path)
        elif item.kind in ("JSON lines", "text"):
            texts.append(item)
        else:
            given.append(item)
    if arrays:
        given.append(Given(folder, "npy", tuple(arrays)))
    return given or [item for item in texts if item.kind == "JSON lines"]


def kind_of(path: Path) -> str:
    """Return the kind of a file (see `Given`), from its first bytes, and for text from its name."""
    with path.open("rb") as file:
        first = file.read(LOOKED_AT)
    if path.name.endswith(SAFETENSORS):
        return "safetensors"
    for magic, kind in MAGICS.items():
        if first.startswith(magic):
            return kind
    if first[8:9] == b"{" and not _is_text(first):
        return "safetensors"
    if _is_named(path, TEXT_SUFFIXES) or (not _is_named(path, OLD_SUFFIXES) and _is_text(first)):
        return "JSON lines" if first.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] == b"{" else "text"
    try:
        kind = kind_of_file(path)
    except CorruptError:
        return "text" if _is_text(first) else "unknown"
    may_be_npz = kind == "torch" and not _is_named(path, OLD_SUFFIXES)
    return "npz" if may_be_npz and is_npz(path) else kind


def _is_named(path: Path, suffixes: Iterable[str]) -> bool:
    return path.name.lower().endswith(tuple(suffixes))


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


def open_contents(given: Given, max_bytes: int) -> Contents:
    """Open arrays or a table, of which no array may take more than `max_bytes` of memory.

    Raises
    ------
    StoreError
        It is damaged, or of a kind without keys; the message does not name the file.
    """
    match given.kind:
        case "safetensors":
            return SafetensorsFile(given.path)
        case "npy":
            return NpyFolder(given.path, list(given.files), max_bytes)
        case "Arrow":
            return ArrowFile(given.path, list(given.files))
        case "JSON lines":
            return JsonLinesFile(given.path)
    if given.kind not in UNPACKED:
        raise SchemaError(f"expected {READ}, found {describe(given.kind)}")
    return UNPACKED[given.kind](given.path, max_bytes)


def describe(kind: str) -> str:
    """Return a kind as a message says it."""
    return {"text": "a text file", "unknown": "none of these"}.get(kind, f"a {kind} file")
