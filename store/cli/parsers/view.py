"""Arguments of `python -m store view`."""

from store.cli.arguments import Commands, path

__all__ = ["add_view"]

EXAMPLES = """\
The page is served to this machine alone, at an address with a token that is printed; Ctrl-C ends
it. Nothing is written. From another machine: ssh -L 8000:127.0.0.1:8000 HOST, and --port 8000.
It needs the extra view: pip install '.[view]' in the checkout.

examples:
  python -m store view data/example.zarr
  python -m store view traces.zarr --run runs/first --run runs/second
  python -m store view traces.zarr --run runs/first --trace trace_17
  python -m store view traces.zarr --tokenizer models/llama --port 8000 --no-browser
"""


def add_view(commands: Commands) -> None:
    parser = commands.add_parser(
        "view",
        help="look at traces in the browser",
        description="Serve a page with a table of traces, and each trace with its tokens.",
        epilog=EXAMPLES,
    )
    parser.add_argument("sources", metavar="STORE", nargs="+", type=path, help="stores to show")
    parser.add_argument(
        "--run",
        metavar="DIR",
        type=path,
        action="append",
        default=[],
        help="finished run of python -m train whose scores become columns score_NAME (repeatable)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        type=path,
        help="tokenizer.json, or its folder, for the texts of tokens that the store lacks",
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=int,
        default=0,
        help="port on 127.0.0.1 (default: 0, any free one)",
    )
    parser.add_argument(
        "--trace", metavar="ID", help="trace to open (default: the first of the first store)"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
