"""`python -m store derive`: columns that follow from others."""

import argparse

from store.cli.progress import Progress
from store.read.store import TraceStore
from store.reports import count
from store.sources.derive import derive_columns, plan_columns
from store.write.space import check_space
from store.write.writer import StoreWriter

__all__ = ["run_derive"]


def run_derive(args: argparse.Namespace) -> int:
    """Add the columns that are not there."""
    store = TraceStore.open(args.store)
    columns = plan_columns(store, args.columns)
    if not columns:
        print(f"{args.store}: has {', '.join(args.columns)} already: nothing to do")
        return 0
    n_bytes = len(store) * sum(column.item_bytes for column in columns.values())
    check_space(args.store, n_bytes, ignore=args.ignore_space)
    progress = Progress(lambda done: done / max(1, len(store)))
    with progress, StoreWriter.open(args.store) as writer:
        derive_columns(writer, args.columns, progress)
    print(f"{args.store}: {', '.join(columns)} of {count(len(store), 'trace')} added")
    return 0
