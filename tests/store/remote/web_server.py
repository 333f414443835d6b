"""A static web server: files of a folder, with ranges or without, behind a redirect or not."""

import http.server
import threading
from pathlib import Path


class WebServer(http.server.ThreadingHTTPServer):
    """Serves the files of a folder below /files/; what is asked below /moved/ is found there.

    Attributes
    ----------
    url
        Its address.
    has_ranges
        Whether it answers with a part where one is asked for.
    methods
        What it was asked for.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.has_ranges = True
        self.methods: set[str] = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def log_message(self, *_) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.methods.add(self.command)
        if self.path.startswith("/moved/"):
            self._answer(302, b"", {"Location": self.path.replace("/moved/", "/files/", 1)})
            return
        file = self.server.folder / self.path.removeprefix("/files/")
        if not self.path.startswith("/files/") or not file.is_file():
            self._answer(404, b"not here")
            return
        data = file.read_bytes()
        span = self.headers["Range"]
        if span is None or not self.server.has_ranges:
            self._answer(200, data)
            return
        first, _, last = span.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(data) - int(last))
        stop = min(int(last) + 1, len(data)) if first and last else len(data)
        found = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
        self._answer(206, data[start:stop], found)

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        fixed = {"Content-Length": str(len(data)), "Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT"}
        for name, value in (fixed | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
