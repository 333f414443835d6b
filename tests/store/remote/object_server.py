"""A server of objects in memory, as S3 and GCS have them, that does what networks and servers do
wrong.

`faults(method, path)` names what happens to a request; None lets it pass. The names:

- "slow": the answer comes `slow_s` later.
- "503", "expired", "skewed", "denied": an answer of that kind, and nothing is done.
- "reset": the connection is reset before anything is done.
- "stall": the headers of the answer, half of its body, and then nothing.
- "short": half of the body, and the connection ends.
- "flip": one bit of a body is another: of the answer, or of what is written, which servers see that
  check the signature; "flip-unseen": this one does not.
- "lost": it is done, and the connection is reset before the answer.
- "moved": an object is found at another address, which knows no conditions and no signatures.
- "blind": conditions of writes are overlooked, as by servers that do not know them.
"""

import contextlib
import itertools
import random
import re
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from email.utils import formatdate
from hashlib import md5
from typing import NamedTuple
from xml.sax.saxutils import escape, unescape

from servers import Answer, Handler, Server

CODES = {
    "503": (503, "SlowDown"),
    "expired": (400, "ExpiredToken"),
    "skewed": (403, "RequestTimeTooSkewed"),
    "denied": (403, "AccessDenied"),
}
MOVED = "/moved"
DATE = "2026-01-01T00:00:00.000Z"
PAGE = 20  # objects of a list: clients have to ask for more
Faults = Callable[[str, str], str | None]


class Stored(NamedTuple):
    data: bytes
    generation: int

    @property
    def etag(self) -> str:
        return f'"{md5(self.data, usedforsecurity=False).hexdigest()}"'

    @property
    def headers(self) -> dict[str, str]:
        generation = {"x-goog-generation": str(self.generation)}
        return {"ETag": self.etag, "Last-Modified": formatdate(0, usegmt=True)} | generation


class ObjectServer(Server):
    """Has buckets of some names, which are empty at first.

    Attributes
    ----------
    buckets
        name -> key -> object.
    faults
        May be changed at any time.
    key
        Requests that are not signed with this one are denied; None: all are answered.
    refuses_signed
        Whether signed requests are denied.
    seen
        Method, path and fault of each request.
    """

    def __init__(self, *buckets: str) -> None:
        super().__init__(_Handler)
        self.buckets: dict[str, dict[str, Stored]] = {name: {} for name in buckets}
        self.faults: Faults = lambda method, path: None
        self.key: str | None = None
        self.refuses_signed = False
        self.slow_s = 0.05
        self.stall_s = 30.0
        self.seen: list[tuple[str, str, str | None]] = []
        self.generations = itertools.count(1)
        self.lock = threading.Lock()
        self.random = random.Random(0)  # noqa: S311
        self.is_over = threading.Event()

    def close(self) -> None:
        self.is_over.set()
        super().close()

    def flipped(self, body: bytes) -> bytes:
        """The body with one bit changed."""
        if not body:
            return body
        at = self.random.randrange(len(body))
        return body[:at] + bytes([body[at] ^ 1 << self.random.randrange(8)]) + body[at + 1 :]


class _Handler(Handler):
    server: ObjectServer

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.faults(self.command, self.path)
        signature = self.headers.get("Authorization", "")
        if self.server.refuses_signed and (signature or "X-Amz-Signature" in self.path):
            fault = "denied"
        if self.server.key and self.server.key not in signature:
            fault = "denied"
        self.server.seen.append((self.command, self.path, fault))
        if fault == "reset":
            self._reset()
        elif fault in CODES:
            self.answer(*refusal(*CODES[fault]))
        elif self.path.startswith(MOVED):
            self.answer(*self._find(self.path.removeprefix(MOVED).partition("?")[0], "", {}, body))
        elif fault == "moved" and self.command == "GET" and "list-type" not in self.path:
            self.answer(302, b"", {"Location": f"{self.server.url}{MOVED}{self.path}"})
        elif fault == "flip" and self.command == "PUT":
            self.answer(*refusal(400, "XAmzContentSHA256Mismatch"))
        else:
            self._answer(fault, body)

    def _answer(self, fault: str | None, body: bytes) -> None:
        if fault == "flip-unseen" and self.command == "PUT":
            body = self.server.flipped(body)
        path, _, query = self.path.partition("?")
        status, data, headers = self._find(
            path, query, {} if fault == "blind" else self.headers, body
        )
        if fault == "lost":
            self._reset()
            return
        if fault == "slow":
            time.sleep(self.server.slow_s)
        if fault == "flip":
            data = self.server.flipped(data)
        is_cut = fault in ("short", "stall") and self.command != "HEAD" and bool(data)
        length = {"Content-Length": str(len(data))}
        self.answer(status, data[: len(data) // 2] if is_cut else data, {**headers, **length})
        if is_cut:
            self.wfile.flush()
            if fault == "stall":
                self.server.is_over.wait(self.server.stall_s)
            self._reset()

    def _reset(self) -> None:
        """End the connection as a crashed peer does."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def _find(self, path: str, query: str, conditions: Mapping[str, str], body: bytes) -> Answer:
        """Do what is asked for; the answer."""
        name, _, key = urllib.parse.unquote(path[1:]).partition("/")
        with self.server.lock:
            bucket = self.server.buckets.get(name)
            if bucket is None:
                return refusal(404, "NoSuchBucket")
            if self.command == "POST":
                keys = re.findall("<Key>(.*?)</Key>", body.decode())
                for one in keys:
                    bucket.pop(unescape(one), None)
                gone = "".join(f"<Deleted><Key>{one}</Key></Deleted>" for one in keys)
                return Answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())
            if not key:
                return listed(bucket, dict(urllib.parse.parse_qsl(query)))
            stored = bucket.get(key)
            if self.command != "PUT" and stored is None:
                return refusal(404, "NoSuchKey")
            if not holds(conditions, stored):
                return refusal(412, "PreconditionFailed")
            if self.command == "PUT":
                bucket[key] = Stored(body, next(self.server.generations))
                return Answer(200, b"", bucket[key].headers)
            if self.command == "DELETE":
                del bucket[key]
                return Answer(204)
            return self.part_of(stored.data, stored.headers)


def holds(conditions: Mapping[str, str], stored: Stored | None) -> bool:
    """Whether an object may be read or written: of S3 by its etag, of GCS by its generation."""
    expected = conditions.get("x-goog-if-generation-match")
    etags = (None, stored.etag if stored else "none")
    return (
        conditions.get("If-Match") in etags
        and (conditions.get("If-None-Match") != "*" or stored is None)
        and (expected is None or int(expected) == (stored.generation if stored else 0))
    )


def refusal(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Key>AKIASECRET</Key></Error>".encode())


def listed(bucket: dict[str, Stored], query: dict[str, str]) -> Answer:
    """A page of a list."""
    after = query.get("continuation-token", "")
    keys = sorted(k for k in bucket if k.startswith(query.get("prefix", "")) and k > after)
    found = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>{DATE}</LastModified>"
        f"<Size>{len(bucket[key].data)}</Size><ETag>{escape(bucket[key].etag)}</ETag></Contents>"
        for key in keys[:PAGE]
    )
    if keys[PAGE:]:
        found += f"<NextContinuationToken>{escape(keys[PAGE - 1])}</NextContinuationToken>"
    return Answer(200, f"<ListBucketResult>{found}</ListBucketResult>".encode())
