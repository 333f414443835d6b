"""HDF5 files, by h5py: each dataset is an array, with its path in the file as the key.

Only datasets in the file itself are read: links to others are not followed, and data that lies in
other files is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store.errors import RefusedError
from store.extras import needs_extra
from store.sources.arrays.contents import LIST, TEXT, ArrayFile, Key, check_bytes
from store.sources.arrays.numpy_files import damage

__all__ = ["Hdf5File"]


class Hdf5File(ArrayFile):
    """The datasets of one file, none of which may unpack to more than `max_bytes`."""

    kind = "HDF5"

    def __init__(self, path: Path, max_bytes: int) -> None:
        names: list[str] = []
        with _open(path) as file:
            file.visit(names.append)  # follows no link that leads out of the file
            found = {name: file[name] for name in names}
            datasets = {name: item for name, item in found.items() if hasattr(item, "dtype")}
            keys = {name: _key(item, name, max_bytes) for name, item in datasets.items()}
        super().__init__(path, keys)

    def read(self, key: str) -> Any:
        """Return an array, unpacked into memory."""
        with _open(self.path) as file:
            return file[key][()]


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    with needs_extra("arrays", "expected the extra arrays to read HDF5 files: "):
        import h5py
    with damage(), h5py.File(path, "r") as file:
        yield file


def _key(dataset: Any, name: str, max_bytes: int) -> Key:
    import h5py

    if dataset.is_virtual or dataset.external:
        raise RefusedError(f"{name!r:.80}: expected data in this file, found it in others; copy it")
    check_bytes(dataset.nbytes, max_bytes, name)
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    is_ragged = h5py.check_vlen_dtype(dataset.dtype) is not None
    dtype = TEXT if is_text else LIST if is_ragged else dataset.dtype.name
    return Key(dtype, tuple(dataset.shape or ()))
