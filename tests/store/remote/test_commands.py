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
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.proxy.url)
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
    assert {method for method, _, _ in bucket.proxy.seen} == {"GET"}
    status, text = run("push", path, url)
    assert (status, "files pushed" in text) == (0, True)
    _, text = run("push", path, url)
    assert text == f"{url}: 3 traces\n  it was there already, the same state: nothing to do\n"
    grow(path, 5)
    bucket.proxy.seen.clear()
    _, text = run("push", path, url, "--dry-run")
    assert text == f"{url}: 5 traces, 2 of them new\n"
    assert {method for method, _, _ in bucket.proxy.seen} == {"GET"}
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


@pytest.mark.parametrize(
    "command, fault, words",
    [
        ("push", "denied", "expected permission"),
        ("pull", "expired", "the credentials are expired"),
        ("push", "skewed", "the clocks of this machine and the server differ"),
        ("pull", "503", "expected an answer within"),
    ],
)
def test_what_the_server_refuses_is_one_line(bucket, run, path, command, fault, words):
    """Within ten seconds, with exit status 2, and no key in it."""
    bucket.proxy.faults = lambda *_: fault
    places = (path, bucket.url()) if command == "push" else (bucket.url(), path.parent / "new")
    status, text = run(command, *places)
    assert status == 2
    assert words in text
    assert text.count("\n") == 1
    assert len(bucket.proxy.seen) == 1 or fault == "503"  # another attempt does not help


def test_other_mistakes_are_one_line(bucket, run, path, tmp_path):
    """No bucket, no store, no address, a secret in the address, a server without conditions."""
    url = bucket.url()
    expected = {
        ("push", path, "s3://no-such-bucket/x"): "expected a bucket, found none",
        ("push", tmp_path / "nothing", url): "expected a trace store",
        ("push", path, "s3://KEY:SECRET@bucket/x"): "found more than that, which is not shown",
        ("pull", url, tmp_path / "copy"): "expected a store, found no zarr.json",
    }
    for arguments, words in expected.items():
        status, text = run(*arguments)
        assert (status, text.count("\n")) == (2, 1), text
        assert words in text
    bucket.proxy.faults = lambda *_: "blind"
    status, text = run("push", path, url)
    assert (status, text.count("\n")) == (2, 1)
    assert "keeps conditions of writes" in text
    assert not bucket.open().list()


@pytest.mark.parametrize(
    "name, value",
    [
        *(("AWS_ACCESS_KEY_ID", "AKIA\r"), ("AWS_SESSION_TOKEN", "t\n"), ("AWS_REGION", "eu\r")),
        *(("AWS_ENDPOINT_URL", url) for url in ("127.0.0.1:9", "http://[::", "http://a b")),
        *(("AWS_ENDPOINT_URL", url) for url in ("http://a:99999", "http://", "http://%zz")),
    ],
)
def test_a_setting_on_which_the_client_would_panic_is_one_line(
    bucket, path, monkeypatch, capfd, name, value
):
    """By push and by address; and nothing of the client's own."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.proxy.url)
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRACE_STORE_CACHE_DIR", str(path.parent / "cache"))
    for arguments in (["push", str(path), bucket.url()], ["info", bucket.url()]):
        assert main(arguments) == 2
        text = capfd.readouterr().err
        assert text.count("\n") == 1
        assert name in text or "expected http://HOST:PORT" in text


def test_an_endpoint_that_is_given_goes_before_the_environments(bucket, run, path, monkeypatch):
    """Also before the one for S3 alone."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert run("push", path, bucket.url(), "--endpoint", bucket.proxy.url)[0] == 0


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
