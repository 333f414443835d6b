"""`python -m store pull`: a store from a bucket."""

import os
from pathlib import Path

from store.cli import push, shared_options
from store.cli.arguments import path
from store.cli.command import argument, flag
from store.cli.progress import Progress, sizes_text
from store.remote.objects.address import UNSIGNED
from store.remote.objects.objects import open_objects
from store.remote.transfer.pull import pull_store
from store.reports import count, say

__all__ = ["Pull"]

EXAMPLES = f"""\
Every chunk is compared with its checksum before OUT is there. Stopped, the same command continues
where it stopped; finished, it does nothing.

{push.CREDENTIALS}

examples:
  python -m store pull s3://bucket/traces.zarr traces.zarr --dry-run
  python -m store pull s3://bucket/traces.zarr traces.zarr
  python -m store pull s3://public/traces.zarr traces.zarr --anonymous
  python -m store pull https://host/path/traces.zarr traces.zarr

What else reads a public bucket (info, view, train) takes AWS_SKIP_SIGNATURE=true for --anonymous.
"""


class Pull(push.Moving):
    """Make a store of one in a bucket of S3, GCS or Azure, or on a web server."""

    epilog = EXAMPLES
    url: str = argument(f"{push.ADDRESSES}; or https://HOST/PATH", "URL")
    out: Path = argument("path of the store to make", "OUT", path)
    dry_run: bool = flag("print what would be done; pull nothing")
    anonymous: bool = flag("ask without credentials, as public buckets allow")
    ignore_space: bool = shared_options.IGNORE_SPACE

    def move(self) -> int:
        if self.anonymous:
            os.environ |= dict.fromkeys(UNSIGNED.values(), "true")
        objects = open_objects(self.url, endpoint=self.endpoint, usual_s=push.USUAL_S)
        with (
            Progress.of_bytes() as progress,
            Progress.of_bytes(lambda *done: f"checked: {sizes_text(*done)}") as checking,
        ):
            pulled = pull_store(
                objects,
                self.out,
                dry_run=self.dry_run,
                ignore_space=self.ignore_space,
                progress=progress,
                checking=checking,
            )
        would = "would be " if self.dry_run else ""
        say(f"{self.out}: {count(pulled.n_rows, 'trace')}")
        self.print_files(pulled, f"{would}pulled")
        return 0
