"""A server of objects on this machine: nginx sends the bytes, a thread of ours lists them.

It takes no write and checks no signature. It may be as far away as a bucket is: each request waits
for its latency, each answer comes at the rate of one stream.
"""

import multiprocessing
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

__all__ = ["find_nginx", "served"]

START_S = 10.0
SPLICE_BYTES = 1024 * 1024
CONFIG = """
{user} daemon off; worker_processes {n_workers};
error_log {folder}/error.log; pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000; etag on;
    default_type application/octet-stream;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port}{tls}; root {root}; limit_rate {rate};
        location / {{ if ($args ~ "list-type=2") {{ proxy_pass http://127.0.0.1:{list_port}; }} }}
    }}
}}
"""


def find_nginx() -> str | None:
    """The program, which is mostly not on the path of a user; None if it is not installed."""
    return shutil.which("nginx") or shutil.which("/usr/sbin/nginx")


@contextmanager
def served(
    root: Path,
    folder: Path,
    latency_ms: float = 0.0,
    stream_mb_s: float = 0.0,
    with_tls: bool = False,
) -> Iterator[str]:
    """Serve the folders of `root` as buckets; gives the server's address.

    Parameters
    ----------
    root
        Its folders are the buckets.
    folder
        For the server's own files.
    latency_ms
        That each request waits; 0: none.
    stream_mb_s
        Megabytes a second of one answer; 0: no limit.
    with_tls
        By https://; then `SSL_CERT_FILE` of the environment names who signed for the server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lister = ThreadingHTTPServer(("127.0.0.1", 0), _lister_of(root))
    threading.Thread(target=lister.serve_forever, daemon=True).start()
    port = _free_port()
    config = folder / "nginx.conf"
    config.write_text(
        CONFIG.format(
            user="user root;" if os.geteuid() == 0 else "",  # the files are ours alone
            n_workers=os.cpu_count(),
            folder=folder.absolute(),
            root=root.absolute(),
            port=port,
            list_port=lister.server_port,
            rate=f"{int(stream_mb_s * 1000)}k" if stream_mb_s else 0,
            tls=_certificate(folder) if with_tls else "",
        )
    )
    nginx = subprocess.Popen([str(find_nginx()), "-c", str(config.absolute())])
    try:
        _wait_for(port)
        with _far_away(port, latency_ms / 1000) if latency_ms else _near(port) as seen_port:
            yield f"http{'s' * with_tls}://127.0.0.1:{seen_port}"
    finally:
        nginx.terminate()
        nginx.wait()
        lister.shutdown()
        lister.server_close()


def _certificate(folder: Path) -> str:
    """Make a certificate, and an authority that signs it; what nginx is told of it."""
    folder = folder.absolute()
    names = folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1")
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    for line in (
        f"req -x509 {key} -days 9 -subj /CN=authority -keyout ca.key -out ca.pem",
        f"req {key} -subj /CN=server -keyout key.pem -out request.pem",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -days 9 -extfile names -out cert.pem",
    ):
        subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)
    os.environ["SSL_CERT_FILE"] = str(folder / "ca.pem")
    files = f"ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem"
    return f" ssl; {files}"


def _lister_of(root: Path) -> type[BaseHTTPRequestHandler]:
    class Lister(BaseHTTPRequestHandler):
        """Answers ListObjectsV2 of S3, all objects in one page."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            options = {key: values[0] for key, values in parse_qs(address.query).items()}
            bucket = root / address.path.strip("/")
            body = _listing(bucket, options.get("prefix", ""), options.get("delimiter", ""))
            self.send_response(200)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Lister


def _listing(bucket: Path, prefix: str, delimiter: str) -> bytes:
    """The objects of a bucket as XML."""
    entries, folders = [], set()
    for path in sorted(bucket.rglob("*")):
        key = path.relative_to(bucket).as_posix()
        if not path.is_file() or not key.startswith(prefix):
            continue
        head, cut, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else ("", "", "")
        if cut:
            folders.add(prefix + head + cut)
            continue
        status = path.stat()
        changed = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))
        entries.append(
            f"<Contents><Key>{escape(key)}</Key><Size>{status.st_size}</Size>"
            f"<LastModified>{changed}</LastModified>"
            f'<ETag>"{int(status.st_mtime):x}-{status.st_size:x}"</ETag></Contents>'
        )
    entries += [
        f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>"
        for one in sorted(folders)
    ]
    return (
        "<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated>"
        f"<Name>{escape(bucket.name)}</Name><Prefix>{escape(prefix)}</Prefix>"
        f"<KeyCount>{len(entries)}</KeyCount>{''.join(entries)}</ListBucketResult>"
    ).encode()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        if time.monotonic() > deadline:
            raise SystemExit("nginx: expected it to listen, see its error.log")
        time.sleep(0.05)


@contextmanager
def _near(port: int) -> Iterator[int]:
    yield port


@contextmanager
def _far_away(port: int, latency_s: float) -> Iterator[int]:
    """A port whose requests arrive so much later; answers are passed on by the kernel.

    In a process of its own: its threads would keep those of the readers waiting.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    spawned = multiprocessing.get_context("spawn")
    process = spawned.Process(target=_pass_on, args=(listener, port, latency_s), daemon=True)
    process.start()
    try:
        yield listener.getsockname()[1]
    finally:
        process.terminate()
        process.join()
        listener.close()


def _pass_on(listener: socket.socket, port: int, latency_s: float) -> None:
    while True:
        near, _ = listener.accept()
        far = socket.create_connection(("127.0.0.1", port))
        for work in (_pass_requests, _pass_answers):
            threading.Thread(target=work, args=(near, far, latency_s), daemon=True).start()


def _pass_requests(near: socket.socket, far: socket.socket, latency_s: float) -> None:
    with suppress(OSError):
        while data := near.recv(65536):
            time.sleep(latency_s)
            far.sendall(data)
    with suppress(OSError):
        far.shutdown(socket.SHUT_WR)


def _pass_answers(near: socket.socket, far: socket.socket, _: float) -> None:
    source, target = os.pipe()
    with suppress(OSError):
        while n := os.splice(far.fileno(), target, SPLICE_BYTES):
            while n:
                n -= os.splice(source, near.fileno(), n)
    os.close(source)
    os.close(target)
    with suppress(OSError):
        near.shutdown(socket.SHUT_RDWR)
    far.close()
    near.close()
