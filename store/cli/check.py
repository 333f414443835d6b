"""`python -m store verify` and `repair`."""

import argparse
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from store.check.repair import plan_repair, repair_store
from store.check.verify import verify_store
from store.cli.arguments import as_called
from store.cli.inspect import size_text
from store.cli.progress import Progress, share_of_bytes
from store.errors import StoreError
from store.launch.job import parts_folder
from store.read.cache_dir import address_of
from store.read.store import TraceStore
from store.reports import say

__all__ = ["run_repair", "run_verify"]


def run_verify(args: argparse.Namespace) -> int:
    """Verify a store; return 1 if it has a problem."""
    with Progress(share_of_bytes, _gigabytes, "MB", 1e6) as progress:
        report = verify_store(args.store, quick=args.quick, progress=progress)
    status = 1 if report.problems else 0
    if args.json:
        found = {"store": address_of(args.store) or str(args.store)} | report.to_json()
        print(json.dumps(found, indent=1))
        return status
    checked = f"{size_text(report.bytes)} checked"
    if args.quick:
        checked = "quick: chunks were not read"
    remarks = [f"{report.rows:,} traces, {checked}"]
    if report.writer:
        remarks.append("a writer is at work; rows that it has yet to commit were not checked")
    lines = report.all_lines() if args.verbose else report.lines()
    head = f"{address_of(args.store) or args.store}: {report.headline()} ({'; '.join(remarks)})"
    say(as_called("\n".join([head, *lines])))
    return status


def run_repair(args: argparse.Namespace) -> int:
    """Repair a store, or print the plan and return 1 if there is something to do."""
    others = chain([TraceStore.open(path) for path in args.copies], _parts_beside(args.store))
    with Progress(share_of_bytes, _gigabytes, "MB", 1e6) as progress:
        plan = plan_repair(args.store, progress, args.drop_columns, others)
    lines = [f"{args.store}: {plan.headline()}", *plan.lines(args.store)]
    say(as_called("\n".join(lines)))
    if not args.yes:
        return int(plan.has_work)
    with Progress(lambda done: done / max(1, plan.report.rows)) as progress:
        store = repair_store(args.store, plan, progress)
    say(f"{args.store}: repaired, {len(store):,} traces")
    return 0


def _parts_beside(path: Path) -> Iterator[TraceStore]:
    """The parts that a launch made a store of, if they are still where it makes them."""
    for part in sorted(parts_folder(path.resolve()).glob("*.zarr")):
        with suppress(StoreError):  # nobody named it, and it may be made just now
            yield TraceStore.open(part)


def _gigabytes(n_done: int, n_bytes: int) -> str:
    return f"{n_done / 1e9:.1f} of {n_bytes / 1e9:.1f} GB"
