"""Numbers of a request's path and query, and answers: JSON, and numbers as raw bytes."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from starlette.convertors import Convertor
from starlette.requests import Request
from starlette.responses import Response

from store.view.columns import Table

__all__ = ["Number", "integer", "json_response", "kept_response", "number", "raw_response"]


class Number(Convertor[int]):
    """A whole number in a path; a longer one is no address of anything."""

    regex = "[0-9]{1,15}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


def integer(request: Request, name: str, default: int) -> int:
    """A whole number of the query; raises ValueError."""
    text = request.query_params.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 16):
        raise ValueError(f"{name}: expected a whole number, found {text!r:.40}")
    return int(text)


def number(request: Request, name: str, default: float) -> float:
    """A finite number of the query; raises ValueError."""
    text = request.query_params.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name}: expected a number, found {text!r:.40}")
    return value


def json_response(content: Any, status: int = 200) -> Response:
    body = json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # texts of a store may have halves of surrogate pairs, which UTF-8 does not
    return Response(body.encode("utf-8", "replace"), status, media_type="application/json")


def kept_response(
    request: Request,
    table: Table,
    name: str,
    build: Callable[[], tuple[np.ndarray, dict[str, str]]],
) -> Response:
    """Numbers and headers that follow from a column: the browser keeps those of the store.

    Scores of runs come from files that may change while the store does not.
    """
    store = table.store
    etag = f'"{store.uuid}-{store.generation}-{name}"' if name not in table.scores else ""
    if etag and request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={"ETag": etag})
    values, headers = build()
    return raw_response(values, headers | {"ETag": etag} if etag else headers)


def raw_response(values: np.ndarray, headers: Mapping[str, str] | None = None) -> Response:
    """Numbers as bytes, little-endian, with their dtype and shape in headers."""
    array = np.ascontiguousarray(values)
    described = {"X-Dtype": array.dtype.name, "X-Shape": ",".join(map(str, array.shape))}
    kept = {"Cache-Control": "no-cache"} | described | dict(headers or {})
    return Response(array.tobytes(), headers=kept, media_type="application/octet-stream")
