"""`COLUMN=KEY`: which column each key becomes, and the value that a record gives to it. Pure.

A column that the field knows has its shape and axes; hidden states of one layer may come without
the axis of layers. Any other column is as the array is: fixed, or ragged where `COLUMN:AXIS=KEY`
names an axis. `COLUMN=KEY[AXIS,AXIS]` names all axes of an array, in its order. Arrays keep their
dtype, and NumPy's single numbers theirs. Plain numbers, of JSON or in lists of a pickle, have none:
they become float32 where a record has a fraction, or where the field's column is of floating
numbers, and texts where a record has one. Numbers of the field's single columns (labels, scores,
token ids) become the type that the column has everywhere: integers are never rounded, floats are.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from store.errors import NotFoundError, SchemaError, closest
from store.format.schema import TRACE_ID, Column
from store.importers.arrays.contents import Contents, key_of
from store.text_records import parse_list
from store.traces.columns import TRACE_COLUMNS
from store.traces.fields import as_text
from store.traces.layers import LAYERS_AXIS

__all__ = [
    "KNOWN",
    "LISTS",
    "PLAIN",
    "PLAIN_FLOAT",
    "RECORDS",
    "TEXTS",
    "Mapped",
    "check_keys",
    "column_of",
    "parse_map",
    "plain_width",
    "references_of",
    "value_of",
]

Axes = tuple[str | None, tuple[str, ...]]  # ragged axis (None: fixed), names of the item axes

KNOWN: dict[str, Axes] = {
    TRACE_ID: (None, ()),
    **{name: (column.axis, column.item_axes) for name, column in TRACE_COLUMNS.items()},
}
DTYPES = {  # of the known columns that are not taken as they are: whole numbers, and single ones
    name: column.dtype
    for name, column in TRACE_COLUMNS.items()
    if column.dtype.startswith("int") or (not column.axes and column.dtype != "utf8")
}
PLAIN_FLOAT = "float32"  # of numbers without a dtype
DOUBLE = "float64"  # which NumPy's single numbers have, though Python takes them for its own
# of plain values; each holds those before it
PLAIN = ("bool", "int64", PLAIN_FLOAT, DOUBLE, "utf8")
_PLAIN_TYPES = {  # in the order in which they are looked for
    "bool": bool | np.bool_,
    "int64": int | np.integer,
    DOUBLE: np.float64,
    PLAIN_FLOAT: float | np.floating,
    "utf8": str | bytes,
}
REFERENCES = "references"
TEXTS = (TRACE_ID, *(name for name, one in TRACE_COLUMNS.items() if one.dtype == "utf8"))
LISTS = (REFERENCES, "token_texts")  # one trace may have several texts of them
RECORDS = "records"  # the axis of an array that has a row for each record
_PIECE = re.compile(
    r"\s*([^:=\s]+)\s*(?::\s*([^=\s]+)\s*)?=(.+?)(?:\[\s*([a-z]\w*(?:\s*,\s*[a-z]\w*)*)\s*\])?\s*"
)
_COMMA = re.compile(r",(?![^\[]*\])")  # between pieces, not between the names of axes


@dataclass(frozen=True)
class Mapped:
    """One piece of a map."""

    column: str  # or "trace_id"
    key: str
    axis: str | None = None  # the ragged one, given for a column that the field does not know
    names: tuple[str, ...] | None = None  # axes of the array; the first may be `RECORDS`

    @property
    def axes(self) -> Axes | None:
        """Axes of the column; None if only the arrays know."""
        if self.names is None or self.column in KNOWN:
            return KNOWN.get(self.column)
        axis = self.axis or ("tokens" if "tokens" in self.names else None)
        return axis, tuple(name for name in self.item_names if name != axis)

    @property
    def item_names(self) -> list[str]:
        """The named axes of one record, in the order of the array."""
        return [name for name in self.names or () if name != RECORDS]


def parse_map(text: str) -> list[Mapped]:
    """Read `COLUMN=KEY,COLUMN:AXIS=KEY[AXIS,AXIS]`; raises SchemaError for anything else."""
    mapped = []
    for piece in _COMMA.split(text):
        match = _PIECE.fullmatch(piece)
        if match is None:
            raise SchemaError(f"--map: expected COLUMN=KEY,COLUMN=KEY, found {piece!r:.80}")
        column, axis, key, names = match.groups()
        if column == "source_file":
            raise SchemaError("--map: source_file is the file of a trace; use another name")
        if axis is not None and column in KNOWN:
            raise SchemaError(f"--map: column {column!r} has its own axes; leave out ':{axis}'")
        axes = None if names is None else tuple(name.strip() for name in names.split(","))
        mapped.append(Mapped(column, key.strip(), axis, axes))
        _check_names(mapped[-1])
    names = [item.column for item in mapped]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(f"--map: expected each column once, found {twice!r:.80} again")
    return mapped


def _check_names(item: Mapped) -> None:
    """Raise SchemaError unless the axes that are named are the column's, but for that of layers."""
    if item.axes is None or item.names is None:
        return
    axis, names = item.axes
    expected = {axis, *names} - {None}
    found = item.item_names
    is_whole = expected - {LAYERS_AXIS} <= set(found) <= expected
    if not is_whole or len(set(found)) < len(found) or RECORDS in item.names[1:]:
        raise SchemaError(
            f"--map: expected the axes {_described(item.axes)} of column {item.column!r}, in any "
            f"order behind {RECORDS!r}, found [{','.join(item.names)}]; map it to a column that "
            "has these, such as hs_last (layers, hidden), or to one of your own"
        )


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


def column_of(item: Mapped, value: object) -> Column:
    """Return the column that the first record's value makes; raises SchemaError."""
    if isinstance(value, str):
        return Column("utf8")
    key = key_of(value)
    axis, names = item.axes or (item.axis, ())
    item_shape = key.shape[1:] if axis else key.shape
    return Column(key.dtype, item_shape, axis, names)


def value_of(item: Mapped, value: object, column: Column | None = None) -> Any:
    """Return the value of a column from that of a key: NumPy's or JSON's, of one record.

    Plain numbers have the dtype of the column in the schema, where that is known. Raises
    SchemaError for a value of another type, or one that does not fit the column's.
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
    if column is not None and column.is_text:
        return as_text(value)
    array = _array(value, where)
    if _lacks_axes(item, value, array):
        if column is None:
            raise SchemaError(f"{where}: expected a row that shows the other axes, found none")
        return np.empty((0, *column.item_shape), column.dtype)
    array = _fit_axes(item, array)
    dtype = DTYPES.get(item.column)
    if dtype is None and _is_plain(value):
        dtype = _plain_dtype(item, array, column)
    return array if dtype is None else _exact(array, dtype, where)


def references_of(value: object, where: str) -> str:
    """Return references as the column keeps them, and `label` reads them: a JSON list of texts.

    They are one text, several in a list or an array, or a text that is a JSON list of texts. An
    empty text is no reference; anything else is a SchemaError, which begins with `where`.
    """
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist() if value.ndim < 2 else value.tolist()
    if isinstance(value, list):
        return _json_list(value, where)
    text = _text(value, where)
    listed = parse_list(text)
    if listed is not None and _are_texts(listed):
        return _json_list(listed, where)
    return _json_list([text] if text else [], where)


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _text(value: object, where: str) -> str:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        value = _decode(value, where)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, list | np.ndarray):  # texts of tokens
        return _json_list(value, where)
    if not isinstance(value, str):
        raise SchemaError(f"{where}: expected a text, found {type(value).__name__}")
    return str(value)


def _decode(value: bytes, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise SchemaError(f"{where}: expected UTF-8, found {value!r:.80}") from error


def _json_list(values: Iterable[object], where: str) -> str:
    texts = [_decode(value, where) if isinstance(value, bytes) else value for value in values]
    if not _are_texts(texts):
        raise SchemaError(f"{where}: expected a list of texts, found other values in it")
    return json.dumps([str(text) for text in texts], ensure_ascii=False)


def _array(value: object, where: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise SchemaError(f"{where}: expected numbers in equal rows, found {error}") from error
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        found = "a missing one (null)" if None in array.reshape(-1).tolist() else array.dtype.name
        raise SchemaError(f"{where}: expected numbers, found {found:.40}")
    is_huge = type(value) is list and array.dtype.kind == "f" and np.any(np.abs(array) >= 2.0**63)
    if is_huge and plain_width(value) == PLAIN.index("int64"):  # NumPy rounds such a list
        raise SchemaError(f"{where}: expected integers that int64 holds, found {array!r:.80}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _lacks_axes(item: Mapped, value: object, array: np.ndarray) -> bool:
    """Return whether nested lists of no rows do not tell the axes that a row would have."""
    axis, names = item.axes or (item.axis, None)
    is_bare = array.ndim > 0 and not any(array.shape)
    return axis is not None and names != () and is_bare and (type(value) is list or array.ndim > 1)


def _plain_dtype(item: Mapped, array: np.ndarray, column: Column | None) -> str | None:
    """Return the dtype of plain numbers; None if they keep that of Python's."""
    is_known = array.dtype.kind in "biu" or not array.size
    if column is not None and (is_known or column.dtype == DOUBLE):
        return column.dtype
    is_whole = array.dtype.kind in "iu" or not array.size
    is_floating = array.dtype.kind == "f" or (is_whole and item.column in KNOWN)
    return PLAIN_FLOAT if is_floating else None


def plain_width(value: object) -> int:
    """Return the place in `PLAIN` of the dtype that a value needs; -1 for an array, and for none.

    A list needs that of the widest value in it, but a text in it makes no text of it.
    """
    if isinstance(value, list):
        return min(max(map(plain_width, value), default=-1), PLAIN.index(PLAIN_FLOAT))
    found = (name for name, types in _PLAIN_TYPES.items() if isinstance(value, types))
    return next(map(PLAIN.index, found), -1)


def _is_plain(value: object) -> bool:
    """Return whether a value is of Python's own numbers, which have no precision of their own."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, int | float | list | np.integer) and type(value) is not np.float64


def _exact(array: np.ndarray, name: str, where: str) -> np.ndarray:
    """Return numbers in another type; raises SchemaError for those that it does not hold."""
    dtype = np.dtype(name)
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
    if "f" not in dtype.kind or array.dtype.kind in "iu":
        same = converted == array
    else:  # rounded, as Python's own floats are, but never to infinity
        same = np.isfinite(converted) == np.isfinite(array)
    if not np.all(same):
        raise SchemaError(f"{where}: expected numbers that {name} holds, found {array!r:.80}")
    return converted


def _fit_axes(item: Mapped, array: np.ndarray) -> np.ndarray:
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
    if item.names is not None and len(shape) == len(item.item_names):
        return _in_order(item.item_names, (axis, *names) if axis else names, array)
    if names[:1] == (LAYERS_AXIS,) and n_more == -1 and item.names is None:
        first = 1 if axis else 0
        return array.reshape(*shape[:first], 1, *shape[first:])
    if n_more or item.names is not None:
        raise SchemaError(
            f"{item.key!r:.80}: expected the axes {_described(item.axes)} of column "
            f"{item.column!r} in a record, found shape {shape}"
        )
    return array


def _in_order(names: Sequence[str], wanted: Sequence[str], array: np.ndarray) -> np.ndarray:
    """Return a view of an array with its axes as wanted; of layers that it lacks, there is one."""
    if len(names) < len(wanted):
        names = (LAYERS_AXIS, *names)
        array = array[None]
    return array.transpose([names.index(name) for name in wanted])


def _described(axes: Axes) -> str:
    axis, names = axes
    return f"({', '.join((axis, *names) if axis else names)})"
