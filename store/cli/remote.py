"""`python -m store push` and `pull`: stores into a bucket, and from one."""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from store.cli.arguments import program
from store.cli.inspect import size_text
from store.cli.progress import Progress, share_of_bytes
from store.remote.objects import open_objects
from store.remote.pull import Pulled, pull_store
from store.remote.push import Pushed, push_store, upload_s
from store.remote.url import parse_url
from store.reports import NOTHING_TO_DO, count, say

__all__ = ["run_pull", "run_push"]

T = TypeVar("T")


def run_push(args: argparse.Namespace) -> int:
    """Copy a store into a bucket, or append to the one that is there."""
    location = parse_url(args.url)
    more_s = upload_s(args.source, args.jobs)
    limit_s = args.timeout + 2 * more_s
    attempt_s = args.timeout / 2.5 + more_s
    # a server answers a write when it has all of it: until then no byte comes
    objects = open_objects(
        args.url, endpoint=args.endpoint, limit_s=limit_s, attempt_s=attempt_s, stall_s=attempt_s
    )

    def push() -> Pushed:
        with Progress(share_of_bytes, _sizes, "MB", 1e6) as progress:
            return push_store(
                args.source,
                objects,
                dry_run=args.dry_run,
                restart=args.restart,
                n_threads=args.jobs,
                progress=progress,
            )

    pushed = _stoppable(args, push)
    would = "would be " if args.dry_run else ""
    traces = count(pushed.n_rows, "trace")
    if pushed.is_done and pushed.n_new_rows < pushed.n_rows:
        traces += f", {pushed.n_new_rows:,} of them new"
    say(f"{location}: {traces}")
    if args.dry_run and pushed.is_done and not pushed.n_files:
        say("  the difference would be pushed")
    else:
        _print_files(pushed, f"{would}pushed")
    return 0


def run_pull(args: argparse.Namespace) -> int:
    """Make a store of one in a bucket."""
    objects = open_objects(
        args.url, endpoint=args.endpoint, limit_s=args.timeout, attempt_s=args.timeout / 2.5
    )

    def pull() -> Pulled:
        with (
            Progress(share_of_bytes, _sizes, "MB", 1e6) as progress,
            Progress(share_of_bytes, _checked, "MB", 1e6) as checking,
        ):
            return pull_store(
                objects,
                args.out,
                dry_run=args.dry_run,
                ignore_space=args.ignore_space,
                n_threads=args.jobs,
                progress=progress,
                checking=checking,
            )

    pulled = _stoppable(args, pull)
    would = "would be " if args.dry_run else ""
    say(f"{args.out}: {count(pulled.n_rows, 'trace')}")
    _print_files(pulled, f"{would}pulled")
    return 0


def _stoppable(args: argparse.Namespace, work: Callable[[], T]) -> T:
    """Do the work; Ctrl-C ends the process at once, whatever requests are on their way.

    In a thread: Python hears of no signal while the main one waits for the client.
    """
    future = ThreadPoolExecutor(1).submit(work)
    try:
        return future.result()
    except KeyboardInterrupt as error:
        line = f"{program('store')} {args.command}: stopped; the same command goes on"
        say(line, file=sys.stderr, flush=True)
        os._exit(128 + (error.args[0] if error.args else signal.SIGINT))


def _print_files(done: Pushed | Pulled, verb: str) -> None:
    if not done.is_done:
        say(NOTHING_TO_DO.replace("made by the same command", "the same state"))
        return
    line = f"  {count(done.n_files - done.n_present, 'file')} {verb}"
    if done.n_present:
        line += f", {done.n_present:,} were there"
    say(f"{line}; {size_text(done.n_bytes)} in all")


def _sizes(n_done: int, n_bytes: int) -> str:
    return f"{size_text(n_done)} of {size_text(n_bytes)}"


def _checked(n_done: int, n_bytes: int) -> str:
    return f"checked: {_sizes(n_done, n_bytes)}"
