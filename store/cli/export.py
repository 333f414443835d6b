"""`python -m store export`: a table of a store's texts and numbers."""

import argparse
from collections.abc import Sequence

from store.cli.progress import Progress
from store.read.store import TraceStore
from store.reports import say
from store.transform.export import export_table
from store.transform.subset import read_ids, rows_of_ids

__all__ = ["run_export"]


def run_export(args: argparse.Namespace) -> int:
    """Export."""
    store = TraceStore.open(args.store, check=True)
    rows: Sequence[int] = range(len(store))
    if args.ids is not None:
        rows = rows_of_ids(store, read_ids(args.ids))
    with Progress(lambda done: done / max(1, len(rows))) as progress:
        columns = export_table(
            store,
            args.to,
            args.columns,
            rows,
            overwrite=args.overwrite,
            escape_formulas=args.escape_formulas,
            progress=progress,
        )
    say(f"{args.to}: {len(rows):,} traces, columns {', '.join(columns)}")
    return 0
