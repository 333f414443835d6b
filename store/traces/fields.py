"""Fields: what a record knows beside its question and answer, as columns of a store. Pure.

A field is a task type, a data set, a language, a model, an annotator, a split, a number, ids of
documents. What all records have in it decides the column: booleans, whole numbers, numbers (of
these, and of booleans, a missing one is NaN), else texts (a missing one is empty), so that no
digit of a large whole number is lost; a list is its JSON text.
"""

import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from store.errors import NotFoundError, SchemaError, closest
from store.format.schema import TRACE_ID, Column
from store.traces.columns import RAGGED, TRACE_COLUMNS

__all__ = [
    "ALL",
    "MAX_CHARACTERS",
    "NONE",
    "NO_FIELDS",
    "Fields",
    "as_text",
    "choose_fields",
    "find_fields",
]

ALL, NONE = "all", "none"  # names for every field, and for no field
MAX_CHARACTERS = 1000  # of a text, unless its field is named
INT64 = range(-(2**63), 2**63)
LARGE = "large int64"  # kind of one that float64 does not hold
_HELD = {"int64": ("int64", LARGE), "float64": ("float64", "bool", "int64")}  # dtype -> kinds
_COUNTS = [f"n_{axis}" for axis in RAGGED]  # that filters know without a column
_RESERVED_NAMES = (TRACE_ID, "source_file", *TRACE_COLUMNS, *RAGGED, *_COUNTS)
RESERVED = {name.lower(): name for name in _RESERVED_NAMES}


@dataclass(frozen=True)
class Fields:
    """The columns that fields of records become."""

    names: Mapping[str, str] = field(default_factory=dict)  # column -> field
    columns: Mapping[str, Column] = field(default_factory=dict)
    cut: Collection[str] = ()  # fields of which long texts are cut
    mended: Collection[str] = ()  # those with a part that becomes ?

    def row(self, record: Mapping[str, object]) -> dict[str, Any]:
        """The value of each column; raises SchemaError for one that its column cannot hold."""
        return {
            column: self._value(record.get(name), name, self.columns[column])
            for column, name in self.names.items()
        }

    def _value(self, value: object, name: str, column: Column) -> Any:
        value = plain_value(value)
        if column.is_text:
            text = _mend(as_text(value))
            return text[:MAX_CHARACTERS] if name in self.cut else text
        if value is None and column.dtype == "float64":
            return math.nan
        if not _fits(value, column.dtype):
            raise SchemaError(
                f"field {name!r:.80}: expected {column.dtype}, as in the first records, found "
                f"{value!r:.80}; leave it out (--fields {ALL},-{name:.80})"
            )
        return value

    def remarks(self) -> list[str]:
        """Lines about fields that have another name, and about texts that are cut or mended."""
        lines = []
        renamed = {name: column for column, name in self.names.items() if name != column}
        if renamed:
            shown = ", ".join(f"{name!r:.80} is {column}" for name, column in renamed.items())
            lines.append(f"fields whose columns have other names: {shown:.500}")
        if self.cut:
            names = ",".join(self.cut)
            lines.append(
                f"texts of more than {MAX_CHARACTERS:,} characters are cut in the fields "
                f"{names:.500}; --fields {ALL},{names:.500} keeps them whole"
            )
        if self.mended:
            lines.append(
                "half a character (a lone surrogate), or bytes that are not UTF-8, became ? in "
                f"texts of the fields {','.join(self.mended):.500}"
            )
        return lines


NO_FIELDS = Fields()


@dataclass
class _Seen:
    """What the values of a field have been so far."""

    n: int = 0
    kinds: set[str] = field(default_factory=set)
    is_there: bool = False
    is_plain: bool = True
    is_long: bool = False
    is_broken: bool = False

    def add(self, value: object) -> None:
        self.n += 1
        self.kinds.add(_kind(value))
        self.is_there = self.is_there or _is_there(value)
        self.is_plain = self.is_plain and _is_plain(value)
        text = as_text(value)
        self.is_long = self.is_long or len(text) > MAX_CHARACTERS
        self.is_broken = self.is_broken or _mend(text) != text


def find_fields(
    records: Iterable[Mapping[str, object]], wanted: Sequence[str] | None = None
) -> Fields:
    """The fields of records, and the columns that they become.

    `wanted`: names of fields, "all", "none", or "-name" of one to leave out, from left to right;
    None is "all": numbers, booleans, texts and lists of these, of which long texts are cut. A field
    that is named may also be an object, and its texts stay whole. A column is called like its
    field, but for characters that a name cannot have.

    Raises NotFoundError: there is no such field; SchemaError: a name is that of a column which a
    trace has anyway, or of another field.
    """
    seen: defaultdict[str, _Seen] = defaultdict(_Seen)
    n_records = 0
    for record in records:
        n_records += 1
        for name, value in record.items():
            seen[name].add(plain_value(value))
    present = [name for name, found in seen.items() if found.is_there]
    simple = [name for name in present if seen[name].is_plain]
    chosen = choose_fields(present, simple, wanted)
    names: dict[str, str] = {}
    columns: dict[str, Column] = {}
    for name in chosen:
        column = column_name(name)
        _check_name(name, column, names)
        names[column] = name
        columns[column] = Column(_dtype(seen[name].kinds, seen[name].n < n_records))
    texts = [name for column, name in names.items() if columns[column].is_text]
    cut = [name for name in texts if seen[name].is_long and not chosen[name]]
    mended = [name for name in texts if seen[name].is_broken]
    return Fields(names, columns, cut, mended)


def choose_fields(
    present: Collection[str], by_default: Iterable[str], wanted: Sequence[str] | None
) -> dict[str, bool]:
    """Field -> whether it was named; `wanted` as of `find_fields`, "all" those `by_default`.

    Raises NotFoundError for a name that is not `present`.
    """
    chosen: dict[str, bool] = {}
    wanted = [ALL] if wanted is None else list(wanted)
    if wanted and wanted[0].startswith("-"):
        wanted.insert(0, ALL)
    for name in wanted:
        if name in present:
            chosen[name] = True
        elif name.startswith("-") and name[1:] in present:
            chosen.pop(name[1:], None)
        elif name in (ALL, NONE):
            chosen = dict.fromkeys(by_default, False) if name == ALL else {}
        else:
            plain = name.removeprefix("-")
            is_column = plain.lower() in RESERVED
            cure = "; that is a column of a trace" if is_column else closest(plain, present)
            raise NotFoundError(
                f"--fields: expected {ALL}, {NONE} or some of {', '.join(present) or 'none'}, "
                f"found {name!r:.80}{cure}"
            )
    return chosen


def column_name(name: str) -> str:
    """'Best Answer' -> 'Best_Answer', '_id' -> 'id', '4th' -> 'field_4th'.

    Names with letters of other scripts end in a digest: those letters are lost, and must not make
    two fields one.
    """
    spelled = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")
    if any(one.isalnum() and not one.isascii() for one in name):
        digest = hashlib.blake2b(name.encode(errors="replace"), digest_size=4).hexdigest()
        spelled = f"{(spelled or 'field')[:50]}_{digest}"
    return (spelled if spelled[:1].isalpha() else f"field_{spelled}")[:64].rstrip("_")


def _check_name(name: str, column: str, names: Mapping[str, str]) -> None:
    """Raise SchemaError for a column that is there; a disk may not tell upper from lower case."""
    like = {other.lower(): f"field {found!r:.80}" for other, found in names.items()}
    like |= {lower: f"column {found!r}" for lower, found in RESERVED.items()}
    if column.lower() in like:
        raise SchemaError(
            f"field {name!r:.80}: expected a name that no column of a trace has, found that of "
            f"the {like[column.lower()]}; rename it in the file, or leave it out "
            f"(--fields {ALL},-{name:.80})"
        )


def plain_value(value: object) -> Any:
    """A value as JSON has it, of NumPy's numbers and texts too; None for an empty text."""
    value = _json_value(value)
    return None if isinstance(value, str) and not value else value


def _json_value(value: object) -> Any:
    """A value that JSON has; those in a list or an object stay as they are."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")  # halves of characters, which are mended
    if isinstance(value, bool | int | float | str | list | Mapping | None):
        return value
    return str(value)  # a date


def _is_there(value: object) -> bool:
    return value is not None and value != []


def _is_plain(value: object) -> bool:
    """Whether a value is a number, a boolean, a text, or a list of these."""
    if isinstance(value, list):
        return not any(isinstance(one, list | Mapping) for one in value)
    return not isinstance(value, Mapping)


def _kind(value: object) -> str:
    """The type of a column that holds this value alone; "" for none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "bool"
    if type(value) is int and value in INT64:
        return "int64" if int(float(value)) == value else LARGE
    return "float64" if isinstance(value, float) else "utf8"


def _dtype(kinds: Collection[str], is_missing: bool) -> str:
    """The type that holds values of these kinds; of numbers, one that `is_missing` is NaN."""
    filled = {*kinds} - {""}
    if not is_missing and "" not in kinds and filled <= {*_HELD["int64"]}:
        return "int64"
    if filled == {"bool"}:
        return "float64" if is_missing or "" in kinds else "bool"
    return "float64" if filled <= {"int64", "float64"} else "utf8"


def _fits(value: object, dtype: str) -> bool:
    return _kind(value) in _HELD.get(dtype, (dtype,))


def as_text(value: object) -> str:
    """A text as it is, anything else as JSON; none is empty."""
    value = plain_value(value)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=_json_value)


def _mend(text: str) -> str:
    """A text that UTF-8 holds: half a character becomes a question mark."""
    return text.encode(errors="replace").decode()
