"""Records, which are dataclasses, as JSON and back.

A field that has a default is written only where its value differs from it. What is read may come
from anywhere: a value that is not as it is written here is an error that names its place.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

__all__ = ["Range", "WrongValueError", "as_json", "from_json", "json_text", "read_value"]

Record = TypeVar("Record")
Value = TypeVar("Value")
KINDS: dict[object, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    list: ((list,), "a list"),
    dict: ((dict,), "an object"),
}


class Range(NamedTuple):
    """The least and the largest value of a number, and what is expected, in words."""

    low: float = -math.inf
    high: float = math.inf
    expected: str = ""


class WrongValueError(ValueError):
    """A value of JSON that is none of a record: its place, what was expected, what was found."""

    def __init__(self, place: str, expected: str, found: object) -> None:
        super().__init__(f"{place}: {expected}, found {' '.join(f'{found!r:.80}'.split())}")
        self.expected = f"{place}: {expected}"
        self.found = repr(found) if isinstance(found, str) else found


def as_json(record: object) -> dict[str, object]:
    """The fields of a record as JSON has them, those that are not as by default."""
    return {
        one.name: plain(found)
        for one in fields(cast(Any, record))
        if (found := getattr(record, one.name)) != one.default
    }


def plain(value: object) -> object:
    if is_dataclass(value):
        return as_json(value)
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def json_text(record: object) -> str:
    """A record as the text of a JSON file; a number that is not finite is null."""
    finite = json.loads(json.dumps(as_json(record)), parse_constant=lambda _: None)
    return json.dumps(finite, indent=1)


def from_json(kind: type[Record], content: object, place: str = "") -> Record:
    """The record in JSON; raises WrongValueError. Fields that it does not know are left out."""
    found = checked(dict, content, place)
    types = types_of(cast(object, kind))
    values = {}
    for one in fields(cast(Any, kind)):
        has_default = one.default is not MISSING or one.default_factory is not MISSING
        if one.name in found or not has_default:
            where = f"{place}.{one.name}" if place else one.name
            values[one.name] = read_value(types[one.name], found.get(one.name), where)
    return kind(**values)


@cache
def types_of(kind: object) -> dict[str, object]:
    return get_type_hints(kind, include_extras=True)


def read_value(kind: object, value: object, place: str) -> object:
    """A value of a field: a number, a text, a record, a list or an object of one kind.

    Raises WrongValueError for another.
    """
    origin, kinds = get_origin(kind), get_args(kind)
    if NoneType in kinds:
        return None if value is None else read_value(one_of(kinds, value), value, place)
    if origin is list:
        found = enumerate(checked(list, value, place))
        return [read_value(kinds[0], one, f"{place}[{i}]") for i, one in found]
    if origin is dict:
        items = checked(dict, value, place).items()
        return {key: read_value(kinds[1], one, f"{place}.{key}") for key, one in items}
    if origin is Annotated:
        number, within = kinds
        return checked(number, value, place, within)
    record = origin or kind
    if isinstance(record, type) and is_dataclass(record):
        return from_json(record, value, place)
    if isinstance(kind, TypeVar):  # of a name
        return checked(str, value, place)
    return value if kind in (Any, object) else checked(cast(type, kind), value, place)


def one_of(kinds: Sequence[object], value: object) -> object:
    """The kind of a value, among several; the first one if it is of none of them."""
    fitting = (one for one in kinds if type(value) is (get_origin(one) or one))
    return next(fitting, kinds[0])


def checked(kind: type[Value], value: object, place: str, within: Range | None = None) -> Value:
    """The value; raises WrongValueError for one of another kind, or out of its range."""
    kinds, expected = KINDS[kind]
    is_right = type(value) in kinds
    if within is not None:
        expected = within.expected
        is_right = is_right and within.low <= cast(float, value) <= within.high
    if not is_right:
        raise WrongValueError(place, expected, value)
    return cast(Value, value)
