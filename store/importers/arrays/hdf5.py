"""HDF5 files, by h5py: each dataset is an array, with its path in the file as the key.

Only datasets in the file itself are read: links to others are not followed, and data that lies in
other files is refused.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import RefusedError, SchemaError
from store.extras import needs_extra
from store.importers.arrays.contents import LIST, TEXT, Arrays, Key, StoredArray, check_bytes
from store.importers.damage import damage

__all__ = ["check_inside", "open_file", "open_hdf5"]

BLOCK = 256  # values of variable length at once


def open_hdf5(path: Path, max_bytes: int) -> Arrays:
    """Open the datasets of one file, none of which may unpack to more than `max_bytes`."""
    arrays = {}
    names: list[str] = []
    with open_file(path) as file:
        file.visit(names.append)  # follows no link that leads out of the file
        for name in names:
            dataset = file[name]
            if not hasattr(dataset, "dtype"):
                continue
            check_inside(dataset)
            check_bytes(dataset.nbytes, max_bytes, name)
            read = partial(_read_dataset, path, name, max_bytes)
            kind = _kind(dataset.dtype)
            arrays[name] = StoredArray(Key(kind, tuple(dataset.shape or ())), read)
    return Arrays(path, "HDF5", arrays)


def check_inside(dataset: Any) -> None:
    """Raise RefusedError for a dataset whose data lie in other files."""
    if dataset.is_virtual or dataset.external:
        raise RefusedError(
            f"{dataset.name[1:]!r:.80}: expected data in this file, found it in others; copy it"
        )


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """A file of h5py; what is wrong with its bytes is a StoreError."""
    with needs_extra("arrays", "expected the extra arrays to read HDF5 files: "):
        import h5py
    with damage(), h5py.File(path, "r") as file:
        yield file


def _kind(dtype: np.dtype) -> str:
    import h5py

    inner = h5py.check_vlen_dtype(dtype)
    if h5py.check_string_dtype(dtype) is not None:
        return TEXT
    return dtype.name if inner is None or inner.hasobject else LIST


def _read_dataset(path: Path, key: str, max_bytes: int) -> Any:
    """Return an array, unpacked into memory."""
    with open_file(path) as file:
        dataset = file[key]
        if not dataset.dtype.hasobject:
            return dataset[()]
        if _kind(dataset.dtype) not in (TEXT, LIST):
            raise SchemaError(
                f"{key!r:.80}: expected numbers, texts or lists of numbers, found "
                f"{dataset.dtype.name}; leave it out of the map"
            )
        # a value is whole in the file, and may be there once for many
        step = min(BLOCK, max(1, max_bytes // path.stat().st_size))
        return _unpack(dataset, step, max_bytes) if dataset.shape else dataset[()]


def _unpack(dataset: Any, step: int, max_bytes: int) -> np.ndarray:
    """Return values of variable length, read so many at once; raises SchemaError for too many."""
    values = np.empty(dataset.shape, object)
    *most, last = dataset.shape
    n_bytes = 0
    for *place, i in np.ndindex(*most, math.ceil(last / step)):
        block = (*place, slice(i * step, (i + 1) * step))
        values[block] = dataset[block]
        n_bytes += sum(getattr(value, "nbytes", len(value)) for value in values[block])
        check_bytes(n_bytes, max_bytes, dataset.name)
    return values
