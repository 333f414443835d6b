"""`python -m store import`, `merge` and `subset`: stores made of files, and of stores."""

import argparse
import hashlib

from store.cli import label
from store.cli.progress import Progress
from store.read.store import TraceStore
from store.reports import NOTHING_TO_DO, count
from store.sources.copies import (
    merge_stores,
    read_ids,
    rows_of_ids,
    rows_of_questions,
    rows_of_split,
    subset_provenance,
)
from store.sources.legacy.files import find_files
from store.sources.legacy.imports import ImportSource
from store.write.build import build_store, open_begun, partial_path
from store.write.copy import CopySource
from store.write.space import SpaceCheck, bytes_of_rows, bytes_under, check_space

__all__ = ["run_import", "run_merge", "run_subset"]

LOOK_AFTER = 32  # rows of an import, to see whether its disk can hold all of them


def run_import(args: argparse.Namespace) -> int:
    """Import; 1 if something was left out."""
    files = find_files(args.sources)
    scores = label.read_given_scores(args)
    if scores is not None:
        print("\n".join(label.understood_lines(scores, args.score_threshold)), flush=True)
    source = ImportSource(
        files,
        scores,
        score_threshold=args.score_threshold,
        columns=args.columns,
        keep_attention=args.keep_attention,
        attn_threshold=args.attn_threshold,
        part=args.part,
        begun=open_begun(args.store),
        max_bytes=int(args.max_file_gb * 1e9),
    )
    report = source.report
    there = args.store.exists()

    def share(n_rows: int) -> float:
        return report.bytes_done / max(1, report.bytes_all)

    space = SpaceCheck(args.store, share, LOOK_AFTER, ignore=args.ignore_space)
    with Progress(share) as progress:
        build_store(args.store, source, progress, command=args.typed, space=space)
    print(report.summary(args.store))
    if scores is not None:
        print("\n".join(label.outcome_lines(TraceStore.open(args.store))))
    if there:
        print(NOTHING_TO_DO)
    return int(not report.whole)


def run_merge(args: argparse.Namespace) -> int:
    """Merge."""
    # a copy would hide what is damaged
    stores = [TraceStore.open(path, check=True) for path in args.sources]
    n_rows = sum(map(len, stores))
    there = args.store.exists()
    if not there:
        needed = sum(bytes_under(store.path) for store in stores) - bytes_under(
            partial_path(args.store)
        )
        check_space(args.store, needed, ignore=args.ignore_space)
    with Progress(lambda done: done / max(1, n_rows)) as progress:
        made = merge_stores(args.store, stores, progress, mixed=args.mixed, command=args.typed)
    print(f"{args.store}: {count(len(made), 'trace')} of {count(len(stores), 'store')}")
    if there:
        print(NOTHING_TO_DO)
    return 0


def run_subset(args: argparse.Namespace) -> int:
    """Choose traces."""
    store = TraceStore.open(args.source, check=True)  # a copy would hide what is damaged
    if args.ids:
        rows, chosen = rows_of_ids(store, read_ids(args.ids)), {"by": "ids"}
    elif args.questions:
        rows, chosen = rows_of_questions(store, read_ids(args.questions)), {"by": "questions"}
    else:
        rows, chosen = (
            rows_of_split(store, args.split, args.seed),
            # "side": the key's name in stores that exist
            {"by": "split", "side": args.split, "seed": args.seed},
        )
    digest = hashlib.sha256(repr(rows).encode()).hexdigest()
    chosen |= {"rows": len(rows), "rows_sha256": digest}
    source = CopySource([(store, rows)], subset_provenance(store, chosen))
    there = args.store.exists()
    if not there:
        needed = bytes_of_rows(store, rows) - bytes_under(partial_path(args.store))
        check_space(args.store, needed, ignore=args.ignore_space)
    with Progress(lambda done: done / max(1, len(rows))) as progress:
        build_store(args.store, source, progress, command=args.typed)
    print(f"{args.store}: {len(rows):,} of {count(len(store), 'trace')}")
    if there:
        print(NOTHING_TO_DO)
    return 0
