"""`python -m store push` and `pull`: what they print, and one line for each mistake."""

import errno
import os
import re
import time

import pytest
from damage import shrink
from pushing import assert_rows, grow, relabelled, write

from store.cli.main import main


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "s.zarr", 3)


@pytest.fixture
def run(bucket, monkeypatch, capfd):
    """Run a command in the shortest time that it takes; its status and what it printed."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.url)
    monkeypatch.setenv("TRACE_STORE_TIMEOUT", "5")

    def run(*arguments):
        start = time.monotonic()
        try:
            status = main([*map(str, arguments)])
        except SystemExit as ended:
            status = ended.code
        assert time.monotonic() - start < 10
        printed = capfd.readouterr()
        assert "SECRET" not in printed.out + printed.err
        return status, printed.out + printed.err

    return run


def test_a_store_goes_to_a_bucket_and_back(bucket, run, path, tmp_path):
    """Dry, then for real, then there is nothing to do; and what was appended."""
    url, copy = bucket.url(), tmp_path / "copy.zarr"
    _, text = run("push", path, url, "--dry-run")
    assert text.splitlines()[0] == f"{url}: 3 traces"
    assert "files would be pushed" in text
    assert {method for method, _, _ in bucket.server.seen} == {"GET"}
    status, text = run("push", path, url)
    assert (status, "files pushed" in text) == (0, True)
    _, text = run("push", path, url)
    assert text == f"{url}: 3 traces\n  it was there already, the same state: nothing to do\n"
    grow(path, 5)
    bucket.server.seen.clear()
    _, text = run("push", path, url, "--dry-run")
    assert text == f"{url}: 5 traces, 2 of them new\n"
    assert {method for method, _, _ in bucket.server.seen} == {"GET"}
    _, text = run("push", path, url)
    assert text.startswith(f"{url}: 5 traces, 2 of them new\n")
    assert "would be pulled" in run("pull", url, copy, "--dry-run")[1]
    assert run("pull", url, copy)[0] == 0
    assert_rows(copy, 5)
    assert "nothing to do" in run("pull", url, copy)[1]
    relabelled(path)
    _, text = run("push", path, url, "--dry-run")
    assert "  columns would be replaced: label\n" in text
    _, text = run("push", path, url)
    assert "  columns replaced: label\n" in text


def test_a_mistake_is_one_line(bucket, run, path, tmp_path, monkeypatch, golden_lines):
    """A refusal of the server, an address of no store, a setting on which the client would panic:
    within ten seconds, with exit status 2. Nothing is written, and what may be secret not shown."""
    monkeypatch.setenv("TRACE_STORE_CACHE_DIR", str(tmp_path / "cache"))
    places = {"URL": bucket.url(), "STORE": str(path), "NEW": str(tmp_path / "new.zarr")}

    def refuse(given):
        *words, fault, environment = given
        bucket.server.seen.clear()
        with monkeypatch.context() as patched, bucket.faulty(fault):
            for name, value in environment.items():
                patched.setenv(name, value)
            status, text = run(*(places.get(word, word) for word in words))
        assert (status, text.count("\n")) == (2, 1), text
        if fault in ("denied", "expired", "skewed"):  # another attempt does not help
            assert len(bucket.server.seen) == 1
        for name, place in places.items():
            text = text.replace(place, name)
        return re.sub(r"\d+ attempts and [\d.]+ s", "N attempts", text.removesuffix("\n"))

    golden_lines("mistakes.txt", refuse)
    assert not bucket.open().list()
    assert not (tmp_path / "new.zarr").exists()


def test_an_endpoint_that_is_given_goes_before_the_environments(bucket, run, path, monkeypatch):
    """Also before the one for S3 alone."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert run("push", path, bucket.url(), "--endpoint", bucket.server.url)[0] == 0


def test_a_full_disk_names_the_file_and_what_is_missing(bucket, run, path, tmp_path, monkeypatch):
    """In a pull, and in a merge that has to copy."""
    url = bucket.url()
    assert run("push", path, url)[0] == 0

    def full(fd, data, position):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    _, text = run("pull", url, tmp_path / "copy.zarr")
    assert re.search(r"copy\.zarr\.pull/\S+: .*No space left on device for [\d,]+ bytes", text)
    assert text.count("\n") == 1
    merge = ["merge", str(tmp_path / "all.zarr"), str(path), "--copy"]
    status, text = run(*merge)
    assert status == 2
    assert re.search(r"all\.zarr\S*/\S+: .*No space left on device for [\d,]+ bytes", text)
