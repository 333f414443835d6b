"""Who may ask the server of the page for what.

The page shows private data on a port that every program of the machine, and every page that is
open in the browser, can reach. So a request must name this machine as its host (else a foreign name
was bound to 127.0.0.1: DNS rebinding), come from this page or from none, and carry the token that
was printed with the address, once in the URL and then in a cookie. What writes, a POST, must be
small, and name this page as its origin.
"""

import hmac
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADERS", "HOSTS", "Guard", "check_request", "check_sender"]

HOSTS = ("127.0.0.1", "localhost", "[::1]")
OWN_SITES = ("none", "same-origin")
METHODS = ("GET", "HEAD", "POST")
MAX_BODY = 65536
MAX_URL = 8192

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Refusal(NamedTuple):
    """The status and the text of an answer to a request that is refused."""

    status: int
    text: str


def check_request(
    method: str,
    headers: Mapping[str, str],
    url_token: str | None,
    token: str,
    cookie: str,
    url_length: int = 0,
) -> Refusal | None:
    """Say why a request is refused; None: it is not.

    `headers` are by names in lower case, `url_token` is the token in the URL, `token` the one that
    is right, and `cookie` the name of the cookie that holds it; `url_length` counts the characters
    of the path and the query.
    """
    if method not in METHODS:
        return Refusal(405, "expected GET, HEAD or POST")
    if method == "POST":
        if "origin" not in headers or url_token is not None:
            return Refusal(403, "expected a request of this page, found one without its origin")
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdecimal() and int(length[:9]) <= MAX_BODY):
            return Refusal(413, f"expected a body of at most {MAX_BODY} bytes")
    if url_length > MAX_URL:
        return Refusal(414, f"expected a URL of at most {MAX_URL} characters")
    refusal = check_sender(headers)
    if refusal is not None:
        return refusal
    # pages of other ports of this machine have our cookie, and a browser says that it is they
    if url_token is None and headers.get("sec-fetch-site", "none") not in OWN_SITES:
        return Refusal(403, "expected a request of this page, found one of another")
    given = _cookie_value(headers.get("cookie", ""), cookie) if url_token is None else url_token
    if not hmac.compare_digest(given.encode(), token.encode()):
        return Refusal(401, "expected the token: open the whole address that was printed")
    return None


def check_sender(headers: Mapping[str, str], hosts: Sequence[str] | None = HOSTS) -> Refusal | None:
    """Say why a request is refused whose host is none of ours, or that a foreign page has made.

    `hosts` may be None for any.
    """
    host = headers.get("host", "")
    if hosts is not None and _name_of(host) not in hosts:
        return Refusal(403, "expected the address that was printed: 127.0.0.1 or localhost")
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return Refusal(403, "expected a request of this page, found one of another")
    return None


def _name_of(host: str) -> str:
    """'127.0.0.1:8000' -> '127.0.0.1'; any port, because of `ssh -L`."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdecimal() else host


def _cookie_value(header: str, name: str) -> str:
    """The value of our cookie; those of other servers on this machine may be of any form."""
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return next((value for key, _, value in pairs if key == name), "")


class Guard:
    """Refuses what `check_request` refuses, and adds `HEADERS` to every answer that has no own."""

    def __init__(self, app: ASGIApp, token: str, cookie: str, kept_s: int | None = None) -> None:
        self.app = app
        self.token = token
        self.cookie = cookie
        # sent by this page alone, and out of reach of scripts
        age = "" if kept_s is None else f"; Max-Age={kept_s}"
        self.set_cookie = f"{cookie}={token}; Path=/; HttpOnly; SameSite=Strict{age}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        query = scope["query_string"].decode("latin-1")
        given = parse_qs(query[:200]).get("token", [None])[0]
        length = len(query) + len(scope["path"])
        method = scope["method"]
        refusal = check_request(method, headers, given, self.token, self.cookie, length)
        extra = dict(HEADERS)
        if refusal is None and given is not None:
            extra["Set-Cookie"] = self.set_cookie

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = message.get("headers", [])
                added = [(name.lower().encode(), text.encode()) for name, text in extra.items()]
                taken = {name for name, _ in own}
                message["headers"] = [*own, *(pair for pair in added if pair[0] not in taken)]
            await send(message)

        app = self.app if refusal is None else PlainTextResponse(refusal.text, refusal.status)
        await app(scope, receive, send_with_headers)
