"""What clients may ask, as OpenAI's clients write it, and how they are refused.

An option that would change an answer, and that is not served, is refused; others are ignored.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from store.sources.huggingface.generation import Decoding

__all__ = ["Asked", "Kind", "Refused", "read_asked"]

Kind = Literal["chat", "text", "score"]
Message = dict[str, str]

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
}


class Refused(Exception):
    """A request that gets no answer: the status, and a text that holds nothing of the request."""

    def __init__(self, status: int, text: str, param: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.param = param

    def body(self) -> dict[str, Any]:
        """As OpenAI's clients expect it."""
        kind = TYPES.get(self.status, "invalid_request_error")
        if self.status >= 500:
            kind = "server_error"
        code = "invalid_api_key" if self.status == 401 else None
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": code}}


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


def read_asked(content: bytes, kind: Kind) -> Asked:
    """Read the body of a request; raises Refused."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "body: expected JSON, found none") from error
    if not isinstance(body, dict):
        raise Refused(400, f"body: expected an object, found {type(body).__name__}")
    if kind == "score":
        is_chat = "messages" in body
        prompt = read_messages(body) if is_chat else typed(body, "prompt", str, needed=True)
        return Asked(prompt, typed(body, "answer", str, needed=True))
    for name, values in NEUTRAL.items():
        if body.get(name) is not None and body[name] not in values:
            raise Refused(400, f"{name}: not served; leave it out", name)
    # greedy without a temperature, as the answers that a run is trained on by default
    temperature = typed(body, "temperature", (int, float)) or None
    if temperature is not None and not 0.01 <= temperature <= 100:
        raise Refused(400, "temperature: expected 0, or 0.01 to 100", "temperature")
    top_p = None if temperature is None else typed(body, "top_p", (int, float))
    try:
        decoding = (
            Decoding()
            if temperature is None
            else Decoding(
                temperature=float(temperature), top_p=1.0 if top_p is None else float(top_p)
            )
        )
    except (ValueError, OverflowError) as error:
        raise Refused(400, str(error), "top_p") from error
    seed = typed(body, "seed", int)
    if seed is not None and not 0 <= seed < 1 << 63:
        raise Refused(400, "seed: expected 0 or more, below 2^63", "seed")
    name = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    max_tokens = typed(body, name, int)
    if max_tokens is not None and max_tokens < 1:
        raise Refused(400, f"{name}: expected at least 1, found {max_tokens}", name)
    return Asked(
        read_messages(body) if kind == "chat" else typed(body, "prompt", str, needed=True),
        decoding=decoding,
        seed=seed,
        max_tokens=max_tokens,
        streams=bool(typed(body, "stream", bool)),
        wants_usage=bool((typed(body, "stream_options", dict) or {}).get("include_usage")),
    )


def typed(body: Mapping[str, Any], name: str, kind: Any, *, needed: bool = False) -> Any:
    """A value of a request; None where it is not there."""
    value = body.get(name)
    is_wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
    if is_wrong and (needed or value is not None):
        names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else [kind]))
        raise Refused(400, f"{name}: expected {names}, found {type(value).__name__}", name)
    return value


def read_messages(body: Mapping[str, Any]) -> list[Message]:
    """The turns of a chat; parts of a message are joined."""
    messages = typed(body, "messages", list, needed=True)
    if not messages or not all(isinstance(one, dict) for one in messages):
        raise Refused(400, "messages: expected a list of objects with role and content", "messages")
    return [
        {"role": typed(one, "role", str, needed=True), "content": text_of(one)} for one in messages
    ]


def text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(
        isinstance(one, dict) and one.get("type") == "text" and isinstance(one.get("text"), str)
        for one in parts
    ):
        raise Refused(400, "messages: expected content of text, found other content", "messages")
    return "".join(one["text"] for one in parts)
