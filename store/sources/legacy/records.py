"""The older formats: what a file's content is, and the rows in it. Pure: content in, rows of NumPy
arrays out.

Four kinds are told apart by their content, never by a name:

- **raw v3**: a list of dicts with `hidden_states`, `attentions`, one array a layer.
- **raw v1**: the same keys, one array a layer *and step of the generation* (the first step is the
  whole prompt), of
  several beams; the first is the answer.
- **lstm**: `{"sequences", "labels", "question_ids"}`, the last token's states of every layer.
- **graphs**: `{"graphs", "labels", "question_ids"}`, a graph for each layer of each trace.

A record that contradicts itself is a `RecordError`; the others of its file are not affected.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from store.errors import SchemaError
from store.format.schema import Column, Schema
from store.format.values import is_integer
from store.sources import reductions

__all__ = [
    "GRAPHS",
    "LSTM",
    "NOTHING",
    "RAW_V1",
    "RAW_V3",
    "Kind",
    "Limits",
    "RecordError",
    "Row",
    "ids_and_labels",
    "kind_of",
    "schema_of",
    "sequence",
    "smallest_edge",
]

Row = dict[str, Any]

# of a list of texts: one text, named again and again, would fill the memory
MAX_CHARACTERS = 16_000_000

# name: ragged axis (None: fixed), names of the item axes
COLUMNS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "question_id": (None, ()),
    "tokens": ("tokens", ()),
    "token_texts": (None, ()),
    "prompt_len": (None, ()),
    "answer_len": (None, ()),
    "question": (None, ()),
    "answer": (None, ()),
    "references": (None, ()),
    "score": (None, ()),
    "label": (None, ()),
    "hs_last": (None, ("layers", "hidden")),
    "hidden_states": ("tokens", ("layers", "hidden")),
    "attn_mean": ("pairs", ("layers",)),
    "attn_diag": ("tokens", ("layers", "heads")),
    "attn_colsum": ("tokens", ("layers", "heads")),
    "attn_pmass": ("tokens", ("layers", "heads")),
    "attentions": ("squares", ("layers", "heads")),
    "source_file": (None, ()),
}


class RecordError(SchemaError):
    """One record of a file contradicts itself: it is left out."""


class Limits(NamedTuple):
    """What is made of a record.

    Attributes
    ----------
    keep_attention
        Keep its full attention maps.
    max_bytes
        Most bytes of its arrays: one array, named again and again in a small file, would fill the
        memory.
    """

    keep_attention: bool
    max_bytes: int

    def check(self, arrays: Iterable[np.ndarray], key: str) -> None:
        """Raise RecordError if these are too large together."""
        n_bytes = sum(array.nbytes for array in arrays)
        if n_bytes > self.max_bytes:
            raise RecordError(
                f"{key}: expected at most {self.max_bytes} bytes, found {n_bytes} (see --max-file-gb)"
            )


class Kind(NamedTuple):
    """One of the older formats.

    Attributes
    ----------
    name
        As messages call it.
    rows
        (content, limits) -> one function for each record, which makes its row or raises
        RecordError. What the content holds of a record may be freed once it was called.
    """

    name: str
    rows: Callable[[Any, Limits], Iterator[Callable[[], Row]]]


def kind_of(content: object) -> Kind:
    """Tell what the content of a file is; raises SchemaError with what it is not."""
    if isinstance(content, Mapping):
        for kind, key in ((LSTM, "sequences"), (GRAPHS, "graphs")):
            if {key, "labels", "question_ids"} <= content.keys():
                return kind
        raise _unknown(f"a dict with the keys {_keys(content)}")
    if not isinstance(content, list):
        raise _unknown(type(content).__name__)
    if not content:
        return NOTHING
    first = content[0]
    if not isinstance(first, Mapping) or not {"hidden_states", "attentions"} <= first.keys():
        keys = _keys(first) if isinstance(first, Mapping) else type(first).__name__
        raise _unknown(f"a list of {keys}")
    by_step = isinstance(first["hidden_states"], Sequence) and any(
        isinstance(layer, Sequence) for layer in first["hidden_states"][:1]
    )
    return RAW_V1 if by_step or "global_example_id" in first else RAW_V3


def _keys(content: Mapping) -> list[str]:
    """Some of the keys, to show; others than texts may be endless."""
    return sorted(key[:40] for key in content if isinstance(key, str))[:12]


def _unknown(found: str) -> SchemaError:
    return SchemaError(
        "expected a list of raw traces (hidden_states, attentions), or a dict of sequences or graphs with labels and "
        f"question_ids, found {found}"
    )


def schema_of(row: Row) -> Schema:
    """The columns of a row; its arrays give dtypes and shapes."""
    return Schema({name: _column(name, row[name]) for name in COLUMNS if name in row})


def _column(name: str, value: object) -> Column:
    if isinstance(value, str):
        return Column("utf8")
    axis, axis_names = COLUMNS[name]
    array = np.asarray(value)
    return Column(array.dtype.name, array.shape[1:] if axis else array.shape, axis, axis_names)


def _raw_rows(
    make: Callable[[Mapping, Limits], Row], content: list, limits: Limits
) -> Iterator[Callable[[], Row]]:
    first = {id(record): i for i, record in reversed(list(enumerate(content)))}
    firsts = [first[id(record)] for record in content]
    for i in range(len(content)):
        yield lambda i=i: make(_take(content, i, firsts[i]), limits)


def _take(content: list, i: int, first: int) -> Mapping:
    """Record i, which the list lets go; raises RecordError if it was there before."""
    record, content[i] = content[i], None
    if first != i:
        raise RecordError(f"expected a record of its own, found record {first} again")
    if not isinstance(record, Mapping):
        raise RecordError(f"expected a dict, found {type(record).__name__}")
    return record


def _raw_v3_row(record: Mapping, limits: Limits) -> Row:
    tokens = _integers(record, "tokens")
    states = [_floats(layer, "hidden_states", 2) for layer in _layers(record, "hidden_states")]
    maps = [_floats(layer, "attentions", 3) for layer in _layers(record, "attentions")]
    limits.check([*states, *maps], "hidden_states and attentions")
    states = _without_embedding(states, maps)
    row = {
        "question_id": _text(record, "question_id"),
        "tokens": tokens,
        "answer": _text(record, "generated_answer_clean"),
        **_state_columns(states, len(tokens)),
        **_attention_columns(maps, len(tokens), None, limits.keep_attention),
    }
    if "tokens_decoded" in record:
        texts = _texts(record, "tokens_decoded")
        if len(texts) != len(tokens):
            raise RecordError(
                f"tokens_decoded: expected {len(tokens)} texts, one a token, found {len(texts)}"
            )
        row["token_texts"] = json.dumps(texts, ensure_ascii=False)
    return row


def _raw_v1_row(record: Mapping, limits: Limits) -> Row:
    prompt_len = _integer(record, "prompt_length")
    states, maps = (
        [[_beam(step, key, ndim) for step in _steps(layer, key)] for layer in _layers(record, key)]
        for key, ndim in (("hidden_states", 3), ("attentions", 4))
    )
    limits.check(
        [step for layer in [*states, *maps] for step in layer], "hidden_states and attentions"
    )
    states = _without_embedding(states, maps)
    for key, steps, axis in (("hidden_states", states[0], 0), ("attentions", maps[0], 1)):
        if steps[0].shape[axis] != prompt_len:
            found = f"found {prompt_len}"
            raise RecordError(
                f"prompt_length: expected {steps[0].shape[axis]} as in the first step of {key}, {found}"
            )
    states = [np.concatenate(layer) for layer in states]
    n_tokens = len(states[0])
    maps = [_joined_map(layer, n_tokens) for layer in maps]
    references = _texts(record, "ground_truth_answers") if "ground_truth_answers" in record else []
    return {
        "question_id": str(_integer(record, "global_example_id")),
        "tokens": _fed_tokens(_integers(record, "tokens_full"), n_tokens),
        "prompt_len": np.int32(prompt_len),
        "answer_len": np.int32(n_tokens - prompt_len),
        "question": _text(record, "question"),
        "answer": _text(record, "generated_answer_clean"),
        "references": json.dumps(references, ensure_ascii=False),
        **_state_columns(states, n_tokens),
        **_attention_columns(maps, n_tokens, prompt_len, limits.keep_attention),
    }


def _fed_tokens(tokens: np.ndarray, n_tokens: int) -> np.ndarray:
    """The tokens that have states: the last one that was generated never went into the model."""
    if len(tokens) not in (n_tokens, n_tokens + 1):
        raise RecordError(
            f"tokens_full: expected {n_tokens} tokens as hidden_states has, or one more, found {len(tokens)}"
        )
    return tokens[:n_tokens]


def _beam(step: object, key: str, ndim: int) -> np.ndarray:
    """The first beam of a step, which is the answer's."""
    beams = _floats(step, key, ndim)
    if not len(beams):
        raise RecordError(f"{key}: expected a beam at least, found none")
    return beams[0]


def _joined_map(parts: list[np.ndarray], n_tokens: int) -> np.ndarray:
    """Rows of the attention map step by step, each `(H, q, k)` -> `(H, T, T)`; what was not there
    yet is zero."""
    found = sum(part.shape[1] for part in parts)
    if found != n_tokens:
        raise RecordError(
            f"attentions: expected {n_tokens} tokens as hidden_states has, found {found}"
        )
    joined = np.zeros((len(parts[0]), n_tokens, n_tokens), parts[0].dtype)
    at = 0
    for part in parts:
        n_heads, n_rows, n_seen = part.shape
        if n_heads != len(joined) or n_seen != at + n_rows:
            raise RecordError(
                f"attentions: expected {len(joined)} heads that see {at + n_rows} tokens of {n_tokens}, "
                f"found shape {part.shape}"
            )
        joined[:, at : at + n_rows, :n_seen] = part
        at += n_rows
    return joined


def _without_embedding(states: list[Any], maps: list[Any]) -> list[Any]:
    """The states of the layers that have attention maps: transformers gives the embedding's before
    them."""
    if len(states) not in (len(maps), len(maps) + 1):
        raise RecordError(
            f"hidden_states: expected states of the {len(maps)} layers of attentions, or one more before them, the "
            f"embedding's, found {len(states)}"
        )
    return states[-len(maps) :]


def _state_columns(states: list[np.ndarray], n_tokens: int) -> Row:
    """`(T, d)` of each layer -> hidden_states `(T, L, d)`, hs_last `(L, d)`."""
    for layer in states:
        if layer.shape != (n_tokens, states[0].shape[1]) or layer.dtype != states[0].dtype:
            raise RecordError(
                f"hidden_states: expected shape {(n_tokens, states[0].shape[1])} of {states[0].dtype} in every layer, "
                f"one row a token, found {layer.shape} of {layer.dtype}"
            )
    if not states[0].size:
        raise RecordError(
            f"hidden_states: expected numbers for one token at least, found shape {states[0].shape}"
        )
    hidden = np.stack(states, axis=1)
    return {"hs_last": hidden[-1], "hidden_states": hidden}


def _attention_columns(
    maps: list[np.ndarray], n_tokens: int, prompt_len: int | None, keep: bool
) -> Row:
    """`(H, T, T)` of each layer, reduced in float32 one layer after the other, then cast."""
    if not maps[0].shape[0]:
        raise RecordError("attentions: expected one head at least, found none")
    for layer in maps:
        if layer.shape != (len(maps[0]), n_tokens, n_tokens):
            raise RecordError(
                f"attentions: expected shape {(len(maps[0]), n_tokens, n_tokens)} in every layer, found {layer.shape}"
            )
    reduced: dict[str, list[Tensor]] = {}
    for layer in maps:
        attention = torch.from_numpy(layer)[None].float()  # (1, H, T, T)
        parts = {
            "attn_mean": reductions.mean_triangle(attention),
            "attn_diag": reductions.diagonal(attention),
            "attn_colsum": reductions.column_sums(attention),
        }
        if prompt_len is not None:
            parts["attn_pmass"] = reductions.prompt_mass(attention, prompt_len)
        for name, part in parts.items():
            reduced.setdefault(name, []).append(part.half())
    columns = {name: torch.cat(parts, dim=1).numpy() for name, parts in reduced.items()}
    if keep:
        columns["attentions"] = (
            np.stack(maps).transpose(2, 3, 0, 1).reshape(-1, len(maps), len(maps[0]))
        )
    return columns


def _preprocessed_rows(
    make: Callable[[Mapping, int], Row], content: Mapping, limits: Limits
) -> Iterator[Callable[[], Row]]:
    ids, labels = ids_and_labels(content, kind_of(content))
    for i, question_id in enumerate(ids):
        yield lambda i=i, question_id=question_id: {
            "question_id": question_id,
            "label": labels[i],
            **make(content, i),
        }


def _lstm_row(content: Mapping, i: int) -> Row:
    return {"hs_last": sequence(content, i)}


def sequence(content: Mapping, i: int) -> np.ndarray:
    """The last token's states of trace i of an lstm file: `(L, d)`."""
    return _floats(content["sequences"][i], "sequences", 2)


def ids_and_labels(content: Mapping, kind: Kind) -> tuple[list[str], list[np.int8]]:
    """Question and label of every trace of a preprocessed file; raises SchemaError if they do not
    belong together."""
    key = "graphs" if kind is GRAPHS else "sequences"
    ids = _texts(content, "question_ids")
    labels = np.asarray(_array(content["labels"]), np.float64).reshape(-1)
    for name, n in ((key, len(content[key])), ("labels", len(labels))):
        if n != len(ids):
            raise SchemaError(f"{name}: expected {len(ids)} of them as question_ids has, found {n}")
    return ids, [_label(value) for value in labels.tolist()]


def _label(value: float) -> np.int8:
    """1, 0, or -1 for what is neither."""
    return np.int8(value if value in (0, 1) else -1)


def _graph_row(content: Mapping, i: int) -> Row:
    """The graphs of trace i, one a layer -> hidden_states, hs_last and attn_mean; an edge that is
    not there is 0."""
    layers = content["graphs"][i]
    if not isinstance(layers, list | tuple) or not layers:
        raise RecordError("graphs: expected a list of a graph for each layer, found something else")
    states = [_floats(_field(graph, "x"), "x", 2) for graph in layers]
    columns = _state_columns(states, len(states[0]))
    n_tokens = len(states[0])
    edges = [_edges(graph, n_tokens) for graph in layers]
    mean = np.zeros((n_tokens * (n_tokens + 1) // 2, len(layers)), edges[0][1].dtype)
    for layer, (pairs, values) in enumerate(edges):
        mean[pairs, layer] = values
    return columns | {"attn_mean": mean}


def _edges(graph: object, n_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Pair number and attention of every edge: source j is attended by target i, j <= i."""
    source, target = _array(_field(graph, "edge_index")).astype(np.int64).reshape(2, -1)
    values = _floats(_field(graph, "edge_attr"), "edge_attr", None).reshape(-1)
    if len(values) != len(source):
        raise RecordError(
            f"edge_attr: expected {len(source)} values, one an edge, found {len(values)}"
        )
    if len(source) and (source.min() < 0 or target.max() >= n_tokens or (source > target).any()):
        raise RecordError(
            f"edge_index: expected edges from a token to itself or a later one of {n_tokens}, found others"
        )
    pairs = target * (target + 1) // 2 + source
    if len(np.unique(pairs)) != len(pairs):
        raise RecordError("edge_index: expected every edge once, found one twice")
    return pairs, values


def smallest_edge(content: Mapping) -> float:
    """The threshold that the graphs of a file were surely built with or above: 0 if all are
    complete.

    The file does not tell it. Graphs of a higher threshold than the smallest attention kept
    anywhere are the same whether they are built from these edges or from the full maps.
    """
    smallest = math.inf
    complete = True
    for layers in content["graphs"]:
        # a damaged trace is told when its turn comes
        with suppress(RecordError, TypeError, ValueError):
            for graph in layers:
                n_tokens, values = len(_field(graph, "x")), _array(_field(graph, "edge_attr"))
                complete &= values.size == n_tokens * (n_tokens + 1) // 2
                smallest = min(smallest, float(values.min(initial=np.inf)))
    if not complete and smallest == math.inf:
        raise SchemaError(
            "graphs: expected an edge in some graph, found none; --attn-threshold is not known"
        )
    return 0.0 if complete else smallest


def _field(graph: object, name: str) -> object:
    """A field of a graph, whatever else its class computes from it."""
    try:
        return graph[name]
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(
            f"graphs: expected graphs with x, edge_index and edge_attr, found none with {name}"
        ) from error


def _layers(record: Mapping, key: str) -> Sequence:
    layers = _get(record, key)
    if not isinstance(layers, list | tuple) or not layers:
        raise RecordError(
            f"{key}: expected a list of an array for each layer, found {type(layers).__name__}"
        )
    return layers


def _steps(layer: object, key: str) -> Sequence:
    if not isinstance(layer, list | tuple) or not layer:
        raise RecordError(
            f"{key}: expected a list of an array for each step, found {type(layer).__name__}"
        )
    return layer


def _get(record: Mapping, key: str) -> object:
    if key not in record:
        raise RecordError(f"expected the key {key!r}, found {_keys(record)}")
    return record[key]


def _text(record: Mapping, key: str) -> str:
    value = _get(record, key)
    if not isinstance(value, str):
        raise RecordError(f"{key}: expected a text, found {type(value).__name__}")
    return value


def _texts(record: Mapping, key: str) -> list[str]:
    values = _get(record, key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RecordError(f"{key}: expected a list of texts, found something else")
    if sum(map(len, values)) > MAX_CHARACTERS:
        raise RecordError(
            f"{key}: expected at most {MAX_CHARACTERS} characters, found {sum(map(len, values))}"
        )
    return values


def _integer(record: Mapping, key: str) -> int:
    value = _get(record, key)
    if not is_integer(value):
        raise RecordError(f"{key}: expected an integer, found {type(value).__name__}")
    return int(value)


def _integers(record: Mapping, key: str) -> np.ndarray:
    """Token ids: int32 `(T,)`."""
    array = _array(_get(record, key))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise RecordError(
            f"{key}: expected integers in one dimension, found {array.dtype} of shape {array.shape}"
        )
    if array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
        raise RecordError(f"{key}: expected token ids that int32 holds, found {array.max()}")
    return array.astype(np.int32)


def _floats(value: object, key: str, ndim: int | None) -> np.ndarray:
    """An array of floating numbers with so many axes."""
    array = _array(value)
    if array.dtype.kind != "f" or (ndim is not None and array.ndim != ndim):
        axes = "" if ndim is None else f" with {ndim} axes"
        raise RecordError(
            f"{key}: expected floating numbers{axes}, found {array.dtype} of shape {array.shape}"
        )
    return array


def _array(value: object) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return np.asarray(value)


RAW_V3, RAW_V1 = (
    Kind("raw v3", partial(_raw_rows, _raw_v3_row)),
    Kind("raw v1", partial(_raw_rows, _raw_v1_row)),
)
NOTHING = Kind("empty", lambda content, limits: iter(()))
LSTM = Kind("lstm", partial(_preprocessed_rows, _lstm_row))
GRAPHS = Kind("graphs", partial(_preprocessed_rows, _graph_row))
