"""`python -m store import`, `merge` and `subset`: stores made from files and from stores."""

import argparse
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from store.cli.arguments import as_called
from store.cli.arrays import import_source, run_inspect
from store.cli.inspect import size_text
from store.cli.parts import left_out_lines, part_warnings, parts_to_merge, publish_part
from store.cli.progress import Progress
from store.cli.scores import read_given_scores, understood_lines
from store.errors import SchemaError
from store.importers.source import FileSource
from store.labels.report import label_lines, stored_counts
from store.labels.score_table import ScoreTable
from store.read.store import TraceStore
from store.reports import count, say
from store.transform.merge import merge_stores
from store.transform.subset import (
    read_ids,
    rows_of_ids,
    rows_of_questions,
    rows_of_split,
    subset_provenance,
)
from store.write.build import build_store, partial_path
from store.write.copy import CopySource
from store.write.link import Linked, linked_columns
from store.write.space import SpaceCheck, bytes_of_rows, bytes_under, check_space, same_disk

__all__ = ["run_import", "run_merge", "run_subset"]

SMALL_SHARD_BYTES = 16 * 1024 * 1024
LOOK_AFTER = 32  # rows of an import after which the space for all of them is estimated


def run_import(args: argparse.Namespace) -> int:
    """Import traces, or inspect files; return 1 if some were left out."""
    if args.inspect:
        return run_inspect(args)
    if not args.sources:
        raise SchemaError("expected files to import after OUT, found none")
    return _build(args, import_source(args, lambda: _read_scores(args)))


def _read_scores(args: argparse.Namespace) -> ScoreTable | None:
    """Read the file of scores, if there is one, and print how it was understood."""
    scores = read_given_scores(args)
    if scores is not None:
        examples = scores.examples(args.score_threshold)
        say("\n".join(understood_lines(scores, examples, args.score_threshold)), flush=True)
    return scores


def _build(args: argparse.Namespace, source: FileSource) -> int:
    """Make a store of files; return 1 if some were left out."""
    report = source.report

    def share(n_rows: int) -> float:
        return report.bytes_done / max(1, report.bytes_all)

    space = SpaceCheck(args.store, share, LOOK_AFTER, ignore=args.ignore_space)
    with Progress(share) as progress:
        store = build_store(args.store, source, progress, command=args.typed, space=space)
    publish_part(args, store, report.n_left_out)
    say(as_called("\n".join([report.summary(args.store), *label_lines(store)])))
    return int(not report.whole)


def run_merge(args: argparse.Namespace) -> int:
    """Make one store of several; return 1 if parts are missing."""
    sources = parts_to_merge(args)
    if sources is None:
        return 1
    # a copy would hide what is damaged
    stores = [TraceStore.open(path, check=True) for path in sources]
    n_rows = sum(map(len, stores))
    linked = [] if args.copy else linked_columns(stores)
    _check_space(args, sum(_copied_bytes(store, args.store, linked) for store in stores))
    lines: list[str] = []
    with Progress(lambda done: done / max(1, n_rows)) as progress:
        store = merge_stores(
            args.store,
            stores,
            progress,
            mixed=args.mixed,
            command=args.typed,
            copy=args.copy,
            report=lambda linked: lines.extend(_linked_lines(linked)),
        )
    say(f"{args.store}: {count(len(store), 'trace')} of {count(len(stores), 'store')}")
    if args.parts:
        counts = stored_counts(store)
        lines += [] if counts is None else counts.lines
        lines += [*left_out_lines(sources), *part_warnings(sources)]
    for line in lines:
        say(as_called(line), file=sys.stderr if line.startswith("warning: ") else sys.stdout)
    return 0


def _copied_bytes(store: TraceStore, out: Path, linked: Sequence[str]) -> int:
    """About the bytes of a store that a merge writes again, if it links these columns."""
    n_bytes = bytes_under(store.path)
    if same_disk(store.path, out):
        arrays = [store.schema.layout(name).path for name in linked]
        n_bytes -= sum(bytes_under(store.path / array) for array in arrays)
    return n_bytes


def _linked_lines(linked: Linked) -> Iterator[str]:
    """What a merge by reference shares, and warnings where it could not or should not."""
    if linked.n_linked:
        size = size_text(linked.linked_bytes)
        yield f"  {count(linked.n_linked, 'file')} shared with the stores, {size}: not copied"
    if linked.n_copied:
        size = size_text(linked.copied_bytes)
        yield (
            f"warning: {count(linked.n_copied, 'file')} of the stores copied, {size}: the file "
            f"system cannot link them ({linked.reason})"
        )
    if linked.rewritten:
        names = ", ".join(linked.rewritten)
        yield f"warning: {names} copied: the stores differ in its chunks, shards or compression"
    if linked.n_files and linked.file_bytes < SMALL_SHARD_BYTES:
        yield (
            f"warning: the shared files have {size_text(round(linked.file_bytes))} on average, "
            "and many small ones are slow to read; python -m store merge --copy makes large ones"
        )


def run_subset(args: argparse.Namespace) -> int:
    """Make a store of some traces of another."""
    store = TraceStore.open(args.source, check=True)  # a copy would hide what is damaged
    chosen: dict[str, object]
    if args.ids:
        rows = rows_of_ids(store, read_ids(args.ids))
        chosen = {"by": "ids"}
    elif args.questions:
        rows = rows_of_questions(store, read_ids(args.questions))
        chosen = {"by": "questions"}
    else:
        rows = rows_of_split(store, args.split, args.seed)
        # "side": the key's name in stores that exist
        chosen = {"by": "split", "side": args.split, "seed": args.seed}
    digest = hashlib.sha256(repr(rows).encode()).hexdigest()
    chosen |= {"rows": len(rows), "rows_sha256": digest}
    source = CopySource([(store, rows)], subset_provenance(store, chosen))
    _check_space(args, bytes_of_rows(store, rows))
    with Progress(lambda done: done / max(1, len(rows))) as progress:
        build_store(args.store, source, progress, command=args.typed)
    say(f"{args.store}: {len(rows):,} of {count(len(store), 'trace')}")
    return 0


def _check_space(args: argparse.Namespace, n_bytes: int) -> None:
    """Refuse to make a store of so many bytes that cannot fit; part of it may be there already."""
    if not args.store.exists():
        present = bytes_under(partial_path(args.store))
        check_space(args.store, n_bytes - present, ignore=args.ignore_space)
