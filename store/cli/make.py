"""The commands of `python -m store` that make stores: import, merge, subset; those with modules of their own are added.

What only they need (pickles, torch-geometric, transformers) is imported when they run.
"""

import argparse
import hashlib

from store.cli import extract, label
from store.cli.arguments import add_columns, add_ignore_space, add_part, add_score_threshold, expand, finite, path
from store.cli.progress import Progress
from store.read.store import TraceStore
from store.reports import NOTHING_TO_DO, count
from store.sources.split import SIDES
from store.write.space import SpaceCheck, bytes_of_rows, bytes_under, check_space

__all__ = ["add_commands"]

LOOK_AFTER = 32  # rows of an import, to see whether its disk can hold all of them

IMPORT_EXAMPLES = """sources are files, folders or patterns; what is in a file is found from its content:
raw traces (.pkl, .pkl.gz) or preprocessed ones (.pt, for the LSTM and for graphs; both together are joined).

examples:
  python -m store import traces.zarr traces/ --scores ground_truth_scores.csv
  python -m store import graphs.zarr preprocessed_data/gnn preprocessed_data/lstm_solo
  python -m store import part1.zarr 'traces/*.pkl.gz' --part 1/4

Stopped, the same command goes on where it stood. Exit status 0: all read; 1: some files or records were left out.
"""

MERGE_EXAMPLES = """examples:
  python -m store merge traces.zarr part1.zarr part2.zarr part3.zarr
"""
SUBSET_EXAMPLES = """examples:
  python -m store subset few.zarr traces.zarr --ids ids.txt
  python -m store subset test.zarr traces.zarr --split test --seed 0
  python -m store subset asked.zarr traces.zarr --questions questions.txt

The split is that of python -m train with the same seed; unlabelled traces come along.
"""


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add them to the parser of `python -m store`."""
    _add_import(commands)
    raw = argparse.RawDescriptionHelpFormatter
    merge = commands.add_parser("merge", help="make one store of several", epilog=MERGE_EXAMPLES, formatter_class=raw)
    merge.add_argument("store", metavar="OUT", type=path, help="the store to make")
    merge.add_argument(
        "sources", metavar="STORE", nargs="+", type=path, help="stores of the same columns, no id in two"
    )
    merge.add_argument("--mixed", action="store_true", help="take traces of other models or layers, too")
    add_ignore_space(merge)
    merge.set_defaults(run=run_merge)

    subset = commands.add_parser(
        "subset", help="make a store of some traces of another", epilog=SUBSET_EXAMPLES, formatter_class=raw
    )
    subset.add_argument("store", metavar="OUT", type=path, help="the store to make")
    subset.add_argument("source", metavar="STORE", type=path, help="the store to choose from")
    which = subset.add_mutually_exclusive_group(required=True)
    which.add_argument("--ids", metavar="FILE", type=path, help="trace ids, one a line, in the order wanted")
    which.add_argument("--questions", metavar="FILE", type=path, help="question ids, one a line: all their traces")
    which.add_argument("--split", choices=SIDES, help="the questions on this side of the split")
    subset.add_argument("--seed", type=int, default=0, help="of the split (default %(default)s)")
    add_ignore_space(subset)
    subset.set_defaults(run=run_subset)

    label.add_commands(commands)
    extract.add_command(commands)


def _add_import(commands: argparse._SubParsersAction) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    made = commands.add_parser(
        "import", help="make a store of pickled or preprocessed traces", epilog=IMPORT_EXAMPLES, formatter_class=raw
    )
    made.add_argument("store", metavar="OUT", type=path, help="the store to make")
    made.add_argument("sources", metavar="SOURCE", nargs="+", type=expand, help="files, folders or patterns")
    made.add_argument(
        "--scores",
        metavar="FILE",
        type=path,
        help="scores or labels by question_id or trace_id, which alone decide the labels; read as "
        "python -m store label --help says",
    )
    label.add_score_columns(made)
    add_score_threshold(made)
    add_columns(made)
    made.add_argument("--keep-attention", action="store_true", help="keep the full attention maps, too (large)")
    made.add_argument(
        "--attn-threshold",
        type=finite,
        help="what graphs were built with (default: found, on the safe side)",
    )
    add_part(made, "file")
    made.add_argument(
        "--max-file-gb", type=finite, default=16, help="refuse files that unpack to more (default %(default)s)"
    )
    add_ignore_space(made)
    made.set_defaults(run=run_import)


def run_import(args: argparse.Namespace) -> int:
    """Import; 1 if something was left out."""
    from store.sources.legacy.files import find_files
    from store.sources.legacy.imports import ImportSource
    from store.write.build import build_store, open_begun

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
    if there:
        print(NOTHING_TO_DO)
    return int(not report.whole)


def run_merge(args: argparse.Namespace) -> int:
    """Merge."""
    from store.sources.copies import merge_stores
    from store.write.build import partial_path

    stores = [TraceStore.open(path) for path in args.sources]
    n_rows = sum(map(len, stores))
    there = args.store.exists()
    if not there:
        needed = sum(bytes_under(store.path) for store in stores) - bytes_under(partial_path(args.store))
        check_space(args.store, needed, ignore=args.ignore_space)
    with Progress(lambda done: done / max(1, n_rows)) as progress:
        made = merge_stores(args.store, stores, progress, mixed=args.mixed, command=args.typed)
    print(f"{args.store}: {count(len(made), 'trace')} of {count(len(stores), 'store')}")
    if there:
        print(NOTHING_TO_DO)
    return 0


def run_subset(args: argparse.Namespace) -> int:
    """Choose traces."""
    from store.sources.copies import (
        read_ids,
        rows_of_ids,
        rows_of_questions,
        rows_of_side,
        subset_provenance,
    )
    from store.write.build import build_store, partial_path
    from store.write.copy import CopySource

    store = TraceStore.open(args.source)
    if args.ids:
        rows, chosen = rows_of_ids(store, read_ids(args.ids)), {"by": "ids"}
    elif args.questions:
        rows, chosen = rows_of_questions(store, read_ids(args.questions)), {"by": "questions"}
    else:
        rows, chosen = (
            rows_of_side(store, args.split, args.seed),
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
