"""`python -m store push`: a store into a bucket."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from store.cli.arguments import path, program
from store.cli.command import Command, argument, flag, option
from store.cli.progress import Progress
from store.remote.objects.address import parse_url
from store.remote.objects.objects import open_objects
from store.remote.transfer.parallel import Moved
from store.remote.transfer.push import check_writable, push_store, upload_s
from store.reports import NOTHING_TO_DO, count, say, size_text

__all__ = ["ADDRESSES", "CREDENTIALS", "USUAL_S", "Moving", "Push"]

USUAL_S = 120.0  # that a request may take with all its repetitions: somebody waits
SIGNAL_S = 0.1  # between two looks for Ctrl-C

CREDENTIALS = """\
Credentials come from the environment and are never stored or shown: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION (or the profile AWS_PROFILE of ~/.aws, or
the role of the machine), GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and
AZURE_STORAGE_ACCOUNT_KEY. It needs the extra remote: pip install '.[remote]' in the checkout.
A request may take 120 s with all its repetitions, or as many as TRACE_STORE_TIMEOUT says."""
EXAMPLES = f"""\
Each file becomes an object of the same name, zarr.json the last and under a condition: other
readers see the whole store or none. Stopped, the same command continues where it stopped. A store
that has grown since is appended to: its new traces become new objects, and those that readers may
be reading are never replaced. Where another push left other bytes, or is at work, it is refused.

{CREDENTIALS}

examples:
  python -m store push traces.zarr s3://bucket/traces.zarr --dry-run
  python -m store push traces.zarr s3://bucket/traces.zarr
  python -m store push traces.zarr s3://bucket/traces.zarr --endpoint http://127.0.0.1:9000
"""

ADDRESSES = "s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH"


class Moving(Command):
    """What is common to copies into a bucket and out of one."""

    endpoint: str | None = option(
        "address of the server, if not the provider's (default: AWS_ENDPOINT_URL)", "URL"
    )

    def run(self) -> int:
        """Move in a thread; Ctrl-C ends the process at once, whatever requests are on their way.

        Python runs no handler while the main thread waits for the client, nor while it waits
        without end and another thread gets the signal.
        """
        future = ThreadPoolExecutor(1).submit(self.move)
        try:
            while not future.done():
                wait([future], timeout=SIGNAL_S)
            return future.result()
        except KeyboardInterrupt as error:
            line = f"{program('store')} {self.command}: stopped; the same command goes on"
            say(line, file=sys.stderr, flush=True)
            os._exit(128 + (error.args[0] if error.args else signal.SIGINT))

    def move(self) -> int:
        """Copy; return the exit status."""
        raise NotImplementedError

    @staticmethod
    def print_files(done: Moved, verb: str) -> None:
        if not done.is_done:
            say(NOTHING_TO_DO.replace("made by the same command", "the same state"))
            return
        line = f"  {count(done.n_files - done.n_present, 'file')} {verb}"
        if done.n_present:
            line += f", {done.n_present:,} were there"
        say(f"{line}; {size_text(done.n_bytes)} in all")


class Push(Moving):
    """Copy a store into a bucket of S3, GCS or Azure, or append to the one that is there."""

    epilog = EXAMPLES
    source: Path = argument("path of the store", "STORE", path)
    url: str = argument(ADDRESSES, "URL")
    restart: bool = flag(
        "replace what another push, or one of an earlier state, left when it was stopped; only if "
        "it is not at work any more"
    )
    no_card: bool = flag("write no README.md beside the store")
    dry_run: bool = flag("print what would be done; push nothing")

    def move(self) -> int:
        check_writable(parse_url(self.url))  # before a server is asked
        objects = open_objects(
            self.url, endpoint=self.endpoint, usual_s=USUAL_S, more_s=upload_s(self.source)
        )
        with Progress.of_bytes() as progress:
            pushed = push_store(
                self.source,
                objects,
                dry_run=self.dry_run,
                restart=self.restart,
                with_card=not self.no_card,
                progress=progress,
            )
        would = "would be " if self.dry_run else ""
        traces = count(pushed.n_rows, "trace")
        if pushed.is_done and pushed.n_new_rows < pushed.n_rows:
            traces += f", {pushed.n_new_rows:,} of them new"
        say(f"{objects.location}: {traces}")
        if pushed.replaced:  # perhaps the values that another copy pushed
            say(f"  columns {would}replaced: {', '.join(pushed.replaced)}")
        if pushed.n_files or not pushed.is_done:  # a dry run makes no files of what is appended
            self.print_files(pushed, f"{would}pushed")
        return 0
