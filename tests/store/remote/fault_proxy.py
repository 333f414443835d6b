"""A proxy before an object store that does what networks and servers do wrong.

`faults(method, path)` names what happens to a request; None lets it pass. The names:

- "slow": the answer comes `slow_s` later.
- "503", "expired", "skewed", "denied": an answer of that kind, and nothing is done.
- "reset": the connection is reset before the request is passed on.
- "stall": the headers of the answer, half of its body, and then nothing.
- "short": half of the body, and the connection ends.
- "flip": one bit of a body is another: of the answer, or of what is written, which servers see that
  check the signature; "flip-unseen": this one does not.
- "lost": the server does it, and the connection is reset before the answer.
- "moved": an object is found at another address, which knows no conditions and no signatures.
- "blind": conditions of writes are taken out, as servers do that do not know them.
"""

import contextlib
import http.client
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from servers import Handler, Server

CODES = {
    "503": (503, "SlowDown"),
    "expired": (400, "ExpiredToken"),
    "skewed": (403, "RequestTimeTooSkewed"),
    "denied": (403, "AccessDenied"),
}
MOVED = "/moved"
ANY_KEY = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request"
HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")
Faults = Callable[[str, str], str | None]


class FaultProxy(Server):
    """Asks the server at an address in turn.

    Attributes
    ----------
    faults
        May be changed at any time.
    key
        Requests that are not signed with this one are denied; None: all are answered.
    refuses_signed
        Whether signed requests are denied.
    seen
        Method, path and fault of each request.
    """

    def __init__(self, backend: str) -> None:
        super().__init__(_Handler)
        self.backend = urlsplit(backend)
        self.faults: Faults = lambda method, path: None
        self.key: str | None = None
        self.refuses_signed = False
        self.slow_s = 0.05
        self.stall_s = 30.0
        self.seen: list[tuple[str, str, str | None]] = []
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

    def pass_on(self, method: str, path: str, headers: dict, body: bytes) -> tuple:
        """Ask the server, which answers only who has a key; its status, headers and body."""
        headers = {"Authorization": ANY_KEY} | headers
        connection = http.client.HTTPConnection(self.backend.hostname, self.backend.port)
        try:
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


class _Handler(Handler):
    server: FaultProxy

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.faults(self.command, self.path)
        if self.server.refuses_signed and (
            "Authorization" in self.headers or "X-Amz-Signature" in self.path
        ):
            fault = "denied"
        if self.server.key and self.server.key not in self.headers.get("Authorization", ""):
            fault = "denied"
        self.server.seen.append((self.command, self.path, fault))
        if self.path.startswith(MOVED):
            self._answer_moved()
        elif fault == "moved" and self.command == "GET" and "list-type" not in self.path:
            self._send(fault, 302, [("Location", f"{self.server.url}{MOVED}{self.path}")], b"")
        elif fault == "reset":
            self._reset()
        elif fault in CODES:
            self._refuse(*CODES[fault])
        else:
            self._answer(fault, body)

    def _answer_moved(self) -> None:
        kept = {"Range": self.headers["Range"]} if self.headers["Range"] else {}
        path = self.path.removeprefix(MOVED).partition("?")[0]
        self._send(None, *self.server.pass_on(self.command, path, kept, b""))

    def _answer(self, fault: str | None, body: bytes) -> None:
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP}
        if fault == "blind":
            headers = {k: v for k, v in headers.items() if not k.lower().startswith("if-")}
        is_write = self.command in ("PUT", "POST")
        if fault == "flip" and is_write and body:
            self._refuse(400, "XAmzContentSHA256Mismatch")
            return
        if fault == "flip-unseen" and is_write:
            body = self.server.flipped(body)
        status, answered, data = self.server.pass_on(self.command, self.path, headers, body)
        if fault == "lost":
            self._reset()
            return
        if fault == "slow":
            time.sleep(self.server.slow_s)
        if fault == "flip" and not is_write:
            data = self.server.flipped(data)
        self._send(fault, status, answered, data)

    def _send(self, fault: str | None, status: int, headers: list, data: bytes) -> None:
        self.send_response_only(status)
        lengths = [value for name, value in headers if name.lower() == "content-length"]
        for name, value in headers:
            if name.lower() not in HOP:
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", lengths[0] if is_head and lengths else str(len(data)))
        self.end_headers()
        is_cut = fault in ("short", "stall") and not is_head and len(data) > 0
        self.wfile.write(data[: len(data) // 2] if is_cut else b"" if is_head else data)
        if is_cut:
            self.wfile.flush()
            if fault == "stall":
                self.server.is_over.wait(self.server.stall_s)
            self._reset()

    def _refuse(self, status: int, code: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Key>AKIASECRET</Key></Error>"
        self._send(None, status, [("Content-Type", "application/xml")], text.encode())

    def _reset(self) -> None:
        """End the connection as a crashed peer does."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()
