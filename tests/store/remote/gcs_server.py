"""A small server of objects as GCS has them, in memory: its XML interface, and generations."""

import http.server
import itertools
import threading
import urllib.parse
from email.utils import formatdate
from hashlib import md5
from typing import NamedTuple
from xml.sax.saxutils import escape

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


class GcsServer(http.server.ThreadingHTTPServer):
    """One bucket after the other comes into being by `make_bucket`.

    Attributes
    ----------
    url
        Its address.
    buckets
        Name -> key -> object.
    """

    daemon_threads = True
    request_queue_size = 128  # more ask at once than the usual five

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.buckets: dict[str, dict[str, Stored]] = {}
        self.generations = itertools.count(1)
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def make_bucket(self, name: str) -> None:
        self.buckets[name] = {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GcsServer

    def log_message(self, *_) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        name, _, key = urllib.parse.unquote(path[1:]).partition("/")
        with self.server.lock:
            bucket = self.server.buckets.get(name)
            if bucket is None:
                self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            elif not key:
                self._list(bucket, dict(urllib.parse.parse_qsl(query)))
            elif self.command == "PUT":
                self._put(bucket, key, body)
            else:
                self._read_or_delete(bucket, key)

    do_GET = do_HEAD = do_PUT = do_DELETE = _do

    def _put(self, bucket: dict[str, Stored], key: str, body: bytes) -> None:
        expected = self.headers.get("x-goog-if-generation-match")
        present = bucket[key].generation if key in bucket else 0
        if expected is not None and int(expected) != present:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        bucket[key] = Stored(body, next(self.server.generations))
        self._answer(200, b"", bucket[key].headers)

    def _read_or_delete(self, bucket: dict[str, Stored], key: str) -> None:
        if key not in bucket:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        stored = bucket[key]
        etag = self.headers.get("If-Match")
        if etag not in (None, stored.headers["ETag"]):
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        elif self.command == "DELETE":
            del bucket[key]
            self._answer(204, b"")
        elif "Range" in self.headers:
            size = len(stored.data)
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            if not first:  # the last bytes
                first, last = str(max(0, size - int(last))), str(size)
            stop = min(int(last) + 1, size)
            span = {"Content-Range": f"bytes {first}-{stop - 1}/{size}"}
            self._answer(206, stored.data[int(first) : stop], stored.headers | span)
        else:
            self._answer(200, stored.data, stored.headers)

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
        self._answer(200, f"<ListBucketResult>{found}</ListBucketResult>".encode())

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
