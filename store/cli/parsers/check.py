"""Arguments of `python -m store verify` and `repair`."""

from store.cli.arguments import Commands, add_store, names, path

__all__ = ["add_repair", "add_verify"]

VERIFY_EXAMPLES = """\
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

REPAIR_EXAMPLES = """\
Without --yes, nothing is written: the plan is printed.

Removes what a crash left, and rewrites damaged metadata and a damaged id table. Damaged files that
another store has whole are taken from there, by --from: a part that STORE was merged from, or a
backup. Parts of a launch are looked for where it made them. Other traces with damaged bytes are
dropped: the others are copied into a new store (which needs the space), which replaces
STORE. STORE.dropped.txt lists the rows and ids of the dropped traces; the damaged store stays as
STORE.damaged until you remove it.

Exit status 0: repaired, or nothing to do; 1: there is something to do, and --yes was not given.

examples:
  python -m store repair traces.zarr          # print what would be done
  python -m store repair traces.zarr --yes
  python -m store repair traces.zarr --drop-columns label,score --yes
  python -m store repair traces.zarr --from part-7.zarr backup.zarr --yes
"""


def add_verify(commands: Commands) -> None:
    parser = commands.add_parser(
        "verify",
        help="check that a store is whole",
        description="Check that a store is whole: that its files hold what was committed.",
        epilog=VERIFY_EXAMPLES,
    )
    add_store(parser)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="do not read the chunks, nor compare the ids with their index",
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="print a line for each problem and each file that an interrupted write left",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_repair(commands: Commands) -> None:
    parser = commands.add_parser(
        "repair",
        help="make a damaged store whole",
        description="Make a damaged store whole, with all traces that are undamaged.",
        epilog=REPAIR_EXAMPLES,
    )
    add_store(parser)
    parser.add_argument(
        "--drop-columns",
        metavar="NAMES",
        type=names,
        default=[],
        help="damaged columns to drop, separated by commas, instead of the traces they are "
        "damaged in (default: none)",
    )
    parser.add_argument(
        "--from",
        dest="copies",
        metavar="STORE",
        type=path,
        nargs="+",
        default=[],
        help="stores that may have whole copies of damaged files; they are only read, and checked "
        "(default: the parts in the folder STORE.parts, if it is there)",
    )
    parser.add_argument(
        "--yes", action="store_true", help="do it (default: print what would be done)"
    )
