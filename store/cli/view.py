"""`python -m store view`: a page to look at traces."""

from contextlib import suppress
from pathlib import Path

from store.cli.arguments import path
from store.cli.command import Command, argument, flag, option
from store.errors import SchemaError
from store.extras import needs_extra

__all__ = ["View"]

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


class View(Command):
    """Serve a page with a table of traces, and each trace with its tokens."""

    epilog = EXAMPLES
    sources: list[Path] = argument("stores to show", "STORE", path, nargs="+")
    run_folders: list[Path] = option(
        "finished run of python -m train whose scores become columns score_NAME (repeatable)",
        "DIR",
        path,
        [],
        name="--run",
        action="append",
    )
    tokenizer: Path | None = option(
        "tokenizer.json, or its folder, for the texts of tokens that the store lacks", "PATH", path
    )
    port: int = option("port on 127.0.0.1 (default: 0, any free one)", "N", int, 0)
    trace: str | None = option("trace to open (default: the first of the first store)", "ID")
    no_browser: bool = flag("print the address, open nothing")

    def run(self) -> int:
        if not 0 <= self.port < 65536:
            raise SchemaError(f"--port: expected 0 to 65535, found {self.port}")
        with needs_extra("view"):
            from store.view.serve import find_trace, open_stores, serve
        stores = open_stores(self.sources, self.run_folders)
        fragment = "" if self.trace is None else find_trace(stores, self.trace)
        tokenizer = None
        if self.tokenizer is not None:
            from store.view.tokenizers import read_tokenizer

            tokenizer = read_tokenizer(self.tokenizer)
        with suppress(KeyboardInterrupt):  # the way to end it
            serve(stores, self.port, tokenizer, browser=not self.no_browser, fragment=fragment)
        return 0
