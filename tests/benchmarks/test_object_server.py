"""A server of objects on this machine."""

import time
import urllib.request
import xml.etree.ElementTree as ET

import pytest

from benchmarks.object_server import find_nginx, served

needs_nginx = pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")


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


@needs_nginx
def test_objects_are_listed_and_sent_in_ranges(buckets, tmp_path):
    with served(buckets, tmp_path / "server") as url:
        assert fetch(f"{url}/one/a.zarr/c/0", Range="bytes=10-19") == bytes(range(10, 20))
        everything = fetch(f"{url}/one?list-type=2&prefix=a.zarr/")
        assert texts(everything, "Key") == ["a.zarr/c/0", "a.zarr/zarr.json"]
        assert texts(everything, "Size") == ["100", "2"]
        level = fetch(f"{url}/one?list-type=2&prefix=a.zarr/&delimiter=/")
        assert texts(level, "Key") == ["a.zarr/zarr.json"]
        assert texts(level, "Prefix") == ["a.zarr/", "a.zarr/c/"]


@needs_nginx
def test_a_server_far_away_answers_later(buckets, tmp_path):
    with served(buckets, tmp_path / "server", latency_ms=200) as url:
        start = time.monotonic()
        assert fetch(f"{url}/one/a.zarr/c/0") == bytes(range(100))
        assert time.monotonic() - start >= 0.2
