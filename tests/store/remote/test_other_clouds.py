"""S3, GCS and Azure, by servers that have their conditions."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import count
from typing import NamedTuple
from urllib.request import Request, urlopen

import azurite
import pytest
from damage import ROWS
from object_server import ObjectServer
from oracle import assert_batch
from pushing import assert_rows, grow, write

from store import TraceStore
from store.check.verify import verify_store
from store.cli.main import main
from store.remote.objects.address import SETTINGS
from store.remote.objects.objects import open_objects

MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
SIGNATURE = {"Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request"}
_numbers = count()
pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="pip install '.[remote]'")


class Cloud(NamedTuple):
    """An empty bucket, its server, and what a reader has in its environment to open it."""

    url: str
    endpoint: str
    environment: dict[str, str]


@pytest.fixture(scope="module")
def azure_url(tmp_path_factory):
    if azurite.command() is None:
        pytest.skip("azurite is not installed: npm install --prefix .venv/azurite azurite")
    with azurite.running(tmp_path_factory.mktemp("azurite")) as url:
        yield url


@pytest.fixture
def azure(azure_url, monkeypatch):
    name = f"container{next(_numbers)}"
    azurite.make_container(azure_url, name)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", azurite.ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", azurite.KEY)
    return Cloud(f"az://{name}/traces.zarr", azure_url, {"AZURE_STORAGE_ENDPOINT": azure_url})


@pytest.fixture
def gcs(tmp_path):
    server = ObjectServer("bucket")
    account = {"gcs_base_url": server.url, "disable_oauth": True}
    account |= {"client_email": "", "private_key": "", "private_key_id": ""}
    file = tmp_path / "account.json"
    file.write_text(json.dumps(account))
    yield Cloud("gs://bucket/traces.zarr", server.url, {"GOOGLE_SERVICE_ACCOUNT": str(file)})
    server.close()


@pytest.fixture
def s3(monkeypatch):
    pytest.importorskip("moto", reason="pip install '.[test-remote]'")
    command = [sys.executable, "-W", "ignore", "-c", MOTO]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        urlopen(Request(f"{url}/bucket", method="PUT", headers=SIGNATURE)).close()  # noqa: S310
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            monkeypatch.setenv(name, "us-east-1")
        yield Cloud("s3://bucket/traces.zarr", url, {"AWS_ENDPOINT_URL": url})
        process.kill()


@pytest.fixture(params=["s3", "gcs", "azure"])
def cloud(request, monkeypatch):
    for name in filter(SETTINGS.fullmatch, list(os.environ)):
        monkeypatch.delenv(name)
    return request.getfixturevalue(request.param)


def test_a_store_goes_there_grows_and_comes_back(cloud, tmp_path, monkeypatch):
    """By commands with an endpoint; by address with what the environment names.

    A push sees whether conditions of writes are kept, and an append has one of each kind.
    """
    path, copy = write(tmp_path / "s.zarr", 3), tmp_path / "copy.zarr"
    at = ["--endpoint", cloud.endpoint]
    assert main(["push", str(path), cloud.url, *at]) == 0
    grow(path, 5)
    assert main(["push", str(path), cloud.url, *at]) == 0
    assert main(["pull", cloud.url, str(copy), *at]) == 0
    assert_rows(copy, 5)
    objects = open_objects(cloud.url, endpoint=cloud.endpoint)
    for key, head in objects.list().items():  # a condition may name what a list says
        assert head.etag == objects.head(key).etag
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRACE_STORE_CACHE_DIR", str(tmp_path / "cache"))
    store = TraceStore.open(cloud.url, 10**8)
    assert_batch(store.read(range(5)), [row for _, row in ROWS[:5]])
    assert not verify_store(cloud.url).problems
