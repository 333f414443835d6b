"""A small server of objects as GCS has them, in memory: its XML interface, and generations."""

import itertools
import threading
import urllib.parse
from email.utils import formatdate
from hashlib import md5
from typing import NamedTuple
from xml.sax.saxutils import escape

from servers import Handler, Server

DATE = "2026-01-01T00:00:00.000Z"


class Stored(NamedTuple):
    data: bytes
    generation: int

    @property
    def headers(self) -> dict[str, str]:
        etag = md5(self.data, usedforsecurity=False).hexdigest()
        return {
            "ETag": f'"{etag}"',
            "x-goog-generation": str(self.generation),
            "Last-Modified": formatdate(0, usegmt=True),
        }


class GcsServer(Server):
    """Has no bucket at first. `buckets` are name -> key -> object."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.buckets: dict[str, dict[str, Stored]] = {}
        self.generations = itertools.count(1)
        self.lock = threading.Lock()

    def make_bucket(self, name: str) -> None:
        self.buckets[name] = {}


class _Handler(Handler):
    server: GcsServer

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        name, _, key = urllib.parse.unquote(path[1:]).partition("/")
        with self.server.lock:
            bucket = self.server.buckets.get(name)
            if bucket is None:
                self._refuse(404, "NoSuchBucket")
            elif not key:
                self._list(bucket, dict(urllib.parse.parse_qsl(query)))
            elif self.command == "PUT":
                self._put(bucket, key, body)
            else:
                self._read_or_delete(bucket, key)

    def _refuse(self, status: int, code: str) -> None:
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _put(self, bucket: dict[str, Stored], key: str, body: bytes) -> None:
        expected = self.headers.get("x-goog-if-generation-match")
        present = bucket[key].generation if key in bucket else 0
        if expected is not None and int(expected) != present:
            self._refuse(412, "PreconditionFailed")
            return
        bucket[key] = Stored(body, next(self.server.generations))
        self.answer(200, b"", bucket[key].headers)

    def _read_or_delete(self, bucket: dict[str, Stored], key: str) -> None:
        stored = bucket.get(key)
        if stored is None:
            self._refuse(404, "NoSuchKey")
        elif self.headers.get("If-Match") not in (None, stored.headers["ETag"]):
            self._refuse(412, "PreconditionFailed")
        elif self.command == "DELETE":
            del bucket[key]
            self.answer(204)
        else:
            self.answer_part(stored.data, stored.headers)

    def _list(self, bucket: dict[str, Stored], query: dict[str, str]) -> None:
        """A page of two objects, so that clients have to ask for more."""
        after = query.get("continuation-token", "")
        keys = sorted(k for k in bucket if k.startswith(query.get("prefix", "")) and k > after)
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{DATE}</LastModified>"
            f"<Size>{len(bucket[key].data)}</Size>"
            f"<ETag>{escape(bucket[key].headers['ETag'])}</ETag></Contents>"
            for key in keys[:2]
        )
        if keys[2:]:
            found += f"<NextContinuationToken>{escape(keys[1])}</NextContinuationToken>"
        self.answer(200, f"<ListBucketResult>{found}</ListBucketResult>".encode())
