"""`python -m store view`: a page to look at traces."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from store.cli import shared_options
from store.cli.arguments import path, positive, whole
from store.cli.command import Command, argument, flag, option
from store.errors import SchemaError
from store.extras import needs_extra
from store.read.filters.filter import parse_filter, words_of
from store.reports import count, say

if TYPE_CHECKING:
    from store.view.snapshots import Snapshots
    from store.view.traces import Texts

__all__ = ["View"]

EXAMPLES = """\
The page is served to this machine alone, at an address with a token that is printed; Ctrl-C ends
it. Nothing is written but notes, to STORE.notes.csv, and what --export names. From another machine:
ssh -L 8000:127.0.0.1:8000 HOST, and --port 8000.
It needs the extra view: pip install '.[view]' in the checkout.

examples:
  python -m store view data/example.zarr
  python -m store view traces.zarr --run runs/first --run runs/second
  python -m store view traces.zarr --run runs/first --trace trace_17
  python -m store view traces.zarr --tokenizer models/llama --port 8000 --no-browser
  python -m store view traces.zarr --port 8765 --token-file ~/.trace-token
  python -m store view traces.zarr --run runs/first --mistakes-of-run --export mistakes.html
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
    port: int = option("port on 127.0.0.1 (default: 0, any free one)", "N", whole(0, 65535), 0)
    token_file: Path | None = option(
        "file of the token, made if it is not there: with it and --port, bookmarks stay valid",
        "FILE",
        path,
    )
    trace: str | None = option("trace to open (default: the first of the first store)", "ID")
    no_browser: bool = flag("print the address, open nothing")
    export: Path | None = option(
        "write a page of some traces, which needs no server: a file .html, or index.html of any "
        "other name as a folder; states are left out",
        "PATH",
        path,
    )
    where: str | None = shared_options.where("traces to take, or the filter to start with")
    mistakes_of_run: bool = flag(
        "with --export: only traces that a detector of --run gets wrong at its threshold, those of "
        "most detectors first"
    )
    limit: int = option("with --export: traces, at most (default: 500)", "N", positive, 500)

    def run(self) -> int:
        if self.export is None:
            self.refuse("is for --export; leave it out", "mistakes_of_run", "limit")
        else:
            self.refuse("is for a server; leave it out, or --export", "port", "token_file")
        with needs_extra("view"):
            from store.view.serve import find_trace, read_token, serve
            from store.view.snapshots import open_stores
        if self.export is not None and self.trace is not None:
            raise SchemaError("--trace: leave it out; #trace=ID behind the address opens a trace")
        stores = open_stores(self.sources, self.run_folders)
        for problem in filter(None, (run.problem() for run in stores[0].runs)):
            say(f"warning: {problem}", file=sys.stderr)
        tokenizer = None
        if self.tokenizer is not None:
            from store.view.tokenizers import read_tokenizer

            tokenizer = read_tokenizer(self.tokenizer)
        if self.export is not None:
            return self.write_page(self.export, stores, tokenizer)
        token = None if self.token_file is None else read_token(self.token_file)
        fragment = "" if self.trace is None else find_trace(stores, self.trace)
        if self.where is not None:
            if self.trace is None:  # the first store is shown
                parse_filter(self.where, words_of(stores[0].first))
            fragment = f"{fragment or '#'}&filter={quote(self.where)}"
        with suppress(KeyboardInterrupt):  # the way to end it
            serve(stores, self.port, tokenizer, not self.no_browser, fragment, token)
        return 0

    def write_page(
        self, path: Path, stores: "Sequence[Snapshots]", tokenizer: "Texts | None"
    ) -> int:
        from store.view.export import export_page, page_of

        if len(stores) != 1:
            raise SchemaError(f"--export: expected one STORE, found {len(stores)}")
        (snapshots,) = stores
        where, is_wrong = self.where or "", self.mistakes_of_run
        text, n_rows = page_of(snapshots, where, is_wrong, self.limit, tokenizer)
        file = export_page(path, text)
        n_mb = file.stat().st_size / 1e6
        say(f"{file}: {n_rows:,} of {count(len(snapshots.first), 'trace')}, {n_mb:.1f} MB")
        return 0
