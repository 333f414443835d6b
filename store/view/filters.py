"""Which rows a filter means: `label == 1 and score_gvae > .9 and question ~ "capital"`.

The language is small and its parser its own; nothing of a filter is ever executed. It has columns
with one value a row, numbers, quoted texts, `nan`, `inf`, `true`, `false`; `== != < <= > >=`, `~`
(contains, any case) and `!~`; `and`, `or`, `not` and brackets; `inside(map, "0,0 1,0 1,1")`, a
polygon on a map. A filter is at most 1000 characters long.
"""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import reduce
from typing import NoReturn, TypeAlias

import numpy as np

from store.errors import SchemaError, closest
from store.view.columns import Table
from store.view.polygons import inside_polygon, parse_polygon

__all__ = ["MAX_LENGTH", "complete", "filter_rows", "parse_filter"]

MAX_LENGTH = 1000
MAX_DEPTH = 30
TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>[-+]inf(?!\w)|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
    | (?P<name>[A-Za-z_]\w*)
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<sign>==|!=|<=|>=|!~|[<>~(),])
    )""",
    re.VERBOSE | re.ASCII,
)
COMPARE: Mapping[str, Callable] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SIGNS = {"number": (*COMPARE,), "text": ("==", "!=", "~", "!~")}
WORDS = ("and", "or", "not")
INSIDE = "inside"
EXACT_DIGITS = 20  # of whole numbers; those of 64 bits have no more
NAMED = {"nan": math.nan, "inf": math.inf, "true": 1, "false": 0}  # numbers that have a name


Rows: TypeAlias = Callable[[Table], np.ndarray]  # which rows are meant: bool `(n_rows,)`


def filter_rows(table: Table, text: str) -> np.ndarray | None:
    """Which rows a filter means: bool `(n_rows,)`; None for an empty filter, which means all.

    Raises SchemaError if the filter is none, or compares a column with what it does not hold.
    """
    rows = parse_filter(text, table.kinds, table.maps)
    return None if rows is None else rows(table)


def parse_filter(text: str, kinds: Mapping[str, str], maps: Collection[str] = ()) -> Rows | None:
    """Parse a filter into a function from a table to the rows that are meant.

    `kinds` says "number" or "text" for each column; `maps` are the columns of coordinates. Raises
    SchemaError with the position of what was not understood, from 0.
    """
    if len(text) > MAX_LENGTH:
        raise SchemaError(f"filter: expected at most {MAX_LENGTH} characters, found {len(text)}")
    parser = _Parser(_tokens(text), kinds, maps)
    if parser.kind == "end":
        return None
    rows = parser.expression(0)
    parser.check_end()
    return rows


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """Kind, text and position of every token, and the end."""
    tokens = []
    stop = len(text.rstrip())
    position = 0
    while position < stop:
        match = TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            start = len(text) - len(text[position:].lstrip())
            raise SchemaError(f"filter, character {start}: found {text[start : start + 12]!r}")
        tokens.append((match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
        position = match.end()
    return [*tokens, ("end", "", len(text))]


class _Parser:
    """Reads tokens from left to right, one ahead."""

    def __init__(
        self,
        tokens: list[tuple[str, str, int]],
        kinds: Mapping[str, str],
        maps: Collection[str],
    ) -> None:
        self.tokens = tokens
        self.kinds = kinds
        self.maps = maps
        self.at = 0

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    @property
    def text(self) -> str:
        return self.tokens[self.at][1]

    def take(self) -> str:
        text = self.text
        self.at += 1
        return text

    def fail(self, expected: str) -> NoReturn:
        _, text, position = self.tokens[self.at]
        found = repr(text) if text else "the end"
        raise SchemaError(f"filter, character {position}: expected {expected}, found {found:.80}")

    def check_end(self) -> None:
        if self.kind != "end":
            self.fail("'and', 'or' or the end")

    def expression(self, depth: int) -> Rows:
        if depth > MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} brackets in each other")
        return self.joined("or", lambda: self.joined("and", lambda: self.negated(depth)))

    def joined(self, word: str, read: Callable[[], Rows]) -> Rows:
        parts = [read()]
        while self.kind == "name" and self.text == word:
            self.take()
            parts.append(read())
        combine = np.logical_and if word == "and" else np.logical_or
        return lambda table: reduce(combine, (rows(table) for rows in parts))

    def negated(self, depth: int) -> Rows:
        if depth > MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} of 'not' and brackets in each other")
        if self.kind == "name" and self.text == "not" and not self.is_compared():
            self.take()
            rows = self.negated(depth + 1)
            return lambda table: ~rows(table)
        if self.text == "(" and self.kind == "sign":
            self.take()
            inner = self.expression(depth + 1)
            self.sign(")")
            return inner
        if self.text == INSIDE and self.tokens[self.at + 1][1] == "(":
            return self.inside()
        return self.comparison()

    def sign(self, sign: str) -> None:
        if self.kind != "sign" or self.text != sign:
            self.fail(repr(sign))
        self.take()

    def inside(self) -> Rows:
        self.take()
        self.sign("(")
        if self.text not in self.maps:
            known = ", ".join(self.maps) or "none; python -m store project makes one"
            self.fail(f"a column of coordinates (there are: {known:.200})")
        column = self.take()
        self.sign(",")
        if self.kind != "text":
            self.fail('a polygon in quotes, as in "0,0 1,0 1,1"')
        where = f"filter, character {self.tokens[self.at][2]}"
        polygon = parse_polygon(self.take()[1:-1], where)
        self.sign(")")
        return lambda table: inside_polygon(table.points(column), polygon)

    def is_compared(self) -> bool:
        """Whether the name here is a column, also if it is one of the words."""
        return (
            self.text in self.kinds and self.tokens[self.at + 1][1] in SIGNS[self.kinds[self.text]]
        )

    def comparison(self) -> Rows:
        column = self.column()
        signs = SIGNS[self.kinds[column]]
        if self.kind != "sign" or self.text not in signs:
            self.fail(f"one of {' '.join(signs)} after {column!r}")
        sign = self.take()
        return self.operand(column, sign)

    def column(self) -> str:
        if self.kind != "name" or (self.text in WORDS and not self.is_compared()):
            self.fail("a column")
        if self.text not in self.kinds:
            like = closest(self.text, self.kinds)
            self.fail(f"a column with one value a row{like}")
        return self.take()

    def operand(self, column: str, sign: str) -> Rows:
        if self.kinds[column] == "text":
            if self.kind != "text":
                self.fail(f"a text in quotes after {column!r} {sign}")
            text = re.sub(r"\\(.)", r"\1", self.take()[1:-1])
            return lambda table: _compare_texts(table, column, sign, text)
        if self.kind == "number":
            number = _number(self.take())
        elif self.kind == "name" and self.kinds.get(self.text) == "number":
            other = self.take()
            return lambda table: COMPARE[sign](table.numbers(column), table.numbers(other))
        elif self.kind == "name" and self.text in NAMED:
            if self.text == "nan" and sign not in ("==", "!="):
                self.fail("== nan or != nan")
            number = NAMED[self.take()]
        else:
            self.fail(f"a number or a column of numbers after {column!r} {sign}")
        return lambda table: _compare_number(table.numbers(column), sign, number)


def _number(text: str) -> float:
    """A number as it was written: whole ones keep all their digits."""
    digits = text.lstrip("+-")
    if digits.isdecimal() and len(digits) <= EXACT_DIGITS:
        return int(text)
    return float(text)


def _compare_texts(table: Table, column: str, sign: str, text: str) -> np.ndarray:
    found = table.rows_with(column, text, whole=sign in ("==", "!="))
    return ~found if sign.startswith("!") else found


def _compare_number(values: np.ndarray, sign: str, number: float) -> np.ndarray:
    """NaN is less than, greater than and equal to nothing; `== nan` finds it."""
    if number != number:
        is_nan = np.isnan(values)
        return is_nan if sign == "==" else ~is_nan
    if values.dtype == bool:
        values = values.view(np.uint8)  # truth values compare with numbers of 64 bits alone
    # a Python number takes the column's precision: .9 finds the float32 that was written as .9
    with np.errstate(over="ignore"):  # 1e300 is infinite as float32, and more than all of them
        return COMPARE[sign](values, number)


def complete(text: str, kinds: Mapping[str, str], maps: Collection[str] = ()) -> list[str]:
    """What can stand at the end of a filter that is being typed, or replace its last word.

    `text` is the filter up to the cursor; `kinds` and `maps` are as in `parse_filter`.
    """
    begun = re.search(r"[A-Za-z_]\w*$", text, re.ASCII)
    word = begun[0] if begun else ""
    try:
        tokens = _tokens(text[: len(text) - len(word)][-MAX_LENGTH:])
    except SchemaError:
        return []
    return [
        entry
        for entry in _expected(tokens, kinds, maps)
        if entry.startswith(word) and entry != word
    ]


def _expected(
    tokens: list[tuple[str, str, int]], kinds: Mapping[str, str], maps: Collection[str]
) -> Iterable[str]:
    """What may follow tokens, judged by the last two."""
    before = [text for _, text, _ in tokens[-3:-1]]
    last_kind, last, _ = tokens[-2] if len(tokens) > 1 else ("end", "", 0)
    if before == [INSIDE, "("]:
        return maps
    if last == "," or last in maps:
        return []  # a polygon is drawn, not typed
    if last in (*COMPARE, "~", "!~"):
        is_number = kinds.get(before[0]) == "number"
        return [*(name for name, kind in kinds.items() if kind == "number")] if is_number else []
    if last_kind == "name" and last in kinds and before[0] not in COMPARE:
        return SIGNS[kinds[last]]
    if last_kind == "end" or last in (*WORDS, "("):
        return [*kinds, "not", *([f"{INSIDE}("] if maps else [])]
    return ["and", "or"]
