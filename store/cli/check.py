"""`python -m store verify` and `repair`."""

import argparse
import json

from store.check.repair import plan_repair, repair_store
from store.check.verify import verify_store
from store.cli.arguments import as_called
from store.cli.inspect import size_text
from store.cli.progress import Progress
from store.read.cache_dir import address_of

__all__ = ["run_repair", "run_verify"]


def run_verify(args: argparse.Namespace) -> int:
    """Verify a store; return 1 if it has a problem."""
    with Progress(_share, _gigabytes, "MB", 1e6) as progress:
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
    print(as_called("\n".join([head, *lines])))
    return status


def run_repair(args: argparse.Namespace) -> int:
    """Repair a store, or print the plan and return 1 if there is something to do."""
    with Progress(_share, _gigabytes, "MB", 1e6) as progress:
        plan = plan_repair(args.store, progress, args.drop_columns)
    lines = [f"{args.store}: {plan.headline()}", *plan.lines(args.store)]
    print(as_called("\n".join(lines)))
    if not args.yes:
        return int(plan.has_work)
    with Progress(lambda done: done / max(1, plan.report.rows)) as progress:
        store = repair_store(args.store, plan, progress)
    print(f"{args.store}: repaired, {len(store):,} traces")
    return 0


def _share(n_done: int, n_bytes: int) -> float:
    return n_done / max(1, n_bytes)


def _gigabytes(n_done: int, n_bytes: int) -> str:
    return f"{n_done / 1e9:.1f} of {n_bytes / 1e9:.1f} GB"
