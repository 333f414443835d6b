"""A server of objects on this machine."""

import time
import urllib.request
import xml.etree.ElementTree as ET

import pytest

from benchmarks.object_server import find_nginx, served


@pytest.fixture
def buckets(tmp_path):
    folder = tmp_path / "buckets" / "one" / "a.zarr"
    (folder / "c").mkdir(parents=True)
    (folder / "zarr.json").write_bytes(b"{}")
    (folder / "c" / "0").write_bytes(bytes(range(100)))
    return tmp_path / "buckets"


def fetch(url: str, **headers: str) -> bytes:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - of our own server
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return answer.read()


def texts(listing: bytes, tag: str) -> list[str | None]:
    return [found.text for found in ET.fromstring(listing).iter(tag)]  # noqa: S314 - our own


@pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")
@pytest.mark.parametrize("latency_ms", [0, 200])
def test_objects_are_listed_and_sent_in_ranges(buckets, tmp_path, latency_ms):
    """Also by a server that is far away, and answers later."""
    with served(buckets, tmp_path / "server", latency_ms=latency_ms) as url:
        start = time.monotonic()
        assert fetch(f"{url}/one/a.zarr/c/0", Range="bytes=10-19") == bytes(range(10, 20))
        assert time.monotonic() - start >= latency_ms / 1000
        everything = fetch(f"{url}/one?list-type=2&prefix=a.zarr/")
        assert texts(everything, "Key") == ["a.zarr/c/0", "a.zarr/zarr.json"]
        assert texts(everything, "Size") == ["100", "2"]
        level = fetch(f"{url}/one?list-type=2&prefix=a.zarr/&delimiter=/")
        assert texts(level, "Key") == ["a.zarr/zarr.json"]
        assert texts(level, "Prefix") == ["a.zarr/", "a.zarr/c/"]
