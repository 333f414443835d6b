"""A static web server: files of a folder, with ranges or without, behind a redirect or not."""

import datetime
import http.server
import ipaddress
import ssl
import threading
from pathlib import Path

import pytest


class WebServer(http.server.ThreadingHTTPServer):
    """Serves the files of a folder below /files/; what is asked below /moved/ is found there.

    What is below /loop/ is sent back there, and below /secret/ nothing may be read.

    Attributes
    ----------
    url
        Its address.
    has_ranges
        Whether it answers with a part where one is asked for.
    has_lengths
        Whether it says how long its answers are; else they end with the connection.
    has_weak_etags
        Whether it names contents by weak etags, which fulfil no condition; else by none.
    methods, paths
        What it was asked for.
    n_signed
        So often what is below /moved/ is found at an address that ends with it; then it has ended.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.url = f"http{'s' * (context is not None)}://127.0.0.1:{self.server_port}"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.has_ranges = True
        self.has_lengths = True
        self.has_weak_etags = False
        self.methods: set[str] = set()
        self.paths: list[str] = []
        self.n_signed = 10**6
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
        self.server.paths.append(self.path)
        if self.path.startswith("/moved/"):
            there = self.path.replace("/moved/", "/files/", 1) + "?signed=a%2Fb"
            self._answer(302, b"", {"Location": there})
            return
        if self.path.endswith("?signed=a%2Fb"):
            self.path = self.path.partition("?")[0]
            self.server.n_signed -= 1
            if self.server.n_signed < 0:
                self._answer(403, b"it has ended")
                return
        if self.path.startswith(("/loop/", "/secret/", "/lost/")):
            there = {} if self.path.startswith("/lost/") else {"Location": self.path}
            self._answer(302 if self.path[1] == "l" else 401, b"", there)
            return
        file = self.server.folder / self.path.removeprefix("/files/")
        if not self.path.startswith("/files/") or not file.is_file():
            self._answer(404, b"not here")
            return
        if self.server.has_weak_etags and self.headers["If-Match"]:
            self._answer(412, b"")
            return
        span = self.headers["Range"]
        if span is None or not self.server.has_ranges:
            self._answer(200, file.read_bytes())
            return
        n_bytes = file.stat().st_size
        first, _, last = span.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, n_bytes - int(last))
        if start >= n_bytes:
            self._answer(416, b"")
            return
        stop = min(int(last) + 1, n_bytes) if first and last else n_bytes
        found = {"Content-Range": f"bytes {start}-{stop - 1}/{n_bytes}"}
        with file.open("rb") as source:
            source.seek(start)
            self._answer(206, source.read(stop - start), found)

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        fixed = {"Content-Length": str(len(data)), "Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT"}
        if self.server.has_weak_etags:
            fixed["ETag"] = 'W/"1"'
        if not self.server.has_lengths:
            del fixed["Content-Length"]
            self.close_connection = True
        for name, value in (fixed | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


def certificate(folder) -> ssl.SSLContext:
    """A server's context, with a certificate in `folder` that it signed for itself."""
    pytest.importorskip("cryptography", reason="pip install '.[test-remote]'")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    made = made.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    text = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(text))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(text, *private))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
