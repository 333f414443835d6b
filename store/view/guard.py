"""Lets the requests through to the page's server that `safety` does not refuse."""

from urllib.parse import parse_qs

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from store.view.safety import HEADERS, check_request, cookie_header

__all__ = ["Guard"]


class Guard:
    """Refuses what `safety` refuses, and adds its headers to every answer."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self.app = app
        self.token = token
        self.cookie = cookie

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
            extra["Set-Cookie"] = cookie_header(self.cookie, self.token)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), text.encode()) for name, text in extra.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        app = self.app if refusal is None else PlainTextResponse(refusal.text, refusal.status)
        await app(scope, receive, send_with_headers)
