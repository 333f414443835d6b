"""What a request asks for, and answers: JSON, and numbers as raw bytes."""

import gzip
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from starlette.convertors import Convertor
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from store.format.schema import TRACE_ID
from store.read.source import address_of
from store.traces.notes import notes_path
from store.view.columns import array_headers
from store.view.snapshots import Snapshots, Wanted
from store.view.traces import Pieces, Texts, check_row

__all__ = ["BINARY", "Asked", "Number", "json_response", "packed", "raw_response"]

BINARY = "application/octet-stream"
PACKED_BYTES = 1000  # shorter texts go in one packet of the network


class Number(Convertor[int]):
    """A whole number in a path; a longer one is no address of anything."""

    regex = "[0-9]{1,15}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


class Asked:
    """A request about a state of a store.

    `table` and `store` are that state; `row` and `name` come from the path: a trace, and what is
    asked of it or of the store. `tokenizer` is for the texts of tokens that the store does not
    hold. Raises IndexError or NotFoundError where no such store, or no such state of it, is open.
    """

    def __init__(
        self, request: Request, stores: Sequence[Snapshots], tokenizer: Texts | None
    ) -> None:
        path = request.path_params
        number: int = path["store"]
        if number >= len(stores):
            raise IndexError(f"store: expected 0 to {len(stores) - 1}, found {number}")
        self.path = path
        self.row: int = path.get("row", 0)
        self.name: str = path.get("name", "")
        self.query = request.query_params
        self.tokenizer = tokenizer
        self._headers = request.headers
        self._snapshots = stores[number]
        self.table = self._snapshots.table(path["generation"])
        self.store = self.table.store

    @cached_property
    def rows(self) -> np.ndarray:
        """The rows of the filter, in the order asked for: uint32 `(n,)`; raises StoreError."""
        is_descending = self.query.get("descending") == "1"
        wanted = Wanted(self.text("filter").strip(), self.text("sort"), is_descending)
        return self._snapshots.rows(self.path["generation"], wanted)

    @property
    def trace_id(self) -> str:
        """The id of the trace; raises IndexError if there is no such row."""
        (found,) = self.table.texts(TRACE_ID, [check_row(self.store, self.row)])
        return found

    @property
    def notes_path(self) -> Path | None:
        """Where the notes of the store lie; None beside a store in a bucket."""
        path = self._snapshots.path
        return None if address_of(path) else notes_path(path)

    @property
    def pieces(self) -> Pieces:
        """What gives the texts of any ids: the tokenizer, else what the store's tokens have."""
        return self.tokenizer or self.table.pieces.with_row(self.row)

    @property
    def layer(self) -> int | None:
        """The position of a layer that the query names; None if it names none."""
        layer = self.integer("layer", -1)
        return None if layer < 0 else layer

    def column_named_by(self, key: str) -> np.ndarray:
        """The column of numbers that the query names, in the rows: `(n,)`; raises StoreError."""
        rows = self.rows
        return self.table.numbers(self.text(key))[rows]

    def text(self, key: str) -> str:
        return self.query.get(key, "")

    def integer(self, key: str, default: int) -> int:
        """A whole number of the query; raises ValueError."""
        text = self.query.get(key)
        if text is None:
            return default
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 16):
            raise ValueError(f"{key}: expected a whole number, found {text!r:.40}")
        return int(text)

    def number(self, key: str, default: float) -> float:
        """A finite number of the query; raises ValueError."""
        text = self.query.get(key) or str(default)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"{key}: expected a number, found {text!r:.40}")
        return value

    def kept(self, build: Callable[[], tuple[np.ndarray, dict[str, str]]]) -> Response:
        """Numbers and headers that follow from the column: the browser keeps those of the store.

        Scores of runs come from files that may change while the store does not.
        """
        if self.name in self.table.scores:
            return raw_response(*build())
        etag = f'"{self.store.uuid}-{self.store.generation}-{self.name}"'
        if self._headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={"ETag": etag})
        values, headers = build()
        return raw_response(values, headers | {"ETag": etag})


def json_response(content: object, status: int = 200) -> Response:
    body = json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # texts of a store may have halves of surrogate pairs, which UTF-8 does not
    return Response(body.encode("utf-8", "replace"), status, media_type="application/json")


def packed(response: Response) -> Response:
    """The answer, compressed if it is a text; numbers hardly shrink, and streams begin at once."""
    is_text = not isinstance(response, StreamingResponse) and response.media_type != BINARY
    if is_text and len(response.body) >= PACKED_BYTES:
        response.body = gzip.compress(response.body, 5, mtime=0)
        length = {"Content-Length": str(len(response.body))}
        response.headers.update({"Content-Encoding": "gzip", "Vary": "Accept-Encoding"} | length)
    return response


def raw_response(values: np.ndarray, headers: Mapping[str, str] | None = None) -> Response:
    """Numbers as bytes, little-endian, with their dtype and shape in headers."""
    kept = {"Cache-Control": "no-cache"} | array_headers(values) | dict(headers or {})
    return Response(values.tobytes(), headers=kept, media_type=BINARY)
