"""The application: OpenAI's routes, `/score`, `/health` and `/metrics`.

It writes nothing of a request into logs. A request must name this machine as its host, come from no
web page but its own, and carry the token; `/health` needs none.
"""

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from store.view.safety import check_sender
from train.serve.engine import Answer, Engine, Job
from train.serve.requests import Asked, Kind, Refused, check_model, describe_error, read_asked

__all__ = ["build_app"]

OBJECTS = {"chat": "chat.completion", "text": "text_completion"}
GONE = 499  # the client has left; nobody reads it
POLL_S = 0.5  # until it is seen that a client has left
HELP = {
    "requests_total": "Requests answered, by path and status.",
    "cancelled_total": "Requests whose client left.",
    "prompt_tokens_total": "Tokens of prompts.",
    "answer_tokens_total": "Tokens of answers.",
    "answer_seconds_total": "Time that answers and their scores took.",
    "kept_total": "Answers handed over to be kept.",
    "kept_lost_total": "Of these, answers that the store will not have: the disk is full or slow.",
    "hallucinations_total": "Answers at or above the threshold of a method.",
}


def build_app(engine: Engine, name: str, token: str, hosts: Sequence[str] | None) -> ASGIApp:
    """The application that answers for a model called `name`.

    `hosts` are the names that requests may call this machine by; None for any.
    """

    def route(path: str, kind: Kind) -> Route:
        async def handle(request: Request) -> Response:
            return await answer(request, engine, name, kind)

        return Route(path, handle, methods=["POST"])

    async def health(_: Request) -> Response:
        found = {"status": "ok", "model": name}
        return JSONResponse(found | ({} if engine.keep is None else {"keep": engine.keep.health()}))

    described = {"id": name, "object": "model", "created": 0, "owned_by": "local"}

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [described]})

    async def model(request: Request) -> Response:
        check_model(request.path_params["model"], name)
        return JSONResponse(described)

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(metrics_text(engine), media_type="text/plain; version=0.0.4")

    routes = [
        route("/v1/chat/completions", "chat"),
        route("/v1/completions", "text"),
        route("/score", "score"),
        Route("/v1/models", models),
        Route("/v1/models/{model:path}", model),
        Route("/health", health),
        Route("/metrics", metrics),
    ]
    known = {one.path for one in routes}
    handlers: Any = {HTTPException: refuse, ClientDisconnect: leave}
    app = Starlette(routes=routes, exception_handlers=handlers)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request = Request(scope)
        refused = check(request, token, hosts)
        path = scope["path"] if scope["path"] in known else "other"

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                engine.counts[f'requests_total{{path="{path}",status="{status}"}}'] += 1
            await send(message)

        chosen: ASGIApp = app if refused is None else refusal_response(refused)
        await chosen(scope, receive, counting)

    return guarded


def check(request: Request, token: str, hosts: Sequence[str] | None) -> Refused | None:
    """Say why a request is refused before it is read; None: it is not."""
    found = check_sender(request.headers, hosts)
    if found is not None:
        return Refused(*found)
    if request.url.path == "/health":
        return None
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    is_right = hmac.compare_digest(given.strip().encode(), token.encode())
    if is_right and scheme.lower() == "bearer":
        return None
    text = "expected the token that was printed, as Authorization: Bearer TOKEN"
    return Refused(401, text, code="invalid_api_key")


def refusal_response(error: HTTPException) -> Response:
    headers = {"Retry-After": "1"} if error.status_code in (429, 503) else None
    return JSONResponse(describe_error(error), error.status_code, headers)


async def refuse(_: Request, error: HTTPException) -> Response:
    return refusal_response(error)


async def leave(*_: object) -> Response:
    return Response(status_code=GONE)


async def answer(request: Request, engine: Engine, name: str, kind: Kind) -> Response:
    """Answer a request, at once or as a stream of events; raises Refused."""
    asked = read_asked(await read_body(request, engine.limits.body_bytes), kind, name)
    events = listen(request, engine.submit(asked))
    first = await anext(events)  # a refusal has a status of its own
    if asked.streams:
        content = stream(first, events, asked, name, kind)
        return StreamingResponse(content, media_type="text/event-stream")
    *pieces, end = [first, *[event async for event in events]]
    scored = {"usage": usage_of(end), "hallucination": end.hallucination}
    if kind == "score":
        return JSONResponse(scored)
    said = choice(kind, "".join(pieces), end.finish_reason, is_piece=False)
    return JSONResponse(describe(name, OBJECTS[kind]) | {"choices": [said]} | scored)


async def read_body(request: Request, limit: int) -> bytes:
    """The body; raises Refused as soon as it is longer than the limit."""
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > limit:
            raise Refused(413, f"body: expected at most {limit} bytes, found more")
    return bytes(content)


async def listen(request: Request, job: Job) -> AsyncIterator[Any]:
    """Pieces of text as they come, then the Answer; raises Refused.

    The answer is ended when nobody listens any more, and when the client has left, which raises
    ClientDisconnect.
    """
    try:
        while not await request.is_disconnected():
            try:
                event = await asyncio.wait_for(job.events.get(), POLL_S)
            except TimeoutError:
                continue
            if isinstance(event, Refused):
                raise event
            yield event
            if isinstance(event, Answer):
                return
        raise ClientDisconnect
    finally:
        job.is_gone.set()


async def stream(
    event: Any, events: AsyncIterator[Any], asked: Asked, name: str, kind: Kind
) -> AsyncIterator[str]:
    """An answer as server-sent events, from its first event on; the last choice has the scores."""
    known = describe(name, OBJECTS[kind] + (".chunk" if kind == "chat" else ""))
    role = {"role": "assistant"}
    try:
        while isinstance(event, str):
            one = choice(kind, event, None, is_piece=True)
            if kind == "chat":
                one["delta"] |= role
                role = {}
            yield as_event(known | {"choices": [one]})
            event = await anext(events)
    except Refused as refused:
        yield as_event(describe_error(refused))
        return
    except ClientDisconnect:
        return
    one = choice(kind, "", event.finish_reason, is_piece=True)
    yield as_event(known | {"choices": [one], "hallucination": event.hallucination})
    if asked.wants_usage:
        yield as_event(known | {"choices": [], "usage": usage_of(event)})
    yield "data: [DONE]\n\n"


def describe(name: str, kind: str) -> dict[str, Any]:
    return {"id": uuid.uuid4().hex, "object": kind, "created": int(time.time()), "model": name}


def choice(kind: Kind, text: str, finish: str | None, *, is_piece: bool) -> dict[str, Any]:
    known = {"index": 0, "finish_reason": finish, "logprobs": None}
    if kind == "text":
        return known | {"text": text}
    if is_piece:
        return known | {"delta": {"content": text}}
    return known | {"message": {"role": "assistant", "content": text}}


def usage_of(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.n_prompt,
        "completion_tokens": answer.n_answer,
        "total_tokens": answer.n_prompt + answer.n_answer,
    }


def as_event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def metrics_text(engine: Engine) -> str:
    """The counts in Prometheus' text format."""
    lost = {} if engine.keep is None else {"kept_lost_total": engine.keep.health()["lost"]}
    counts = sorted({**engine.counts, **lost}.items())
    lines = ["# HELP trace_serve_open_requests Requests that run or wait."]
    lines += [
        "# TYPE trace_serve_open_requests gauge",
        f"trace_serve_open_requests {engine.n_open}",
    ]
    for name, text in HELP.items():
        lines += [f"# HELP trace_serve_{name} {text}", f"# TYPE trace_serve_{name} counter"]
        lines += [f"trace_serve_{key} {n}" for key, n in counts if key.partition("{")[0] == name]
    return "\n".join([*lines, ""])
