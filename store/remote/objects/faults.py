"""What can go wrong with a server or a disk, in words, and what is worth another attempt. Pure.

The client's own texts are read and never shown: they may hold signed addresses or names of keys.
"""

import errno
import re
from pathlib import Path

from store.errors import CorruptError, LockedError, NotFoundError, StoreError

__all__ = [
    "FULL",
    "ConflictError",
    "NoBucketError",
    "TransientFault",
    "disk_fault",
    "fault_of",
]

FULL = (errno.ENOSPC, errno.EDQUOT)
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_ROLE = re.compile(r"https?://\S+/latest/(api/token|meta-data)")  # who tells of a machine's role
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
SKEWED = ("RequestTimeTooSkewed", "RequestInTheFuture")
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "AllAccessDisabled")
WORTH_RETRYING = (
    "BadDigest",
    "OperationAborted",
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "XAmzContentSHA256Mismatch",  # of bytes that flipped on their way
)
CAUSES = (  # what the client's text has, and how it is said
    ("dns error", "the server's name is not known to the resolver"),
    ("connection refused", "the server refuses connections"),
    ("tcp connect error", "the server cannot be connected to"),
    ("unexpectedrange", "another range than was asked for"),
    ("timedout", "no answer in time"),
    ("timed out", "no answer in time"),
    ("reset", "the connection was reset"),
    ("incompletemessage", "the connection ended early"),
    ("incomplete", "a body that ended early"),
    ("unexpectedeof", "a body that ended early"),
    ("decode", "a body that ended early"),
)


class ConflictError(LockedError):
    """The object is not the one that the condition named: another writer was there first."""


class NoBucketError(NotFoundError):
    """There is no bucket of this name: nothing can be written either."""


class TransientFault(Exception):
    """A failure that another attempt may not meet; its text is the cause."""


def fault_of(error: BaseException, where: str) -> StoreError | TransientFault:
    """What an error of the client means; `where` is the object's address, without credentials.

    A TransientFault is worth another attempt. Of the others, ConflictError says that a condition
    did not hold, NotFoundError that nothing is there.
    """
    name = type(error).__name__
    text = str(error)
    code = _first(_CODE, text)
    status = int(_first(_STATUS, text) or 0)
    if code in NO_BUCKET:
        return NoBucketError(f"{where}: expected a bucket, found none of this name; check it")
    if _ROLE.search(text) and status < 500:
        return StoreError(
            f"{where}: expected credentials, found none in the environment, in ~/.aws, or by a "
            "role of this machine; set them, or AWS_SKIP_SIGNATURE=true for a public bucket"
        )
    denied = _denied(name, code, status, where)
    if denied is not None:
        return denied
    if name in ("AlreadyExistsError", "PreconditionError", "NotModifiedError"):
        return ConflictError(f"{where}: another writer changed it meanwhile; run it again")
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{where}: expected an object, found none; check the address")
    if "region" in text.lower() and ("redirect" in text.lower() or status in (301, 307)):
        if where.startswith("http"):
            return StoreError(
                f"{where}: the server sends requests on, and not where; ask its owner"
            )
        return StoreError(f"{where}: the bucket is in another region; set AWS_REGION")
    if name == "NotSupportedError" and "Range" in text:
        return StoreError(
            f"{where}: expected a server that answers ranges of a file, found one that sends it "
            "whole, or another page, as one to log in; pull the store with another program, or "
            "serve it from another server"
        )
    shown = f"status {status}" + (f" ({code})" if code else "")
    if status == 501:
        return StoreError(f"{where}: the server does not know this request ({shown}); use another")
    if status == 416:
        return CorruptError(
            f"{where}: expected an object of all its bytes, found a shorter one; it was changed or "
            "cut: open the store again, or push it again"
        )
    if status >= 500 or status in (408, 409, 429) or code in WORTH_RETRYING:
        return TransientFault(shown)
    if status:
        return StoreError(f"{where}: expected an answer, found {shown}; check address and endpoint")
    lowered = text.lower()
    if "following redirect" in lowered:
        return StoreError(
            f"{where}: the server sends requests on without an end; check the address"
        )
    if "content-range" in lowered or "content_range" in lowered:
        return StoreError(f"{where}: the server does not say which range it sends; use another")
    if "missingcontentlength" in lowered:
        return StoreError(
            f"{where}: the server does not say how long its answer is (Content-Length); use another"
        )
    if "CaUsedAsEndEntity" in text:
        return StoreError(
            f"{where}: expected a certificate of a server, found one of an authority (CA:TRUE); "
            "make the server one with CA:FALSE"
        )
    if "NotValidForName" in text:
        return StoreError(
            f"{where}: expected a certificate of this server, found one of another name; check "
            "the address"
        )
    if "certificate" in lowered:
        return StoreError(
            f"{where}: expected a certificate that is trusted, found another; set SSL_CERT_FILE to "
            "a file (PEM) that has the authority's, or check the address"
        )
    return TransientFault(next((said for sign, said in CAUSES if sign in lowered), "no answer"))


def _denied(name: str, code: str, status: int, where: str) -> StoreError | None:
    """What is wrong with the credentials, if that is it."""
    if code in EXPIRED:
        return StoreError(f"{where}: the credentials are expired; renew them and run it again")
    if code in SKEWED:
        return StoreError(f"{where}: the clocks of this machine and the server differ; set it")
    if name in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403):
        found = code or "a refusal"
        if where.startswith("http"):
            return StoreError(
                f"{where}: expected a file that everybody may read, found {found}; web "
                "servers get no credentials: have it served to all, or from a bucket"
            )
        return StoreError(
            f"{where}: expected permission to read, write and list, found {found}; "
            "check the credentials in the environment"
        )
    return None


def _first(pattern: re.Pattern, text: str) -> str:
    found = pattern.search(text)
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
