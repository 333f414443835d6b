"""The columns of a store: their types, shapes, and how their bytes are cut into chunks.

`docs/format.md` specifies what lies on disk, and defines the words: row, column, ragged axis,
shard, chunk, plane. A `Schema` holds the description of every column but `trace_id`, which every
store has, and refuses what the document refuses.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np

from store.errors import NotFoundError, SchemaError, closest
from store.format.codecs import parse_codec
from store.format.layout import CHUNK_BYTES, SHARD_BYTES, ArrayLayout

__all__ = ["NAME", "TRACE_ID", "Column", "Schema"]

TRACE_ID = "trace_id"
COMPRESSED_CHUNK_BYTES = 256 * 1024  # a decoder's grain
MAX_SHARD_CHUNKS = 65536  # of all planes, unless `shard_items` is given: a table of 1 MiB
MAX_COLUMNS = 1024
MAX_ITEM_BYTES = 2**31  # and of a compressed chunk, which is decoded whole
MAX_ITEM_AXES = 32  # NumPy has 64, and views need some for themselves

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = ("bool", *_INTEGERS, "float16", "float32", "float64", "bfloat16", "utf8")
FLATTENED = {  # what the name of a type begins with -> how its values are stored all the same
    "float8": "store the bits: values.view(np.uint8) as uint8",
    "complex64": "store two numbers: values[..., None].view(np.float32) as float32 items (..., 2)",
    "complex128": "store two numbers: values[..., None].view(np.float64) as float64 items (..., 2)",
    "bytes": "store np.frombuffer(value, np.uint8) as uint8 on a ragged axis of its own",
    "list": "store a list of texts as utf8, with json.dumps(texts)",
    "utf8": "store a list of texts as utf8, with json.dumps(texts)",
}
_VERSION = re.compile(r"@[1-9][0-9]{0,18}")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True)
class Column:
    """One named array over the rows.

    Parameters
    ----------
    dtype
        One of `DTYPES`: a NumPy number type, 'bfloat16' or 'utf8'.
    item_shape
        Shape of one item; `()` for scalars.
    axis
        Name of the ragged axis, or None for a fixed column (and for 'utf8', which owns its axis).
    axis_names
        Names of the item axes, so that `select` can slice them; empty or one per item axis.
    split
        The named item axes that are stored plane by plane (section 6 of `docs/format.md`).
    codec
        Compression of the chunks, e.g. 'zstd:3' (see `codecs.py`); None leaves them raw.
    chunk_items, shard_items
        Items a chunk and a shard; chosen from the item's size if None. A shard holds whole chunks.
    """

    dtype: str
    item_shape: tuple[int, ...] = ()
    axis: str | None = None
    axis_names: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    codec: str | None = None
    # None only as an argument: `__post_init__` chooses
    chunk_items: int = None  # type: ignore[assignment]
    shard_items: int = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name in ("item_shape", "axis_names", "split"):
            value = getattr(self, name)
            values = (value,) if isinstance(value, str | int) else tuple(value)
            object.__setattr__(self, name, values)
        _check_column(self)
        chunk_bytes = COMPRESSED_CHUNK_BYTES if self.codec else CHUNK_BYTES
        n_planes = math.prod(self.item_shape[axis] for axis in self.split_axes)
        plane_item_bytes = self.item_bytes // n_planes
        chunk_items = self.chunk_items or max(1, chunk_bytes // plane_item_bytes)
        n_chunks = min(SHARD_BYTES // (chunk_items * self.item_bytes), MAX_SHARD_CHUNKS // n_planes)
        shard_items = self.shard_items or chunk_items * max(1, n_chunks)
        if self.codec and chunk_items * plane_item_bytes > MAX_ITEM_BYTES:
            expected = f"compressed chunks of at most {MAX_ITEM_BYTES} bytes"
            raise SchemaError(f"chunk_items: expected {expected}, found more")
        if shard_items % chunk_items:
            raise SchemaError(
                f"shard_items: expected a multiple of {chunk_items=}, found {shard_items}"
            )
        object.__setattr__(self, "chunk_items", chunk_items)
        object.__setattr__(self, "shard_items", shard_items)

    @property
    def is_text(self) -> bool:
        return self.dtype == "utf8"

    @property
    def is_single(self) -> bool:
        """Whether a row has one number or one text of it."""
        return self.is_text or (self.axis is None and not self.item_shape)

    @cached_property
    def storage_dtype(self) -> np.dtype:
        """The little-endian NumPy dtype of the stored items."""
        stored = {"utf8": "uint8", "bfloat16": "uint16"}.get(self.dtype, self.dtype)
        return np.dtype(stored).newbyteorder("<")

    @property
    def item_bytes(self) -> int:
        return self.storage_dtype.itemsize * math.prod(self.item_shape)

    @property
    def split_axes(self) -> tuple[int, ...]:
        """Positions of the split item axes, ascending."""
        return tuple(i for i, name in enumerate(self.axis_names) if name in self.split)

    @classmethod
    def from_json(cls, data: object) -> "Column":
        """The column of these fields; raises SchemaError for anything else."""
        keys = set(cls.__dataclass_fields__)
        if not isinstance(data, dict) or set(data) != keys:
            raise SchemaError(
                f"a column's description: expected the keys {sorted(keys)}, found {data!r:.200}"
            )
        for name in ("item_shape", "axis_names", "split"):  # the constructor takes more
            if not isinstance(data[name], list | tuple):
                raise SchemaError(f"{name}: expected an array, found {data[name]!r:.200}")
        for name in ("chunk_items", "shard_items"):
            if data[name] is None:
                raise SchemaError(f"{name}: expected a positive integer below 2**40, found None")
        return cls(**data)


def _check_column(column: Column) -> None:
    if column.dtype not in DTYPES:
        ways = [way for kind, way in FLATTENED.items() if str(column.dtype).startswith(kind)]
        expected = f"dtype: expected one of {', '.join(DTYPES)}"
        raise SchemaError("; ".join([f"{expected}, found {column.dtype!r}", *ways]))
    _check_item(column)
    _check_axes(column)
    if column.codec is not None:
        parse_codec(column.codec)
    for name in ("chunk_items", "shard_items"):
        value = getattr(column, name)
        if value is not None and not _is_count(value):
            raise SchemaError(
                f"{name}: expected a positive integer below 2**40, found {value!r:.200}"
            )


def _check_item(column: Column) -> None:
    """The shape of an item is sound, and its bytes are few enough."""
    shape = column.item_shape
    if len(shape) > MAX_ITEM_AXES:
        raise SchemaError(f"item_shape: expected at most {MAX_ITEM_AXES} axes, found {len(shape)}")
    if not all(_is_count(size) for size in shape):
        raise SchemaError(f"item_shape: expected positive integers, found {shape!r:.200}")
    if column.item_bytes > MAX_ITEM_BYTES:
        expected = f"an item of at most {MAX_ITEM_BYTES} bytes"
        raise SchemaError(f"item_shape: expected {expected}, found {column.item_bytes}")
    if column.is_text and (shape or column.axis is not None):
        raise SchemaError("a utf8 column is one string a row: leave item_shape and axis out")


def _check_axes(column: Column) -> None:
    """Names of axes are names, each item axis has one or none has, and `split` names some."""
    names = column.axis_names
    n_axes = len(column.item_shape)
    if isinstance(column.axis, tuple | list):
        raise SchemaError(
            f"axis: expected one ragged axis, found {column.axis!r:.200}; store the items of a row "
            "one after the other on an axis of their own, and how many each part has in another "
            "column (maps of T x T: on an axis of T * T items)"
        )
    if column.axis is not None:
        check_name(column.axis, "axis")
    if names and len(names) != n_axes:
        raise SchemaError(f"axis_names: expected {n_axes} names, found {names!r:.200}")
    for name in names:
        check_name(name, "axis_names")
    if len(set(names)) != len(names):
        raise SchemaError(f"axis_names: expected different names, found {list(names)}")
    if len(set(names) & set(column.split)) != len(column.split):
        raise SchemaError(
            f"split: expected some of {names}, each once, found {column.split!r:.200}"
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40


def check_name(name: object, what: str) -> None:
    """Names become directories: refuse those that could leave the store or hide in it."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        expected = "a letter, then at most 63 letters, digits or '_'"
        raise SchemaError(f"{what}: expected {expected}, found {name!r:.200}")


@dataclass(repr=False)
class Schema:
    """The columns of a store, by name, in the order given; `trace_id` is implied.

    Parameters
    ----------
    columns
        Name -> `Column`. A name starts with a letter and has letters, digits and '_' only.
    arrays
        Name -> array, of the columns that were replaced; the others are in the array of their name.
    """

    columns: Mapping[str, Column]
    arrays: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self.columns = dict(self.columns)
        self.arrays = dict(self.arrays)
        if len(self.columns) > MAX_COLUMNS:
            raise SchemaError(f"expected at most {MAX_COLUMNS} columns, found {len(self.columns)}")
        for name, column in self.columns.items():
            check_name(name, "column name")
            if not isinstance(column, Column):
                raise SchemaError(
                    f"column {name!r}: expected a Column, found {type(column).__name__}"
                )
        for name, array in self.arrays.items():
            version = array.removeprefix(name) if isinstance(array, str) else ""
            if name not in self.columns or not _VERSION.fullmatch(version):
                expected = "a column's name, '@' and a number"
                raise SchemaError(f"arrays: expected {expected}, found {name!r}: {array!r:.200}")
        if TRACE_ID in self.columns:
            raise SchemaError(
                f"column {TRACE_ID!r}: every store has it; leave it out of the schema"
            )
        for axis in sorted(column.axis for column in self.columns.values() if column.axis):
            if axis in self.stored and self.stored[axis].is_text:
                raise SchemaError(
                    f"axis {axis!r}: a utf8 column of that name owns it; choose another name"
                )

    @cached_property
    def stored(self) -> dict[str, Column]:
        """All columns with bytes on disk: `trace_id` and the schema's own."""
        return {TRACE_ID: Column("utf8"), **self.columns}

    @cached_property
    def axes(self) -> list[str]:
        """Every ragged axis, each once."""
        axes = dict.fromkeys(self.axis_of(name) for name in self.stored)
        return [axis for axis in axes if axis is not None]

    @cached_property
    def axis_by_column(self) -> dict[str, str | None]:
        """The ragged axis of every stored column; None for a fixed one."""
        return {
            name: name if column.is_text else column.axis for name, column in self.stored.items()
        }

    def axis_of(self, name: str) -> str | None:
        """The ragged axis of a column; None for a fixed one."""
        return self.axis_by_column[name]

    def column(self, name: str, where: object = "schema") -> Column:
        """The column called `name`; raises NotFoundError that names the closest ones."""
        columns = self.stored
        if name not in columns:
            like = closest(str(name), columns)
            raise NotFoundError(
                f"{where}: expected a column, found {name!r:.200}{like}; "
                f"the columns are {', '.join(columns)}"
            )
        return columns[name]

    def array_number(self, name: str) -> int:
        """Which array of a column holds its values: they count up; 0: its first one."""
        return int(self.arrays.get(name, name).removeprefix(name)[1:] or 0)

    def layout(self, name: str) -> ArrayLayout:
        """How the bytes of a column lie on disk."""
        column = self.stored[name]
        return ArrayLayout(
            self.arrays.get(name, name),
            column.storage_dtype,
            column.item_shape,
            column.split_axes,
            column.chunk_items,
            column.shard_items,
            column.codec,
        )

    def to_json(self) -> dict[str, dict]:
        """The fields of the columns; JSON has lists for their tuples."""
        return {name: asdict(column) for name, column in self.columns.items()}

    @classmethod
    def from_json(cls, data: object, arrays: object) -> "Schema":
        """The schema that `to_json` gave, with its `arrays`; raises SchemaError."""
        if not isinstance(data, dict):
            raise SchemaError(f"schema: expected an object, found {data!r:.200}")
        if not isinstance(arrays, dict):
            raise SchemaError(f"arrays: expected an object, found {arrays!r:.200}")
        return cls({name: Column.from_json(column) for name, column in data.items()}, arrays)

    def __repr__(self) -> str:
        return f"Schema({self.columns!r})"
