"""What can go wrong with a server or a disk, in words, and what is worth another attempt. Pure.

The client's own texts are read and never shown: they may hold signed addresses or names of keys.
"""

import errno
import re
from pathlib import Path

from store.errors import CorruptError, LockedError, NotFoundError, StoreError

__all__ = [
    "FULL",
    "SHORTER",
    "ConflictError",
    "NoBucketError",
    "TransientFault",
    "disk_fault",
    "fault_of",
]

SHORTER = (
    "expected an object of all its bytes, found a shorter one; it was changed or cut: open the "
    "store again, or push it again"
)
FULL = (errno.ENOSPC, errno.EDQUOT)


class ConflictError(LockedError):
    """The object is not the one that the condition named: another writer was there first."""


class NoBucketError(NotFoundError):
    """There is no bucket of this name: nothing can be written either."""


class TransientFault(Exception):
    """A failure that another attempt may not meet; its text is the cause."""


FAULTS: tuple[tuple[str, type[StoreError | TransientFault], str], ...] = (
    # a sign in "NAME-OF-THE-ERROR: TEXT", what it means, how it is said; the first counts
    (
        "<Code>(NoSuchBucket|ContainerNotFound|AllAccessDisabled)<",
        NoBucketError,
        "expected a bucket, found none of this name; check it",
    ),
    (  # who tells of a machine's role
        r"^(?!.*status code: 5).*https?://\S+/latest/(api/token|meta-data)",
        StoreError,
        "expected credentials, found none in the environment, in ~/.aws, or by a role of this "
        "machine; set them, or AWS_SKIP_SIGNATURE=true for a public bucket",
    ),
    (
        "<Code>(ExpiredToken(Exception)?|TokenRefreshRequired|RequestExpired)<",
        StoreError,
        "the credentials are expired; renew them and run it again",
    ),
    (
        "<Code>(RequestTimeTooSkewed|RequestInTheFuture)<",
        StoreError,
        "the clocks of this machine and the server differ; set it",
    ),
    (
        "PermissionDeniedError|UnauthenticatedError|status code: 40[13]",
        StoreError,
        "expected permission to read, write and list, found a refusal ({shown}); check the "
        "credentials in the environment, or, of a web server, whether everybody may read its files",
    ),
    (
        "^(AlreadyExists|Precondition|NotModified)Error",
        ConflictError,
        "another writer changed it meanwhile; run it again",
    ),
    (
        "^(File)?NotFoundError",
        NotFoundError,
        "expected an object, found none; check the address",
    ),
    (
        "^(?=.*region).*(redirect|status code: 30[17])",
        StoreError,
        "the server sends requests on, and not where; of a bucket, set AWS_REGION to its region",
    ),
    (
        "NotSupportedError.*Range",
        StoreError,
        "expected a server that answers ranges of a file, found one that sends it whole, or "
        "another page, as one to log in; pull the store with another program, or serve it from "
        "another server",
    ),
    (
        "status code: 416",
        CorruptError,
        SHORTER,
    ),
    (
        "status code: (5(?!01)|408|409|429)"
        "|<Code>(BadDigest|OperationAborted|RequestTimeout|SlowDown|Throttling"
        "|XAmzContentSHA256Mismatch)<",  # of bytes that flipped on their way
        TransientFault,
        "{shown}",
    ),
    (
        "status code",
        StoreError,
        "expected an answer, found {shown}; check address and endpoint",
    ),
    (
        "following redirect|content.range|MissingContentLength",
        StoreError,
        "the server sends requests on without an end, or does not say which range it sends, or "
        "how long its answer is (Content-Length); check the address, or use another server",
    ),
    (
        "certificate|CaUsedAsEndEntity",
        StoreError,
        "expected a trusted certificate of this server, and of no authority (CA:FALSE), found "
        "another; set SSL_CERT_FILE to a file (PEM) that has its authority's, or check the address",
    ),
    ("dns error", TransientFault, "the server's name is not known to the resolver"),
    ("connection refused", TransientFault, "the server refuses connections"),
    ("tcp connect error", TransientFault, "the server cannot be connected to"),
    ("UnexpectedRange", TransientFault, "another range than was asked for"),
    ("timed ?out", TransientFault, "no answer in time"),
    ("reset|IncompleteMessage", TransientFault, "the connection was reset"),
    ("incomplete|UnexpectedEof|decode", TransientFault, "a body that ended early"),
    ("", TransientFault, "no answer"),
)


def fault_of(error: BaseException, where: str) -> StoreError | TransientFault:
    """What an error of the client means; `where` is the object's address, without credentials.

    A TransientFault is worth another attempt. Of the others, ConflictError says that a condition
    did not hold, NotFoundError that nothing is there.
    """
    text = f"{type(error).__name__}: {error}"
    status = _first(r"status code: (\d{3})", text)
    code = _first(r"<Code>([A-Za-z0-9]{1,64})</Code>", text)
    shown = f"status {status}" + (f" ({code})" if code else "")
    kind, words = next(
        (kind, words)
        for sign, kind, words in FAULTS
        if re.search(sign, text, re.IGNORECASE | re.DOTALL)
    )
    said = words.format(shown=shown)
    return kind(said if kind is TransientFault else f"{where}: {said}")


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


def disk_fault(cache_dir: Path, error: OSError) -> StoreError:
    """The error for readers whose chunks could not be written into the cache directory."""
    cure = "see whether it can be written"
    if error.errno in FULL:
        cure = "free some space there, or give the cache fewer bytes"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        cure = "raise the limit of open files (ulimit -n)"
    return StoreError(
        f"{cache_dir}: expected to write chunks into the cache directory, found: "
        f"{error.strerror}; {cure}"
    )
