"""Opens a file of arrays or a table by its kind."""

from store.errors import SchemaError
from store.importers.arrays.contents import Contents
from store.importers.arrays.hdf5 import open_hdf5
from store.importers.arrays.numpy_files import open_npy, open_npz
from store.importers.arrays.pickled import open_pickled
from store.importers.arrays.safetensors import open_safetensors
from store.importers.arrays.tables import open_arrow, open_json_lines, open_parquet
from store.importers.files import PICKLES, Given, describe

__all__ = ["READ", "open_contents"]

READ = ".npz, .npy, .safetensors, Arrow, Parquet, HDF5, JSON lines, pickles or .pt of arrays"


def open_contents(given: Given, max_bytes: int) -> Contents:
    """Open arrays or a table, of which no array may take more than `max_bytes` of memory.

    Raises a StoreError for a file that is damaged, or of a kind without keys; the message does not
    name it.
    """
    match given.kind:
        case "safetensors":
            return open_safetensors(given.path)
        case "npz":
            return open_npz(given.path, max_bytes)
        case "npy":
            return open_npy(given, max_bytes)
        case "Arrow":
            return open_arrow(given.path, given.files)
        case "Parquet":
            return open_parquet(given.path, max_bytes)
        case "HDF5":
            return open_hdf5(given.path, max_bytes)
        case "JSON lines":
            return open_json_lines(given.path)
        case kind if kind in PICKLES:
            return open_pickled(given, max_bytes)
    raise SchemaError(f"expected {READ}, found {describe(given.kind)}")
