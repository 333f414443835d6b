"""One trace: its texts and numbers, and columns with a value for each token."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from store.errors import NotFoundError, SchemaError
from store.format.schema import Schema
from store.read.store import TraceStore
from store.text_records import parse_list
from store.traces.columns import TRACE_COLUMNS
from store.traces.layers import LAYERS_AXIS
from store.view.columns import Table, json_number
from store.view.pieces import stored_pieces

__all__ = [
    "RECEIVED",
    "Pieces",
    "Texts",
    "candidates",
    "candidates_of_all",
    "check_row",
    "count_items",
    "read_column",
    "received",
    "token_columns",
    "token_values",
    "trace_values",
]

TOKENS = "tokens"
RECEIVED = "attn_colsum"
# ids of tokens are names, and states are vectors: no number of theirs is a colour
NOT_COLOURS = {
    name
    for name, column in TRACE_COLUMNS.items()
    if column.of == "states" or (column.axis == TOKENS and column.dtype == "int32")
}


class Pieces(Protocol):
    """Turns the ids of tokens into their texts, as far as they are known."""

    def texts(self, ids: Sequence[int]) -> Sequence[str | None]: ...


class Texts(Protocol):
    """Turns the ids of tokens into their texts."""

    def texts(self, ids: Sequence[int]) -> list[str]: ...


def trace_values(table: Table, row: int, tokenizer: Texts | None = None) -> dict[str, Any]:
    """What a page shows of a trace at once, as JSON has it.

    `tokenizer` is for the texts of tokens that the store does not hold. Returns `row`, `texts` and
    `numbers` (column -> value), `tokens` (ids), `token_texts` (one a token, or None), and
    `prompt_len` (0 where it is not known). Raises IndexError if there is no such row.
    """
    rows = table.store.check_rows([check_row(table.store, row)])
    texts: dict[str, str] = {}
    numbers: dict[str, Any] = {}
    stored = table.store.read_arrays(
        rows, [name for name in table.kinds if name not in table.scores]
    )
    for name, kind in table.kinds.items():
        if kind == "text":
            (texts[name],) = stored.texts(name)
            continue
        values = table.scores[name][rows] if name in table.scores else stored.numbers(name)
        numbers[name] = json_number(values[0].item())
    ids = _token_ids(table.store, row)
    return {
        "row": row,
        "texts": texts,
        "numbers": numbers,
        "tokens": ids,
        "token_texts": token_texts(texts.pop("token_texts", None), ids, tokenizer),
        "prompt_len": _length(numbers.get("prompt_len")),
        "references": _references(texts.get("references")),
    }


def _length(value: float | str | None) -> int:
    """A number of tokens; 0 where it is none, as NaN, infinity and negative ones are."""
    return max(0, int(value)) if isinstance(value, int | float) else 0


def check_row(store: TraceStore, row: int) -> int:
    """The row; raises IndexError if the store has none of that number, from 0."""
    if not 0 <= row < len(store):
        raise IndexError(f"row: expected 0 to {len(store) - 1}, found {row}")
    return row


def read_column(
    store: TraceStore,
    row: int,
    name: str,
    layer: int | None = None,
    tokens: slice | None = None,
) -> np.ndarray:
    """What a column of tokens or pairs has in one trace: float32 `(n, …)`.

    Of one layer, a position from 0, its axis stays, with one position. Raises IndexError if there
    is no such row or layer, and SchemaError for a layer of a column without layers.
    """
    check_row(store, row)
    column = store.schema.columns[name]
    select: dict[str, int | slice] = {}
    if layer is not None:
        if LAYERS_AXIS not in column.axis_names:
            raise SchemaError(f"column {name!r}: expected one with layers; leave the layer out")
        n_layers = column.item_shape[0]
        if not 0 <= layer < n_layers:
            raise IndexError(f"layer: expected a position from 0 to {n_layers - 1}, found {layer}")
        select[LAYERS_AXIS] = layer
    if tokens is not None:
        select[column.axis or ""] = tokens
    packed = store.read_arrays([row], [name], {name: select} if select else None)
    return packed.float32(name)


def count_items(store: TraceStore, name: str, row: int) -> int:
    """Items of a ragged column in one row; the lengths of the other rows are not read."""
    check_row(store, row)
    start, stop = store.offsets(store.schema.axis_of(name) or "")[row : row + 2].tolist()
    return stop - start


def _token_ids(store: TraceStore, row: int) -> list[int]:
    column = store.schema.columns.get(TOKENS)
    if column is None or column.axis is None or column.item_shape:
        return []
    ids: Any = store[row][TOKENS]
    return ids.tolist()


def _references(text: str | None) -> list[str]:
    """The right answers, which the store holds as a JSON list; another text is one answer."""
    if not text:
        return []
    found = parse_list(text)
    return [text] if found is None else [*map(str, found)]


def token_texts(
    stored: str | None, ids: Sequence[int], tokenizer: Texts | None
) -> list[str] | None:
    """The text of each token: as stored, else by the tokenizer, else None.

    `stored` is the column `token_texts` of the row, a JSON list, which is not used if it has
    another length than `ids`. Negative ids are unknown and have no text.
    """
    texts = stored_pieces(stored, len(ids))
    if texts is not None:
        return texts
    if tokenizer is None or not ids or min(ids) < 0:
        return None
    return tokenizer.texts(ids)


def token_columns(schema: Schema) -> list[str]:
    """Columns that have a number, or an array of numbers, for each token of a trace."""
    tokens = schema.columns.get(TOKENS)
    axis = tokens.axis if tokens is not None and tokens.axis is not None else TOKENS
    return [
        name
        for name, column in schema.columns.items()
        if column.axis == axis and name not in NOT_COLOURS
    ]


def token_values(store: TraceStore, row: int, name: str, layer: int | None = None) -> np.ndarray:
    """A number for each token of a trace: float32 `(T,)`.

    Arrays are averaged over their axes. Of `attn_colsum` it is the attention that a token receives
    from each token at or after it on average, `colsum[i] / (T - i)` as in LapEigvals (Binkowski et
    al., 2025), so that early tokens do not stand out only because more tokens see them.

    `layer` is the position of the only layer to take, from 0; None: all. Raises NotFoundError if
    there is no such column of tokens, and IndexError if there is no such row or layer.
    """
    if name not in token_columns(store.schema):
        raise NotFoundError(f"{store.location}: expected a column of tokens, found {name!r:.80}")
    numbers = read_column(store, row, name, layer)
    means = numbers.mean(axis=tuple(range(1, numbers.ndim)), dtype=np.float32)
    return received(means) if name == RECEIVED else means


def received(sums: np.ndarray) -> np.ndarray:
    """Sums over the tokens that attend, `(T, …)`, divided by how many could: float32."""
    n_tokens = len(sums)
    counts = np.arange(n_tokens, 0, -1, dtype=np.float32)
    return sums / counts.reshape(-1, *[1] * (sums.ndim - 1))


def candidates(
    store: TraceStore, row: int, token: int, pieces: Pieces | None = None
) -> list[dict[str, Any]]:
    """The most likely tokens at a place of a trace, with id, text (or None) and log-probability.

    Raises IndexError if there is no such row or token.
    """
    if not _has_candidates(store.schema):
        return []
    n_tokens = count_items(store, "topk_id", row)
    if not 0 <= token < n_tokens:
        raise IndexError(f"token: expected 0 to {n_tokens - 1}, found {token}")
    (found,) = _candidates(store, row, slice(token, token + 1), pieces)
    return found


def candidates_of_all(
    store: TraceStore, row: int, pieces: Pieces | None = None
) -> list[list[dict[str, Any]]]:
    """The same of every token of a trace."""
    return _candidates(store, row, slice(None), pieces) if _has_candidates(store.schema) else []


def _has_candidates(schema: Schema) -> bool:
    columns = [schema.columns.get(name) for name in ("topk_id", "topk_logprob")]
    return all(column is not None and column.axis is not None for column in columns)


def _candidates(
    store: TraceStore, row: int, here: slice, pieces: Pieces | None
) -> list[list[dict[str, Any]]]:
    select = {"topk_id": {store.schema.columns["topk_id"].axis or "": here}}
    ids = store.read_arrays([row], ["topk_id"], select).numbers("topk_id")
    logprobs = read_column(store, row, "topk_logprob", tokens=here)
    # a column may have one candidate a token, without an axis
    pairs = zip(np.atleast_1d(ids), logprobs, strict=False)
    return [_likely(np.ravel(a).tolist(), np.ravel(b).tolist(), pieces) for a, b in pairs]


def _likely(ids: list[int], logprobs: list[float], pieces: Pieces | None) -> list[dict[str, Any]]:
    return [
        {
            "id": token_id,
            "text": pieces.texts([token_id])[0] if pieces else None,
            "logprob": json_number(logprob),
        }
        for token_id, logprob in zip(ids, logprobs, strict=False)
        if token_id >= 0
    ]
