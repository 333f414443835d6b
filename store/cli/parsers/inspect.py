"""Arguments of `python -m store info` and `get`."""

from store.cli.arguments import Commands, add_store, names

__all__ = ["add_get", "add_info"]

INFO_EXAMPLES = """\
examples:
  python -m store info traces.zarr
  python -m store info traces.zarr --json | python -m json.tool
"""

GET_EXAMPLES = """\
Long arrays are shortened, except with --json. python -m store info STORE lists the columns.

examples:
  python -m store get traces.zarr q17 --columns question,answer,label
  python -m store get traces.zarr q17 --json | python -m json.tool
"""


def add_info(commands: Commands) -> None:
    parser = commands.add_parser(
        "info",
        help="columns, shapes, rows, bytes on disk, codecs, provenance",
        description="Print what a store holds, and where its traces come from.",
        epilog=INFO_EXAMPLES,
    )
    add_store(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_get(commands: Commands) -> None:
    parser = commands.add_parser(
        "get",
        help="print one trace",
        description="Print the values of one trace.",
        epilog=GET_EXAMPLES,
    )
    add_store(parser)
    parser.add_argument("trace_id", metavar="TRACE_ID", help="the trace, by its id")
    parser.add_argument(
        "--columns",
        metavar="NAMES",
        type=names,
        help="columns to print, separated by commas (default: all)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object, every value in full (may be large)",
    )
