"""What the servers of the tests have in common: one in threads of this process, and its answers."""

import http.server
import threading
from collections.abc import Mapping
from typing import NamedTuple


class Server(http.server.ThreadingHTTPServer):
    """Answers until it is closed; `url` is its address."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # more ask at once than the usual five

    def __init__(self, handler: type["Handler"]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address) -> None:
        """Clients that leave are no error."""


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Handler(http.server.BaseHTTPRequestHandler):
    """Has one method for all commands, `do`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init_subclass__(cls) -> None:
        cls.do_GET = cls.do_HEAD = cls.do_PUT = cls.do_POST = cls.do_DELETE = cls.do

    def log_message(self, *_) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def part_of(self, data: bytes, headers: Mapping[str, str] = {}) -> Answer:
        """The part of an object that is asked for, or all of it."""
        if "Range" not in self.headers:
            return Answer(200, data, headers)
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(data) - int(last))
        stop = min(int(last) + 1, len(data)) if first and last else len(data)
        if start >= len(data):
            return Answer(416)
        span = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
        return Answer(206, data[start:stop], {**headers, **span})
