"""Objects for tests: buckets of a server that has faults."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from object_server import ObjectServer


class Bucket:
    """A bucket of its own.

    Attributes
    ----------
    server
        Whose `faults` a test sets.
    """

    name = "bucket"

    def __init__(self) -> None:
        self.server = ObjectServer(self.name)

    def url(self, path: str = "traces.zarr") -> str:
        return f"s3://{self.name}/{path}"

    def open(self, path: str = "traces.zarr", limit_s=8.0, attempt_s=1.5, stall_s=0.5, **options):
        """The objects of a store, with little patience; nothing is asked yet."""
        from store.remote.objects.address import parse_url
        from store.remote.objects.objects import Objects
        from store.remote.objects.obstore_client import Client
        from store.remote.objects.retry import RetryPolicy

        options = {"endpoint": self.server.url} | options
        client = Client(parse_url(self.url(path)), options, attempt_s, stall_s)
        return Objects(client, RetryPolicy(limit_s, attempt_s))

    @contextlib.contextmanager
    def faulty(self, faults: Callable[[str, str], str | None] | str, part: str = ""):
        """Meanwhile requests have these faults; or one, if their path has such a part."""
        if isinstance(faults, str):
            self.server.faults = lambda _, path: (part in path and faults) or None
        else:
            self.server.faults = faults
        yield
        self.server.faults = lambda *_: None


@pytest.fixture
def buckets(monkeypatch):
    """Makes empty buckets, with credentials in the environment."""
    pytest.importorskip("obstore", reason="pip install '.[remote]'")
    for name in ("AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASECRET")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with contextlib.ExitStack() as made:

        def make():
            bucket = Bucket()
            made.callback(bucket.server.close)
            return bucket

        yield make


@pytest.fixture
def bucket(buckets):
    """An empty bucket."""
    return buckets()
