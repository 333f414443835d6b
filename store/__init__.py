"""A columnar store for traces of language models: standard Zarr v3 on disk, read by memory map.

The public names are here; `python -m store --help` lists the commands. `schema.py` specifies the format.

A name is imported when it is first asked for, so that what needs no tensors (errors, layers, splits) takes no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_WHERE = {
    "Batch": "store.batch",
    "Column": "store.schema",
    "GlobalShuffleSampler": "store.order",
    "Ragged": "store.batch",
    "Row": "store.batch",
    "Schema": "store.schema",
    "StoreWriter": "store.writer",
    "Trace": "store.trace",
    "TraceDataset": "store.dataset",
    "TraceLoader": "store.loader",
    "TraceStore": "store.reader",
    "permutation": "store.order",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module, and keep it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_WHERE.get(name, "store.errors")), name)
    globals()[name] = found
    return found
