"""The address of a store in a bucket. Pure.

Credentials are never part of it: they come from the environment, and an address that holds some is
refused without being shown.
"""

import re
from typing import NamedTuple

from store.errors import SchemaError

__all__ = ["SCHEMES", "Location", "check_endpoint", "is_url", "parse_url"]

SCHEMES = ("s3", "gs", "az")
EXPECTED = "expected s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_ENDPOINT = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:(\d{1,5}))?(/[\w./~-]*)?", re.ASCII)
_PART = re.compile(r"[^/?#%*\\\x00-\x1f\x7f]+")
MAX_PATH = 512  # a key has at most 1024 bytes, and a store's own paths take some of them


class Location(NamedTuple):
    """Where a store is.

    Attributes
    ----------
    scheme
        One of `SCHEMES`.
    bucket
        Of S3 and GCS; the container of Azure.
    prefix
        Path of the store in it, without slashes at its ends; may be empty.
    """

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")


def is_url(text: str) -> bool:
    """Whether a text is meant as an address and not as a path."""
    return _SCHEME.match(text) is not None


def parse_url(url: str) -> Location:
    """Take an address apart.

    Raises
    ------
    SchemaError
        It is none of a store, or holds more than bucket and path: that may be a secret.
    """
    found = _SCHEME.match(url)
    if found is None or found[1].lower() not in SCHEMES:
        shown = "no address" if found is None else f"{found[1]:.20}://"
        raise SchemaError(f"{EXPECTED}, found {shown}")
    bucket, _, path = url[found.end() :].partition("/")
    prefix = path.strip("/")
    if "@" in bucket or "?" in url or "#" in url:
        raise SchemaError(
            f"{EXPECTED}, found more than that, which is not shown; "
            "give credentials in the environment"
        )
    if not _BUCKET.fullmatch(bucket):
        raise SchemaError(f"{EXPECTED}, found the bucket {bucket!r:.80}")
    parts = prefix.split("/") if prefix else []
    is_bad = any(not _PART.fullmatch(part) or set(part) <= {"."} for part in parts)
    if is_bad or len(prefix.encode(errors="replace")) > MAX_PATH:
        raise SchemaError(
            f"{EXPECTED} with a path of plain names of at most {MAX_PATH} bytes, "
            f"found {prefix!r:.80}"
        )
    return Location(found[1].lower(), bucket, prefix)


def check_endpoint(endpoint: str) -> None:
    """Raise SchemaError unless a text is the address of a server; what it is may be a secret."""
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or int(found[3] or 0) > 65535:
        raise SchemaError(
            "endpoint: expected http://HOST:PORT or https://HOST, found another text; check "
            "--endpoint, or the variable that names it"
        )
