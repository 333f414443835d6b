"""`COLUMN=KEY`: which column each key becomes, and the value that a record gives to it. Pure.

A column that the field knows has its shape and axes; hidden states of one layer may come without
the axis of layers. Any other column is as the array is: fixed, or ragged where `COLUMN:AXIS=KEY`
names an axis. Arrays keep their dtype; JSON's text has none, and what begins with a float there
becomes float32. Numbers of the field's single columns (labels, scores, token ids) become the type
that the column has everywhere: integers are never rounded, floats are.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from store.errors import NotFoundError, SchemaError, closest
from store.format.schema import TRACE_ID, Column
from store.sources.arrays.contents import Contents, Key
from store.sources.legacy.columns import COLUMNS, Axes

__all__ = [
    "KNOWN",
    "Mapped",
    "check_keys",
    "column_of",
    "has_rows",
    "parse_map",
    "references_of",
    "value_of",
]

BY_HEAD: Axes = ("tokens", ("layers", "heads"))
CANDIDATES: Axes = ("tokens", ("candidates",))
KNOWN: dict[str, Axes] = {  # column -> ragged axis (None: fixed), names of the item axes
    TRACE_ID: (None, ()),
    **COLUMNS,
    "hs_prompt": (None, ("layers", "hidden")),
    "hs_mean": (None, ("layers", "hidden")),
    "attn_amass": BY_HEAD,
    "attn_prev": BY_HEAD,
    "lens_entropy": ("tokens", ("layers",)),
    "lens_entropy_attention": ("tokens", ("layers",)),
    "lens_entropy_mlp": ("tokens", ("layers",)),
    "logprob": ("tokens", ()),
    "entropy": ("tokens", ()),
    "topk_logprob": CANDIDATES,
    "topk_id": CANDIDATES,
    "eos_logprob": (None, ()),
    "token_label": ("tokens", ()),
}
DTYPES = {  # of the known columns that are not taken as they are
    "tokens": "int32",
    "prompt_len": "int32",
    "answer_len": "int32",
    "score": "float32",
    "label": "int8",
    "token_label": "int8",
    "topk_id": "int32",
    "eos_logprob": "float32",
}
REFERENCES = "references"
TEXTS = (TRACE_ID, "question_id", "question", "answer", REFERENCES, "token_texts")
_PIECE = re.compile(r"\s*([^:=\s]+)\s*(?::\s*([^=\s]+)\s*)?=(.+)")


@dataclass(frozen=True)
class Mapped:
    """One piece of a map.

    Attributes
    ----------
    column
        Name of the column, or "trace_id".
    key
        Name in the files.
    axis
        Ragged axis that was given for a column that the field does not know.
    """

    column: str
    key: str
    axis: str | None = None

    @property
    def axes(self) -> Axes | None:
        """Axes of the column; None if only the arrays know."""
        return KNOWN.get(self.column)


def parse_map(text: str) -> list[Mapped]:
    """Read `COLUMN=KEY,COLUMN:AXIS=KEY`; raises SchemaError for anything else."""
    mapped = []
    for piece in text.split(","):
        match = _PIECE.fullmatch(piece)
        if match is None:
            raise SchemaError(f"--map: expected COLUMN=KEY,COLUMN=KEY, found {piece!r:.80}")
        column, axis, key = match.groups()
        if column == "source_file":
            raise SchemaError("--map: source_file is the file of a trace; use another name")
        if axis is not None and column in KNOWN:
            raise SchemaError(f"--map: column {column!r} has its own axes; leave out ':{axis}'")
        mapped.append(Mapped(column, key.strip(), axis))
    names = [item.column for item in mapped]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(f"--map: expected each column once, found {twice!r:.80} again")
    return mapped


def check_keys(mapped: Sequence[Mapped], contents: Contents) -> None:
    """Raise NotFoundError, with the closest names, for a key that is not in a file."""
    for item in mapped:
        if item.key not in contents.keys:
            like = closest(item.key, contents.keys)
            shown = ", ".join(list(contents.keys)[:20]) or "none"
            raise NotFoundError(
                f"expected a key {item.key!r:.80} for column {item.column!r}{like}; "
                f"the keys are {shown:.400}"
            )


def has_rows(mapped: Sequence[Mapped], keys: Mapping[str, Key]) -> bool:
    """Return whether arrays have a row for each record, or are one record.

    Parameters
    ----------
    mapped
        Columns and keys.
    keys
        What the file says of its arrays.

    Raises
    ------
    SchemaError
        The shapes of some arrays say the one, those of others the other, or nothing tells states
        of many layers from those of one layer in many records.
    """
    votes: dict[str, bool] = {}
    shapes: dict[str, bool] = {}
    unclear: list[str] = []  # keys of one record, or of rows without the axis of layers
    for item in mapped:
        if item.axes is None:
            continue
        axis, names = item.axes
        shape = keys[item.key].shape
        n_more = len(shape) - (axis is not None) - len(names)
        is_single = axis is None and not names
        is_one = axis is None and shape[:1] == (1,)  # one record of one layer, either way
        if n_more == 0 and names[:1] == ("layers",) and not is_one:
            unclear.append(item.key)
        elif n_more in (0, 1) and (not is_single or shape != (1,)):
            (votes if is_single else shapes)[item.key] = bool(n_more)
    found = votes or shapes
    if unclear and not found:
        return _have_rows([keys[item.key].shape for item in mapped], keys[unclear[0]], unclear[0])
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{name} {keys[name].shape}" for name in found)
        raise SchemaError(
            "expected arrays that all have a row for each trace, or all are of one trace, "
            f"found {shown:.300}"
        )
    return next(iter(found.values()), True)


def _have_rows(shapes: Sequence[tuple[int, ...]], unclear: Key, name: str) -> bool:
    """Return False if arrays differ in length, so that they are no rows; else raise SchemaError."""
    if len({shape[:1] for shape in shapes}) > 1:
        return False
    raise SchemaError(
        f"expected one trace of many layers or many traces of one layer, found {name!r:.80} "
        f"{unclear.shape}, which may be either: add a key of ids or labels, or the axis of layers"
    )


def column_of(item: Mapped, value: Any) -> Column:
    """Return the column that the first record's value makes; raises SchemaError."""
    if isinstance(value, str):
        return Column("utf8")
    dtype, shape = _dtype_and_shape(value)
    axis, names = item.axes or (item.axis, ())
    item_shape = shape[1:] if axis else shape
    return Column(dtype, item_shape, axis, names)


def value_of(item: Mapped, value: Any) -> Any:
    """Return the value of a column from that of a key.

    Parameters
    ----------
    item
        Column and key.
    value
        Of one record: NumPy's, torch's or JSON's.

    Raises
    ------
    SchemaError
        It is of another type, or does not fit the column's.
    """
    where = f"{item.key!r:.80}"
    if value is None:
        raise SchemaError(f"{where}: expected a value for column {item.column!r}, found none")
    if item.column == REFERENCES:
        return references_of(value, where)
    if item.column in TEXTS:
        return _text(value, where)
    if isinstance(value, str | bytes | np.str_):
        if item.axes is not None:
            raise SchemaError(f"{where}: expected numbers for column {item.column!r}, found a text")
        return _text(value, where)
    if hasattr(value, "detach"):  # a tensor, of bfloat16
        return _fit_axes(item, value)
    array = _fit_axes(item, _array(value, where))
    return _exact(array, DTYPES[item.column], where) if item.column in DTYPES else array


def references_of(value: Any, where: str) -> str:
    """Return the references of a trace as the column keeps them.

    Parameters
    ----------
    value
        One text, several in a list or an array, or a text that is a JSON list of texts. An empty
        text is no reference.
    where
        What a message calls it.

    Returns
    -------
    str
        A JSON list of texts, as extraction writes it and `label` reads it.

    Raises
    ------
    SchemaError
        Something else than texts is in it.
    """
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist() if value.ndim < 2 else value.tolist()
    if isinstance(value, list):
        return _json_list(value, where)
    text = _text(value, where)
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        listed = None
    if _are_texts(listed):
        return _json_list(listed, where)
    return _json_list([text] if text else [], where)


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _text(value: Any, where: str) -> str:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, list | np.ndarray):  # texts of tokens
        return _json_list(value, where)
    if not isinstance(value, str):
        raise SchemaError(f"{where}: expected a text, found {type(value).__name__}")
    return str(value)


def _json_list(values: Any, where: str) -> str:
    texts = [value.decode() if isinstance(value, bytes) else value for value in values]
    if not _are_texts(texts):
        raise SchemaError(f"{where}: expected a list of texts, found other values in it")
    return json.dumps([str(text) for text in texts], ensure_ascii=False)


def _array(value: Any, where: str) -> np.ndarray:
    is_float_list = _is_float_list(value)
    try:
        array = np.asarray(value, np.float64 if is_float_list else None)
    except (ValueError, OverflowError) as error:
        raise SchemaError(f"{where}: expected numbers in equal rows, found {error}") from error
    if array.dtype.kind not in "biuf":
        raise SchemaError(f"{where}: expected numbers, found {array.dtype.name:.40}")
    if is_float_list:
        return _exact(array, "float32", where)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _is_float_list(value: Any) -> bool:
    """Return whether lists of JSON begin with a float, which has no precision of its own."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, float)


def _exact(array: np.ndarray, name: str, where: str) -> np.ndarray:
    """Return numbers in another type; raises SchemaError for those that it does not hold."""
    dtype = np.dtype(name)
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
    if dtype.kind in "iu":
        same = converted == array
    else:  # rounded, as Python's own floats are, but never to infinity
        same = np.isfinite(converted) == np.isfinite(array)
    if not np.all(same):
        raise SchemaError(f"{where}: expected numbers that {name} holds, found {array!r:.80}")
    return converted


def _fit_axes(item: Mapped, array: Any) -> Any:
    """Return an array with the axes of a known column; raises SchemaError for others.

    One number may be in a longer shape, and states of one layer may lack the axis of layers.
    """
    if item.axes is None:
        return array
    axis, names = item.axes
    shape = tuple(array.shape)
    n_more = len(shape) - (axis is not None) - len(names)
    if axis is None and not names and set(shape) <= {1}:
        return array.reshape(())
    if names[:1] == ("layers",) and n_more == -1:
        first = 1 if axis else 0
        return array.reshape(*shape[:first], 1, *shape[first:])
    if n_more:
        raise SchemaError(
            f"{item.key!r:.80}: expected the axes {_described(item.axes)} of column "
            f"{item.column!r} in a record, found shape {shape}"
        )
    return array


def _dtype_and_shape(value: Any) -> tuple[str, tuple[int, ...]]:
    dtype = str(value.dtype).removeprefix("torch.")
    return dtype, tuple(value.shape)


def _described(axes: Axes) -> str:
    axis, names = axes
    return f"({', '.join((axis, *names) if axis else names)})"
