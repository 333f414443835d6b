"""What can be typed: the parser of `python -m store`.

Nothing here takes torch: help comes at once, and so does the message about a wrong argument.
"""

import argparse

from store.cli.arguments import Parser, Version, program
from store.cli.parsers import (
    check,
    derive,
    extract,
    inspect,
    label,
    launch,
    make,
    plan,
    project,
    remote,
    view,
)

__all__ = ["build_parser"]

INSTALLED = """\
trace-store is the same program; use it in a folder that has a store.py of its own.

"""
EXAMPLES = """\
examples:
  python -m store import traces.zarr old_traces/ --scores ground_truth_scores.csv
  python -m store extract traces.zarr --model NAME_OR_PATH --questions questions.jsonl
  python -m store plan traces.zarr --model NAME_OR_PATH --questions questions.jsonl --workers 4
  python -m store info data/example.zarr
  python -m store get data/example.zarr TRACE_ID --columns question,answer,label
  python -m store get data/example.zarr TRACE_ID --json | python -m json.tool
  python -m store view data/example.zarr
  python -m store label traces.zarr --scores judged.csv --dry-run
  python -m store export traces.zarr --columns question,answer --to answers.csv
  python -m store verify traces.zarr
"""

COMMANDS = (
    inspect.add_info,
    inspect.add_get,
    view.add_view,
    check.add_verify,
    check.add_repair,
    make.add_import,
    make.add_merge,
    make.add_subset,
    derive.add_derive,
    project.add_project,
    label.add_label,
    label.add_export,
    extract.add_extract,
    plan.add_plan,
    launch.add_launch,
    remote.add_push,
    remote.add_pull,
)


def build_parser() -> argparse.ArgumentParser:
    name = program("store")
    # who calls it by the installed name knows that name
    epilog = EXAMPLES if name == "trace-store" else INSTALLED + EXAMPLES
    parser = Parser(name, description="Make trace stores and look into them.", epilog=epilog)
    parser.add_argument(
        "--version",
        action=Version,
        nargs=0,
        help="print the version of the program and of the format, and exit",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return parser
