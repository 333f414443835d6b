"""A static web server: files of a folder, with ranges or without, behind a redirect or not."""

import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from servers import Handler, Server


class WebServer(Server):
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

    def __init__(self, folder: Path, context: ssl.SSLContext | None = None) -> None:
        super().__init__(_Handler)
        self.folder = folder
        if context is not None:
            self.url = self.url.replace("http", "https")
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.has_ranges = True
        self.has_lengths = True
        self.has_weak_etags = False
        self.methods: set[str] = set()
        self.paths: list[str] = []
        self.n_signed = 10**6


class _Handler(Handler):
    server: WebServer

    def do(self) -> None:
        server = self.server
        server.methods.add(self.command)
        server.paths.append(self.path)
        path, _, signed = self.path.partition("?")
        server.n_signed -= bool(signed)
        way, _, name = path[1:].partition("/")
        file = server.folder / name
        if way == "moved":
            self.answer(302, headers={"Location": f"/files/{name}?signed=a%2Fb"})
        elif way in ("loop", "lost"):
            self.answer(302, headers={"Location": self.path if way == "loop" else ""})
        elif way == "secret" or (signed and server.n_signed < 0):
            self.answer(401 if way == "secret" else 403, b"it has ended")
        elif way != "files" or not file.is_file():
            self.answer(404, b"not here")
        elif server.has_weak_etags and self.headers["If-Match"]:
            self.answer(412)
        else:
            self._answer_file(file.read_bytes())

    def _answer_file(self, data: bytes) -> None:
        headers = {"Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT"}
        headers["ETag"] = 'W/"1"' if self.server.has_weak_etags else ""
        if not self.server.has_lengths:
            headers["Content-Length"] = ""
            self.close_connection = True
        if self.server.has_ranges:
            self.answer(*self.part_of(data, headers))
        else:
            self.answer(200, data, headers)


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
