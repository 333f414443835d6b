"""`python -m store project`: coordinates of every trace, for a map of states."""

import argparse
from collections.abc import Mapping
from typing import Any

from store.cli.progress import Progress
from store.read.store import TraceStore
from store.reports import count, say
from store.transform.project import plan_projection, project_column
from store.transform.projection import Projection
from store.write.space import check_space
from store.write.writer import StoreWriter

__all__ = ["run_project"]


def run_project(args: argparse.Namespace) -> int:
    """Add the column, or say that it is there."""
    projection = Projection(
        args.column, args.layer, args.method, args.dimensions, args.sample, args.seed
    )
    store = TraceStore.open(args.store)
    plan = plan_projection(store, projection, args.name, replace=args.replace)
    if plan.is_there:
        say(f"{args.store}: has {plan.name} already, made the same way: nothing to do")
        return 0
    check_space(args.store, len(store) * plan.column.item_bytes, ignore=args.ignore_space)
    progress = Progress(
        lambda done: done / plan.n_reads, lambda done: f"{done:,} rows read", "rows"
    )
    with progress, StoreWriter.open(args.store) as writer:
        made = project_column(
            writer, projection, plan.name, replace=args.replace, progress=progress
        )
    say(f"{args.store}: {plan.name} of {count(made['rows'], 'trace')} added; {_report(made)}")
    return 0


def _report(made: Mapping[str, Any]) -> str:
    """How much of the states the coordinates show, and which traces have none."""
    states = made["column"]
    if made["layer"] is not None:
        states = f"{states}, layer {made['layer']}"
    shares = made["explained_variance"]
    fitted = count(made["rows_fitted"], "trace")
    if made["method"] == "umap":
        text = (
            f"UMAP of {count(len(shares), 'principal component')} of {states}, which have "
            f"{sum(shares):.1%} of the variance in a sample of {fitted}"
        )
    else:
        listed = ", ".join(f"{share:.1%}" for share in shares)
        text = f"the principal components of {states} have {listed} of the variance in {fitted}"
    n_missing = made["rows_not_finite"]
    if n_missing:
        text += f"; {count(n_missing, 'trace')} whose states are not finite: NaN"
    return text
