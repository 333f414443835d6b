"""Opens a file of arrays or a table by its kind."""

from store.errors import SchemaError
from store.importers.arrays.contents import Contents
from store.importers.arrays.hdf5 import Hdf5File
from store.importers.arrays.numpy_files import NpyFolder, NpzFile
from store.importers.arrays.pickled import open_pickled
from store.importers.arrays.safetensors import SafetensorsFile
from store.importers.arrays.tables import ArrowFile, JsonLinesFile, ParquetFile
from store.importers.files import PICKLES, Given, describe

__all__ = ["READ", "open_contents"]

READ = ".npz, .npy, .safetensors, Arrow, Parquet, HDF5, JSON lines, pickles or .pt of arrays"


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
        case "npz":
            return NpzFile(given.path, max_bytes)
        case "npy":
            return NpyFolder(given.path, given.files, max_bytes)
        case "Arrow":
            return ArrowFile(given.path, given.files)
        case "Parquet":
            return ParquetFile(given.path, max_bytes)
        case "HDF5":
            return Hdf5File(given.path, max_bytes)
        case "JSON lines":
            return JsonLinesFile(given.path)
        case kind if kind in PICKLES:
            return open_pickled(given, max_bytes)
    raise SchemaError(f"expected {READ}, found {describe(given.kind)}")
