"""Arguments of `python -m store push` and `pull`."""

import argparse

from store.cli.arguments import Commands, Parser, add_ignore_space, finite, path, positive

__all__ = ["add_pull", "add_push"]

CREDENTIALS = """\
Credentials come from the environment and are never stored or shown: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION (or the role of the machine),
GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY. It needs
the extra remote: pip install '.[remote]' in the checkout."""

PUSH_EXAMPLES = f"""\
Each file becomes an object of the same name, zarr.json the last and under a condition: other
readers see the whole store or none. Stopped, the same command continues where it stopped. A store
that has grown since is appended to: its new traces become new objects, and those that readers may
be reading are never replaced. A second writer is refused.

{CREDENTIALS}

examples:
  python -m store push traces.zarr s3://bucket/traces.zarr --dry-run
  python -m store push traces.zarr s3://bucket/traces.zarr
  python -m store push traces.zarr s3://bucket/traces.zarr --endpoint http://127.0.0.1:9000
"""

PULL_EXAMPLES = f"""\
Every chunk is compared with its checksum before OUT is there. Stopped, the same command continues
where it stopped; finished, it does nothing.

{CREDENTIALS}

examples:
  python -m store pull s3://bucket/traces.zarr traces.zarr --dry-run
  python -m store pull s3://bucket/traces.zarr traces.zarr
"""


def add_push(commands: Commands) -> None:
    parser = commands.add_parser(
        "push",
        help="copy a store into a bucket, or append to the one that is there",
        description="Copy a store into a bucket of S3, GCS or Azure, or append to the one that is "
        "there.",
        epilog=PUSH_EXAMPLES,
    )
    parser.add_argument("source", metavar="STORE", type=path, help="path of the store")
    _add_url(parser)
    parser.add_argument(
        "--restart",
        action="store_true",
        help="take over from a push that was stopped on another machine or in another folder; only "
        "if it is not at work any more",
    )
    _add_options(parser, "push")


def add_pull(commands: Commands) -> None:
    parser = commands.add_parser(
        "pull",
        help="make a store of one in a bucket",
        description="Make a store of one in a bucket of S3, GCS or Azure.",
        epilog=PULL_EXAMPLES,
    )
    _add_url(parser)
    parser.add_argument("out", metavar="OUT", type=path, help="path of the store to make")
    _add_options(parser, "pull")
    add_ignore_space(parser)


def _add_url(parser: Parser) -> None:
    parser.add_argument(
        "url", metavar="URL", help="s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH"
    )


def _add_options(parser: Parser, verb: str) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help=f"print what would be done; {verb} nothing"
    )
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help="address of the server, if not the provider's (default: AWS_ENDPOINT_URL)",
    )
    parser.add_argument(
        "--jobs", metavar="N", type=positive, default=8, help="files at a time (default: 8)"
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_seconds,
        default=120.0,
        help="seconds that a request may take with all its repetitions; those that write large "
        "files get more (default: 120)",
    )


def _seconds(text: str) -> float:
    seconds = finite(text)
    if not 1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"expected 1 to 86400 seconds, found {text!r}")
    return seconds
