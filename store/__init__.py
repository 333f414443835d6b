"""A columnar store for traces of language models: standard Zarr v3 on disk, read by memory map.

The public names are here; `python -m store --help` lists the commands. `docs/format.md` specifies
the format.

A name is imported when it is first asked for, so that what needs no tensors (errors, layers,
splits) takes no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store.errors import (
        CorruptError,
        FormatError,
        IncompleteError,
        LockedError,
        NotFoundError,
        RefusedError,
        SchemaError,
        StoreError,
        UnreachableError,
        VersionError,
    )
    from store.feed.dataset import TraceDataset
    from store.feed.loader import TraceLoader
    from store.feed.order import permutation
    from store.feed.sampler import GlobalShuffleSampler
    from store.feed.token_loader import TokenLoader
    from store.format.schema import Column, Schema
    from store.read.batches.batch import Batch, Row
    from store.read.batches.tensors import Ragged
    from store.read.plan import RowRanges
    from store.read.store import Trace, TraceStore
    from store.write.writer import StoreWriter

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
    "RowRanges",
    "Schema",
    "SchemaError",
    "StoreError",
    "StoreWriter",
    "TokenLoader",
    "Trace",
    "TraceDataset",
    "TraceLoader",
    "TraceStore",
    "UnreachableError",
    "VersionError",
    "permutation",
]

_WHERE = {
    "Batch": "store.read.batches.batch",
    "Column": "store.format.schema",
    "GlobalShuffleSampler": "store.feed.sampler",
    "Ragged": "store.read.batches.tensors",
    "Row": "store.read.batches.batch",
    "RowRanges": "store.read.plan",
    "Schema": "store.format.schema",
    "StoreWriter": "store.write.writer",
    "TokenLoader": "store.feed.token_loader",
    "Trace": "store.read.store",
    "TraceDataset": "store.feed.dataset",
    "TraceLoader": "store.feed.loader",
    "TraceStore": "store.read.store",
    "permutation": "store.feed.order",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module, and keep it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from store.extras import needs_extra

    with needs_extra("train", f"store.{name}: "):
        found = getattr(import_module(_WHERE.get(name, "store.errors")), name)
    globals()[name] = found
    return found
