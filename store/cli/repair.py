"""`python -m store repair`."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from store.check.repair import Plan, plan_repair, repair_store
from store.cli import shared_options
from store.cli.arguments import as_called, names, path
from store.cli.command import Command, flag, option
from store.cli.progress import Progress
from store.errors import StoreError
from store.launch.job import parts_folder
from store.read.store import TraceStore
from store.reports import say

__all__ = ["Repair"]

EXAMPLES = """\
Without --yes, nothing is written: the plan is printed.

Removes what a crash left, and rewrites damaged metadata and a damaged id table. Damaged files that
another store has whole are copied from there, by --from: a backup, or a part that STORE was merged
from. Parts of a launch are looked for where it made them. Then the rest is verified again, and a
second plan is printed. Other traces with damaged bytes are dropped: the others are copied into a
new store (which needs the space), which replaces STORE. STORE.dropped.txt lists the rows and ids of
the dropped traces; the damaged store stays as STORE.damaged until you remove it.

Exit status 0: repaired, or nothing to do; 1: there is something to do, and --yes was not given.

examples:
  python -m store repair traces.zarr          # print what would be done
  python -m store repair traces.zarr --yes
  python -m store repair traces.zarr --drop-columns label,score --yes
  python -m store repair traces.zarr --from part-7.zarr backup.zarr --yes
"""


class Repair(Command):
    """Make a damaged store whole, with all traces that are undamaged."""

    epilog = EXAMPLES
    store: Path = shared_options.STORE
    drop_columns: list[str] = option(
        "damaged columns to drop, separated by commas, instead of the traces they are damaged in "
        "(default: none)",
        "NAMES",
        names,
        [],
    )
    copies: list[Path] = option(
        "stores that may have whole copies of damaged files; they are only read, and checked "
        "(default: the parts in the folder STORE.parts, if it is there)",
        "STORE",
        path,
        [],
        name="--from",
        nargs="+",
    )
    yes: bool = flag("do it (default: print what would be done)")

    def run(self) -> int:
        """Repair, or print the plan and return 1 if there is something to do."""
        others = chain([TraceStore.open(path) for path in self.copies], _parts_beside(self.store))
        with Progress.of_bytes() as progress:
            plan = plan_repair(self.store, progress, self.drop_columns, others)
        self._say(plan)
        if not self.yes:
            return int(plan.has_work)
        with Progress.of_rows(plan.report.rows) as progress:
            store = repair_store(self.store, plan, progress, planned=self._say)
        say(f"{self.store}: repaired, {len(store):,} traces")
        return 0

    def _say(self, plan: Plan) -> None:
        lines = [f"{self.store}: {plan.headline()}", *plan.lines(self.store)]
        say(as_called("\n".join(lines)))


def _parts_beside(path: Path) -> Iterator[TraceStore]:
    """The parts that a launch made a store of, if they are still where it makes them."""
    for part in sorted(parts_folder(path.resolve()).glob("*.zarr")):
        with suppress(StoreError):  # nobody named it, and it may be made just now
            yield TraceStore.open(part)
