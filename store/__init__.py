"""A columnar store for traces of language models: standard Zarr v3 on disk, read by memory map.

The public names are here; `python -m store --help` lists the commands. `schema.py` specifies the format.
"""

from store.batch import Batch, Ragged, Row
from store.dataset import TraceDataset
from store.errors import (
    CorruptError,
    FormatError,
    IncompleteError,
    LockedError,
    NotFoundError,
    RefusedError,
    SchemaError,
    StoreError,
    VersionError,
)
from store.loader import TraceLoader
from store.order import GlobalShuffleSampler, permutation
from store.reader import TraceStore
from store.schema import Column, Schema
from store.trace import Trace
from store.writer import StoreWriter

__all__ = [
    "Batch",
    "Column",
    "CorruptError",
    "FormatError",
    "GlobalShuffleSampler",
    "IncompleteError",
    "LockedError",
    "NotFoundError",
    "Ragged",
    "RefusedError",
    "Row",
    "Schema",
    "SchemaError",
    "StoreError",
    "StoreWriter",
    "Trace",
    "TraceDataset",
    "TraceLoader",
    "TraceStore",
    "VersionError",
    "permutation",
]
