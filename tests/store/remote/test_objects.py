"""Objects: whole answers, or named errors within the stated time."""

import sys
import time
from types import SimpleNamespace

import pytest
from damage import in_child
from small import complaint

from store import NotFoundError, SchemaError, StoreError, UnreachableError
from store.cli.main import main
from store.remote.objects.faults import ConflictError, TransientFault, fault_of
from store.remote.objects.retry import RetryPolicy

DATA = bytes(range(256)) * 64


@pytest.fixture
def objects(bucket):
    objects = bucket.open()
    objects.put("data", DATA)
    return objects


def test_what_was_written_is_read(objects):
    """Whole objects, ranges, sizes, lists."""
    objects.put("a/label@2/c/0", DATA * 16)
    assert objects.get("a/label@2/c/0") == DATA * 16
    assert objects.head("a/label@2/c/0").size == len(DATA) * 16
    for start, end in ((0, 3), (5, 5), (9, 300)):
        assert objects.get_range("data", start, end) == DATA[start:end]
    assert objects.list().keys() == {"data", "a/label@2/c/0"}
    objects.delete("data")
    objects.delete("data")
    with pytest.raises(NotFoundError, match="expected an object, found none"):
        objects.get("data")


def test_a_condition_that_does_not_hold_is_a_conflict(objects):
    """Of writes that must find nothing, or just one state; of reads as well."""
    head = objects.head("data")
    with pytest.raises(ConflictError):
        objects.put("data", b"other")
    objects.put("data", b"newer", head)
    with pytest.raises(ConflictError):
        objects.put("data", b"newest", head)
    with pytest.raises(ConflictError):
        objects.get_range("data", 0, 2, head.etag)
    assert objects.get("data") == b"newer"


@pytest.mark.parametrize("fault", ["503", "reset", "stall", "short", "lost"])
def test_a_fault_that_passes_is_not_seen(bucket, objects, fault):
    """Another attempt has it right."""
    faults = [fault, fault, None]
    bucket.server.faults = lambda *_: faults.pop(0) if faults else None
    assert bytes(objects.get_range("data", 3, 5000)) == DATA[3:5000]
    assert not faults


@pytest.mark.parametrize(
    "fault, cause",
    [("503", "status 503"), ("reset", ""), ("stall", ""), ("short", "")],
)
def test_a_fault_that_stays_is_an_error_in_the_stated_time(bucket, objects, fault, cause):
    """Which says where, how long, and why."""
    hasty = bucket.open(limit_s=1.0, attempt_s=0.3, stall_s=0.2)
    bucket.server.faults = lambda *_: fault
    start = time.monotonic()
    with pytest.raises(UnreachableError, match=f"/data: expected an answer within 1 s.*{cause}"):
        hasty.get("data")
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize(
    "text, words",
    [
        ("InvalidCertificate(Other(CaUsedAsEndEntity))", "CA:FALSE"),
        ("InvalidCertificate(NotValidForNameContext { expected: x })", "of this server"),
        ("InvalidCertificate(UnknownIssuer)", "set SSL_CERT_FILE"),
        ("Content-Range header not present in partial response", "which range"),
    ],
)
def test_what_the_client_found_is_said_in_words(text, words):
    found = fault_of(OSError(text), "https://host/data")
    assert isinstance(found, StoreError)
    assert words in str(found)


def test_an_address_that_leads_nowhere_is_refused_within_ten_seconds(bucket):
    """A bucket or a server that is not there, a name that nobody resolves."""
    from store.remote.objects.objects import open_objects

    with pytest.raises(NotFoundError, match="expected a bucket, found none"):
        open_objects("s3://no-such-bucket/x", endpoint=bucket.server.url)
    for endpoint in ("http://127.0.0.1:9", "http://no-such-host.invalid"):
        start = time.monotonic()
        with pytest.raises(UnreachableError):
            open_objects(bucket.url(), endpoint=endpoint, usual_s=4.1)
        assert time.monotonic() - start < 10


def test_a_setting_that_the_client_does_not_know_is_refused(bucket):
    """By its name."""
    with pytest.raises(SchemaError, match="check endpoint, colour"):
        bucket.open(colour="red")


def test_a_forked_child_refuses_at_once(objects):
    """Where the client would wait for ever."""

    assert "forked" in in_child(lambda: complaint(StoreError, objects.get, "data"))


def test_without_obstore_the_message_says_what_to_install(monkeypatch, capsys):
    """And nothing else of the store needs it."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert main(["pull", "s3://bucket/x", "x.zarr"]) == 2
    assert "the package obstore is not installed" in capsys.readouterr().err


def test_pauses_grow_and_none_ends_after_the_limit():
    """Attempts begin only where they can end in time."""
    now, pauses = [0.0], []

    def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds

    def attempt():
        now[0] += 1.0
        raise TransientFault("a fault")

    policy = RetryPolicy(20.0, 2.0, clock=lambda: now[0], sleep=sleep)
    with pytest.raises(
        UnreachableError, match=r"found a fault, in \d+ attempts and 1\d\.\d s, and"
    ):
        policy("here", attempt)
    assert now[0] <= 20
    assert len(pauses) >= 5


def test_a_client_that_panics_is_an_error(objects, monkeypatch):
    """What Rust raises is no Exception, and no name says what it is but its own."""

    class PanicException(BaseException):
        pass

    def panic(*_):
        raise PanicException("SECRET")

    monkeypatch.setattr(objects.client, "_obs", SimpleNamespace(head=panic))
    with pytest.raises(StoreError, match="check endpoint and credentials") as caught:
        objects.head("data")
    assert "SECRET" not in f"{caught.value!r} {caught.value.__cause__!r}"
