"""`python -m store view`: a page to look at traces."""

import argparse
from contextlib import suppress

from store.errors import SchemaError
from store.extras import needs_extra

__all__ = ["run_view"]


def run_view(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    if not 0 <= args.port < 65536:
        raise SchemaError(f"--port: expected 0 to 65535, found {args.port}")
    with needs_extra("view"):
        from store.view.serve import find_trace, open_stores, serve
    stores = open_stores(args.sources, args.run)
    fragment = "" if args.trace is None else find_trace(stores, args.trace)
    tokenizer = None
    if args.tokenizer is not None:
        from store.view.tokenizers import read_tokenizer

        tokenizer = read_tokenizer(args.tokenizer)
    with suppress(KeyboardInterrupt):  # the way to end it
        serve(stores, args.port, tokenizer, browser=not args.no_browser, fragment=fragment)
    return 0
