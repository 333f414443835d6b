"""The files of arrays that are read: how each begins and is opened. A new one is one line here."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from store.importers.arrays.array_files import open_hdf5, open_npy, open_npz, open_safetensors
from store.importers.arrays.contents import Contents
from store.importers.arrays.tables import open_arrow, open_parquet

__all__ = ["ARRAYS", "LISTED"]


class Format(NamedTuple):
    """One format; it is opened by a path, the files there, and the most bytes of an array."""

    name: str  # in a list of all
    open: Callable[[Path, Sequence[Path], int], Contents]
    magics: tuple[bytes, ...] = ()  # first bytes that tell it from others


ARRAYS = {  # by kind, as of `Given`
    "npz": Format(".npz", lambda path, _, limit: open_npz(path, limit)),
    "npy": Format(".npy", open_npy, (b"\x93NUMPY",)),
    "safetensors": Format(".safetensors", lambda path, *_: open_safetensors(path)),
    "Arrow": Format(
        "Arrow", lambda path, files, _: open_arrow(path, files), (b"ARROW1", b"\xff" * 4)
    ),
    "Parquet": Format("Parquet", lambda path, _, limit: open_parquet(path, limit), (b"PAR1",)),
    "HDF5": Format("HDF5", lambda path, _, limit: open_hdf5(path, limit), (b"\x89HDF\r\n\x1a\n",)),
}
LISTED = ", ".join(form.name for form in ARRAYS.values())
