"""`python -m store verify`."""

import json
from pathlib import Path

from store.check.verify import verify_store
from store.cli import shared_options
from store.cli.arguments import as_called
from store.cli.command import Command, flag
from store.cli.progress import Progress
from store.read.source import address_of
from store.reports import say, size_text

__all__ = ["Verify"]

EXAMPLES = """\
Every file, table, offset, id and chunk is compared with what was committed. Problems that differ
in numbers only are one line. Files left by an interrupted write are counted, but are no problem:
nothing in them was committed. Readers and a writer may be active meanwhile.

Exit status 0: whole; 1: problems.

examples:
  python -m store verify traces.zarr
  python -m store verify traces.zarr --verbose
  python -m store verify traces.zarr --quick
  python -m store verify traces.zarr --json | python -m json.tool
"""


class Verify(Command):
    """Check that a store is whole: that its files hold what was committed."""

    epilog = EXAMPLES
    store: Path = shared_options.STORE
    quick: bool = flag("do not read the chunks, nor compare the ids with their index")
    verbose: bool = flag(
        "print a line for each problem and each file that an interrupted write left"
    )
    json: bool = shared_options.JSON

    def run(self) -> int:
        """Verify; return 1 if there is a problem."""
        with Progress.of_bytes() as progress:
            report = verify_store(self.store, quick=self.quick, progress=progress)
        status = 1 if report.problems else 0
        if self.json:
            found = {"store": address_of(self.store) or str(self.store)} | report.to_json()
            print(json.dumps(found, indent=1))
            return status
        checked = f"{size_text(report.bytes)} checked"
        if self.quick:
            checked = "quick: chunks were not read"
        remarks = [f"{report.rows:,} traces, {checked}"]
        if report.writer:
            remarks.append("a writer is at work; rows that it has yet to commit were not checked")
        lines = report.all_lines() if self.verbose else report.lines()
        head = f"{address_of(self.store) or self.store}: {report.headline()} ({'; '.join(remarks)})"
        say(as_called("\n".join([head, *lines])))
        return status
