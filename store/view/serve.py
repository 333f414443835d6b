"""Starts the server of the page on a port of this machine, and prints its address."""

import errno
import hashlib
import os
import re
import secrets
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from html import escape
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from store.errors import NotFoundError, SchemaError
from store.view.server import build_app
from store.view.snapshots import Snapshots
from store.view.traces import Texts

__all__ = [
    "Server",
    "configure",
    "find_trace",
    "open_listener",
    "read_token",
    "serve",
]

HOST = "127.0.0.1"
REQUEST_S = 10.0  # until a request is whole
TOKEN = re.compile(r"[\w-]{32,200}", re.ASCII)
KEPT_S = 365 * 24 * 3600  # for how long a browser keeps the cookie of a token that stays


def find_trace(stores: Sequence[Snapshots], trace_id: str) -> str:
    """The fragment of the page's address that opens a trace; that of the first store that has it.

    Raises NotFoundError if none of the stores has it.
    """
    for number, snapshots in enumerate(stores):
        row = snapshots.first.store.ids.find(trace_id)
        if row is not None:
            return f"#store={number}&row={row}"
    names = ", ".join(snapshots.first.store.location for snapshots in stores)
    raise NotFoundError(f"--trace: expected an id of a trace in {names}, found {trace_id!r:.80}")


def read_token(path: Path) -> str:
    """The token of a file, which is made if it is not there, for its owner alone.

    Raises SchemaError if the file is open to others, or holds no token.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{secrets.token_urlsafe(24)}\n")
    if path.stat().st_mode & 0o077:
        raise SchemaError(f"--token-file: expected a file for its owner alone: chmod 600 {path}")
    token = path.read_bytes()[:1000].decode("ascii", "replace").strip()
    if not TOKEN.fullmatch(token):
        raise SchemaError(
            f"--token-file: expected 32 to 200 letters, digits, - and _ in {path}, found others; "
            "remove it to have one made"
        )
    return token


def serve(
    stores: Sequence[Snapshots],
    port: int,
    tokenizer: Texts | None,
    browser: bool,
    fragment: str = "",
    token: str | None = None,
) -> None:
    """Serve the page until the process is asked to end.

    Port 0 is any free one; one that is taken raises SchemaError. `tokenizer` is for the texts of
    tokens that a store does not hold. `browser` opens the page, if the output is a terminal;
    `fragment` is what the page shows first, "#…", as its own addresses have it. `token` is
    one that stays, so that its cookie does; None: a new one.
    """
    with open_listener(HOST, port) as listener:
        port = listener.getsockname()[1]
        # no other server's: a cookie belongs to a host, and ports forwarded from two may be equal
        digest = hashlib.sha256((token or secrets.token_hex(8)).encode()).hexdigest()
        cookie = f"trace_view_{digest[:16]}"
        kept_s = None if token is None else KEPT_S
        token = token or secrets.token_urlsafe(24)
        app = build_app(stores, token, cookie, tokenizer, kept_s)
        url = f"http://{HOST}:{port}/?token={token}{fragment}"

        files = ExitStack()

        def announce() -> None:
            print(f"{url}\nonly this machine can open it; Ctrl-C ends it", flush=True)
            if browser and sys.stdout.isatty():
                webbrowser.open(files.enter_context(redirect_file(url)).as_uri())

        config = configure(app)
        with files:
            Server(config, announce, files.close).run(sockets=[listener])


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that listens; raises SchemaError for a port that is taken, or no address of ours."""
    # asyncio sends small answers at once only where the protocol is named: else they wait 40 ms
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise SchemaError(
                f"--host: expected an address of this machine, found {host!r:.80}: {error.strerror}"
            ) from error
        raise SchemaError(
            f"--port: expected a free port, found {port}: {error.strerror}; "
            "leave it out for any free one"
        ) from error
    listener.listen()  # a browser that is faster than the server waits
    return listener


def configure(app: Any) -> uvicorn.Config:
    """How the server speaks: silently, and not for ever with who sends half a request."""
    options: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False}
    return uvicorn.Config(app, http=_Connection, **options)


class _Connection(H11Protocol):
    """A connection, closed when a request does not come whole within `REQUEST_S`."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(REQUEST_S, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._timer.cancel()
        elif self._timer.cancelled():
            self._timer = self.loop.call_later(REQUEST_S, self.transport.close)


@contextmanager
def redirect_file(url: str) -> Iterator[Path]:
    """A file that leads a browser to a URL, and that only its owner can read; removed at the end.

    Every user of a machine sees the arguments of its programs, and so a token in the URL that a
    browser is started with; the path of this file says nothing.
    """
    target = escape(f"0; url={url}")
    page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="{target}">'
    descriptor, name = tempfile.mkstemp(prefix="trace-view-", suffix=".html")  # of mode 600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(page)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


class Server(uvicorn.Server):
    """Says where it is once Ctrl-C ends it cleanly; before, it would cut the loop's beginning.

    `finish` is called before a signal ends the process: nothing after `run` is reached then.
    """

    def __init__(
        self, config: uvicorn.Config, announce: Callable[[], None], finish: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._announce = announce
        self._finish = finish

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().shutdown(sockets)
        finally:
            self._finish()
