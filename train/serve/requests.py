"""What clients may ask, as OpenAI's clients write it, and how they are refused.

An option that would change an answer, and that is not served, is refused; others are ignored.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.exceptions import HTTPException

from store.sources.huggingface.generation import Decoding

__all__ = ["Asked", "Kind", "Refused", "check_model", "describe_error", "read_asked"]

Kind = Literal["chat", "text", "score"]
Message = dict[str, str]

MOST = 2**63 - 1
LEAST_TEMPERATURE = 0.01  # above 0
LEAST_TOP_P = 1e-9
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
NEUTRAL: dict[str, tuple[Any, ...]] = {  # values that say what is done without the option
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "stop": ([],),
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    # of other servers, whose clients send them too
    "top_k": (-1, 0),
    "min_p": (0,),
    "min_tokens": (0,),
    "repetition_penalty": (1,),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
}


class Refused(HTTPException):
    """A request that gets no answer: the status, and a text that holds nothing of the request."""

    def __init__(
        self, status: int, text: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(status, text)
        self.param = param
        self.code = code


def describe_error(error: HTTPException) -> dict[str, Any]:
    """An error as OpenAI's clients expect it."""
    status = error.status_code
    kind = "server_error" if status >= 500 else TYPES.get(status, "invalid_request_error")
    param, code = (getattr(error, name, None) for name in ("param", "code"))
    return {"error": {"message": error.detail, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True)
class Asked:
    """A request that was read."""

    prompt: str | list[Message]  # a text, or the turns of a chat
    answer: str | None = None  # that is to be scored
    decoding: Decoding = field(default_factory=Decoding)
    seed: int | None = None
    max_tokens: int | None = None
    streams: bool = False
    wants_usage: bool = False  # at the end of a stream


def read_asked(content: bytes, kind: Kind, model: str) -> Asked:
    """Read the body of a request for the `model` that is served, or for none; raises Refused."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "body: expected JSON, found none") from error
    if not isinstance(body, dict):
        raise Refused(400, f"body: expected an object, found {type(body).__name__}")
    asked = typed(body, "model", str)
    check_model(model if asked is None else asked, model)
    prompt = read_prompt(body, kind)
    if kind == "score":
        return Asked(prompt, typed(body, "answer", str, needed=True))
    for name, values in NEUTRAL.items():
        if body.get(name) is not None and body[name] not in values:
            raise Refused(400, f"{name}: not served; leave it out", name)
    # greedy without a temperature, as the answers that a run is trained on by default
    temperature = number(body, "temperature", (int, float), 0, 100)
    if temperature and temperature < LEAST_TEMPERATURE:
        text = f"temperature: expected 0, or {LEAST_TEMPERATURE} to 100"
        raise Refused(400, text, "temperature")
    decoding = Decoding()
    if temperature:
        top_p = number(body, "top_p", (int, float), LEAST_TOP_P, 1)
        decoding = Decoding(temperature=float(temperature), top_p=1.0 if top_p is None else top_p)
    longest = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    return Asked(
        prompt,
        decoding=decoding,
        seed=number(body, "seed", int, 0, MOST),
        max_tokens=number(body, longest, int, 1, MOST),
        streams=bool(typed(body, "stream", bool)),
        wants_usage=bool((typed(body, "stream_options", dict) or {}).get("include_usage")),
    )


def check_model(asked: str, served: str) -> None:
    """Raise Refused for a model that is not served."""
    if asked != served:
        text = "model: expected the one that /v1/models names, found another"
        raise Refused(404, text, "model", "model_not_found")


def number(body: Mapping[str, object], name: str, kind: object, least: float, most: int) -> Any:
    """A number of a request; None where it is not there."""
    value = typed(body, name, kind)
    if value is not None and not least <= value <= most:
        raise Refused(400, f"{name}: expected {least} to {most}", name)
    return value


def typed(body: Mapping[str, Any], name: str, kind: Any, *, needed: bool = False) -> Any:
    """A value of a request; None where it is not there."""
    value = body.get(name)
    is_wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
    if is_wrong and (needed or value is not None):
        names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else [kind]))
        raise Refused(400, f"{name}: expected {names}, found {type(value).__name__}", name)
    return value


def read_prompt(body: Mapping[str, object], kind: Kind) -> str | list[Message]:
    """The text or the turns that are answered; refused are both, of which one would be ignored."""
    is_chat = body.get("messages") is not None
    if is_chat and body.get("prompt") is not None:
        raise Refused(400, "expected prompt or messages, found both", "messages")
    if kind == "chat" or (kind == "score" and is_chat):
        return read_messages(body)
    return typed(body, "prompt", str, needed=True)


def read_messages(body: Mapping[str, object]) -> list[Message]:
    """The turns of a chat; parts of a message are joined."""
    messages = typed(body, "messages", list, needed=True)
    if not messages or not all(isinstance(one, dict) for one in messages):
        raise Refused(400, "messages: expected a list of objects with role and content", "messages")
    return [
        {"role": typed(one, "role", str, needed=True), "content": text_of(one)} for one in messages
    ]


def text_of(message: Mapping[str, object]) -> str:
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(
        isinstance(one, dict) and one.get("type") == "text" and isinstance(one.get("text"), str)
        for one in parts
    ):
        raise Refused(400, "messages: expected content of text, found other content", "messages")
    return "".join(one["text"] for one in parts)
