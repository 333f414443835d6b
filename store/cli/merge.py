"""`python -m store merge`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from store.cli import options
from store.cli.arguments import as_called, path
from store.cli.command import Command, argument, flag, option
from store.cli.parts import left_out_lines, part_warnings, parts_to_merge
from store.cli.progress import Progress
from store.labels.report import stored_counts
from store.read.store import TraceStore
from store.reports import count, say, size_text
from store.transform.merge import merge_stores
from store.write.build import partial_path
from store.write.link import Linked, linked_columns
from store.write.space import bytes_under, check_space, same_disk

__all__ = ["Merge", "check_new_space"]

SMALL_SHARD_BYTES = 16 * 1024 * 1024
EXAMPLES = """\
The stores must have the same columns, and no trace id twice. Their large files are not copied: OUT
gets second names for them (hard links), and all of the stores stay whole, whichever is removed or
appended to. On another file system they are copied. Stopped, the same command continues where it
stopped; finished, it does nothing.

examples:
  python -m store merge traces.zarr part1.zarr part2.zarr part3.zarr
  python -m store merge traces.zarr --parts parts/
  python -m store merge --copy compact.zarr traces.zarr
"""


class _Instead(argparse.Action):
    """An option that stands for positional arguments, which are then not required.

    As arguments that may be absent (`*`) they would not be found behind an option: `OUT --mixed A`.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *_: Any
    ) -> None:
        setattr(namespace, self.dest, value)
        (stores,) = (action for action in parser._actions if action.dest == "sources")
        stores.required = False


class Merge(Command):
    """Make one store of several."""

    epilog = EXAMPLES
    store: Path = options.OUT
    sources: list[Path] = argument("STORE", path, "stores to merge", nargs="+", default=[])
    parts: Path | None = option(
        "DIR",
        path,
        "merge the whole parts of one command (--part K/N) in this folder, and no STORE; exit "
        "status 1 and nothing made if some are missing",
        action=_Instead,
    )
    partial: bool = flag("go on without the missing parts of --parts")
    mixed: bool = flag("allow traces of different models, layers or prompts (default: refuse)")
    copy: bool = flag(
        "copy all traces, into files of full size that no other store shares (default: share the "
        "files)"
    )
    ignore_space: bool = options.IGNORE_SPACE

    def run(self) -> int:
        """Merge; return 1 if parts are missing."""
        sources = parts_to_merge(self)
        if sources is None:
            return 1
        # a copy would hide what is damaged
        stores = [TraceStore.open(path, check=True) for path in sources]
        n_rows = sum(map(len, stores))
        linked = [] if self.copy else linked_columns(stores)
        check_new_space(self, sum(_copied_bytes(store, self.store, linked) for store in stores))
        lines: list[str] = []
        with Progress(lambda done: done / max(1, n_rows)) as progress:
            store = merge_stores(
                self.store,
                stores,
                progress,
                mixed=self.mixed,
                command=self.typed,
                copy=self.copy,
                report=lambda linked: lines.extend(_linked_lines(linked)),
            )
        say(f"{self.store}: {count(len(store), 'trace')} of {count(len(stores), 'store')}")
        if self.parts:
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


def check_new_space(args: Command, n_bytes: int) -> None:
    """Refuse to make a store of so many bytes that cannot fit; part of it may be there already."""
    if not args.store.exists():
        present = bytes_under(partial_path(args.store))
        check_space(args.store, n_bytes - present, ignore=args.ignore_space)
