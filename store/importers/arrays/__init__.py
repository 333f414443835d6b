"""Opens a file of arrays or a table by its kind."""

from collections.abc import Callable

from store.errors import SchemaError
from store.importers.arrays.array_files import open_hdf5, open_npy, open_npz, open_safetensors
from store.importers.arrays.contents import Contents
from store.importers.arrays.pickled import open_pickled
from store.importers.arrays.tables import open_arrow, open_json_lines, open_parquet
from store.importers.files import PICKLES, Given, describe

__all__ = ["READ", "open_contents"]

READ = ".npz, .npy, .safetensors, Arrow, Parquet, HDF5, JSON lines, pickles or .pt of arrays"


OPENERS: dict[str, Callable[[Given, int], Contents]] = {
    "safetensors": lambda given, _: open_safetensors(given.path),
    "npz": lambda given, max_bytes: open_npz(given.path, max_bytes),
    "npy": open_npy,
    "Arrow": lambda given, _: open_arrow(given.path, given.files),
    "Parquet": lambda given, max_bytes: open_parquet(given.path, max_bytes),
    "HDF5": lambda given, max_bytes: open_hdf5(given.path, max_bytes),
    "JSON lines": lambda given, _: open_json_lines(given.path),
    **dict.fromkeys(PICKLES, open_pickled),
}


def open_contents(given: Given, max_bytes: int) -> Contents:
    """Open arrays or a table, of which no array may take more than `max_bytes` of memory.

    Raises a StoreError for a file that is damaged, or of a kind without keys; the message does not
    name it.
    """
    if given.kind not in OPENERS:
        raise SchemaError(f"expected {READ}, found {describe(given.kind)}")
    return OPENERS[given.kind](given, max_bytes)
