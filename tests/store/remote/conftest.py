"""An object store for tests: moto's server in a process of its own, and a proxy that has faults."""

import contextlib
import subprocess
import sys
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fault_proxy import FaultProxy

SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_numbers = count()


@pytest.fixture(scope="session")
def server():
    """The address of a server that keeps objects in memory, and conditions of writes."""
    for package, extra in (("obstore", "remote"), ("moto", "test-remote")):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install '.[{extra}]'")
    command = [sys.executable, "-W", "ignore", "-c", SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


class Bucket:
    """A bucket of its own, behind the proxy.

    Attributes
    ----------
    proxy
        Whose `faults` a test sets.
    """

    def __init__(self, server: str, proxy: FaultProxy) -> None:
        self.name = f"bucket{next(_numbers)}"
        self.server = server
        self.proxy = proxy
        status, _, _ = proxy.pass_on("PUT", f"/{self.name}", {}, b"")
        assert status == 200

    def url(self, path: str = "traces.zarr") -> str:
        return f"s3://{self.name}/{path}"

    def open(self, path: str = "traces.zarr", limit_s=8.0, attempt_s=1.5, stall_s=0.5, **options):
        """The objects of a store, with little patience; nothing is asked yet."""
        from store.remote.objects.address import parse_url
        from store.remote.objects.objects import Objects
        from store.remote.objects.obstore_client import Client
        from store.remote.objects.retry import RetryPolicy

        options = {"endpoint": self.proxy.url} | options
        client = Client(parse_url(self.url(path)), options, attempt_s, stall_s)
        return Objects(client, RetryPolicy(limit_s, attempt_s))


@pytest.fixture
def buckets(server, monkeypatch):
    """Makes empty buckets, with credentials in the environment."""
    for name in ("AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASECRET")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with contextlib.ExitStack() as made:

        def make():
            proxy = FaultProxy(server)
            made.callback(proxy.close)
            return Bucket(server, proxy)

        yield make


@pytest.fixture
def bucket(buckets):
    """An empty bucket."""
    return buckets()
