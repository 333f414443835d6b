"""`python -m store merge`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from store.cli import shared_options
from store.cli.arguments import as_called, path
from store.cli.command import Command, argument, flag, option
from store.cli.progress import Progress
from store.errors import NotFoundError, SchemaError
from store.labels.report import label_lines
from store.launch.completed_parts import find_parts, numbers_text, read_record, record_path
from store.read.store import TraceStore
from store.reports import count, say, size_text
from store.transform.merge import merge_stores
from store.write.build import partial_path
from store.write.link import Linked, linked_columns
from store.write.space import bytes_under, check_space, same_disk

__all__ = ["Merge", "check_new_space"]

SMALL_SHARD_BYTES = 16 * 1024 * 1024
EXAMPLES = """\
The stores must have the same columns but for fields, which are empty (texts) or NaN where a store
lacks them, and no trace id twice; --shared takes the columns that all of them have. Their large
files are not copied: OUT gets second names for them (hard links), and all of the stores stay whole,
whichever is removed or appended to. On another file system they are copied. Stopped, the same
command continues where it stopped; finished, it does nothing.

examples:
  python -m store merge traces.zarr part1.zarr part2.zarr part3.zarr
  python -m store merge traces.zarr --parts parts/
  python -m store merge --copy compact.zarr traces.zarr
  python -m store merge --shared all.zarr extracted.zarr kept.zarr
"""


class _Instead(argparse.Action):
    """An option that stands for positional arguments, which are then not required.

    As arguments that may be absent (`*`) they would not be found behind an option: `OUT --mixed A`.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: object,
        *_: object,
    ) -> None:
        setattr(namespace, self.dest, value)
        (stores,) = (action for action in parser._actions if action.dest == "sources")
        stores.required = False


class Merge(Command):
    """Make one store of several."""

    epilog = EXAMPLES
    store: Path = shared_options.OUT
    sources: list[Path] = argument("stores to merge", "STORE", path, nargs="+", default=[])
    parts: Path | None = option(
        "merge the whole parts of one command (--part K/N) in this folder, and no STORE; exit "
        "status 1 and nothing made if some are missing",
        "DIR",
        path,
        action=_Instead,
    )
    partial: bool = flag("go on without the missing parts of --parts")
    mixed: bool = flag("allow traces of different models, layers or prompts (default: refuse)")
    shared: bool = flag("leave out columns that not all stores have (default: refuse)")
    copy: bool = flag(
        "copy all traces, into files of full size that no other store shares (default: share the "
        "files)"
    )
    ignore_space: bool = shared_options.IGNORE_SPACE

    def run(self) -> int:
        """Merge; return 1 if parts are missing."""
        sources = _choose_sources(self)
        if sources is None:
            return 1
        # a copy would hide what is damaged
        stores = [TraceStore.open(path, check=True) for path in sources]
        n_rows = sum(map(len, stores))
        linked = [] if self.copy else linked_columns(stores)
        check_new_space(self, sum(_copied_bytes(store, self.store, linked) for store in stores))
        shared: list[Linked] = []
        with Progress.of_rows(n_rows) as progress:
            store = merge_stores(
                self.store,
                stores,
                progress,
                mixed=self.mixed,
                shared=self.shared,
                command=self.typed,
                copy=self.copy,
                report=shared.append,
            )
        say(f"{self.store}: {count(len(store), 'trace')} of {count(len(stores), 'store')}")
        lines = [line for linked in shared for line in _linked_lines(linked)]
        names = dict.fromkeys(name for one in stores for name in one.schema.columns)
        lacking = [n for n in names if any(n not in one.schema.columns for one in stores)]
        if lacking:
            what = "columns left out that" if self.shared else "fields that"
            lines.append(f"  {what} some of the stores lack: {', '.join(lacking):.500}")
        if self.parts:
            lines += [*label_lines(store), *_left_out_lines(sources)]
        for line in lines:
            say(as_called(line), file=sys.stderr if line.startswith("warning: ") else sys.stdout)
        return 0


def _choose_sources(args: Merge) -> list[Path] | None:
    """Choose the stores that a merge is of, and print what is left out or missing.

    None if parts are missing, and `--partial` does not say to go on without them. Raises StoreError
    if there are no parts, or not of one command.
    """
    if args.parts is None:
        args.refuse("is for --parts DIR; leave it out", "partial")
        return args.sources
    if args.sources:
        raise SchemaError("--parts: expected no STORE beside it; give one of them")
    found = find_parts(args.parts)
    say(*found.left_out, sep="\n", end="\n" if found.left_out else "", file=sys.stderr)
    if not found.parts:
        raise NotFoundError(f"{args.parts}: expected whole parts, found none")
    missing = found.missing
    if missing:
        line = f"{args.parts}: missing of {found.n_parts} parts: {numbers_text(missing)}"
        if args.store.exists() and not args.partial:
            raise SchemaError(f"{line}; and there is something at {args.store}: choose another OUT")
        say(line, file=sys.stderr)
        if not args.partial:
            return None
    return [part.path for part in found.parts]


def _left_out_lines(parts: Sequence[Path]) -> list[str]:
    """How much the parts left out, and where it is named; none if they left out nothing."""
    numbers = [read_record(record_path(part)).n_left_out for part in parts]
    if not any(numbers):
        return []
    left_out = count(sum(numbers), "file or record", "files or records")
    logs = count(sum(map(bool, numbers)), "part")
    return [f"  {left_out} left out; the logs of {logs} in {parts[0].parent} say which and why"]


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


def check_new_space(args: Command, n_bytes: int) -> None:
    """Refuse to make a store of so many bytes that cannot fit; part of it may be there already."""
    if not args.store.exists():
        present = bytes_under(partial_path(args.store))
        check_space(args.store, n_bytes - present, ignore=args.ignore_space)
