"""Which rows a filter means: `label == 1 and score_gvae > .9 and question contains "capital"`.

The language is small and its parser its own; nothing of a filter is ever executed. It has columns
with one value a row, numbers, quoted texts, `nan`, `inf`, `true`, `false`; `== != < <= > >=`
(`=` is `==`, `<>` is `!=`), `in (…)`, `contains` or `~` (any case) and `!~`; `len(COLUMN)`, the
characters of a text or the items of a ragged column, and `n_AXIS`, such as n_tokens; `and`, `or`,
`not`, in any case, and brackets; `inside(map, "0,0 1,0 1,1")`, a polygon on a map; `tag`, `note`
and `noted`, what was noted beside the store. A filter is at most 1000 characters long.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import NoReturn, TypeAlias

import numpy as np

from store.errors import SchemaError, closest
from store.read.filters.polygons import inside_polygon, parse_polygon
from store.read.filters.single_values import NOTED, SingleValues

__all__ = ["MAX_LENGTH", "Words", "complete", "filter_rows", "parse_filter", "words_of"]

MAX_LENGTH = 1000
MAX_DEPTH = 30
TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>[-+]inf(?!\w)|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
    | (?P<name>[A-Za-z_]\w*)
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<sign>==|!=|<=|>=|<>|!~|[=<>~(),])
    | (?P<unknown>["'].*|[.\w]+|&+|\|+|.)
    )""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
COMPARE: Mapping[str, Callable] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OF_TEXTS = ("==", "!=", "~", "!~", "contains", "in")
SIGNS = {"number": (*COMPARE, "in"), "text": OF_TEXTS, "noted": OF_TEXTS}
SPELLINGS = {"=": "==", "<>": "!=", "contains": "~"}  # what people type first
WORDS = ("and", "or", "not")
INSIDE = "inside"
LENGTH = "len"
BEYOND = 2**1024  # more than any column holds, and less than infinity
EXACT = 2.0**53  # from here on a whole number may round where it becomes a float
NAMED = {"nan": math.nan, "inf": math.inf, "true": 1, "false": 0}  # numbers that have a name
SEARCH = "write COLUMN contains 'text'"
MISSING = "write == or !=; a missing number is nan, a missing text ''"
CURES = {  # what other languages have here, or its first character -> what to write
    "&": "write 'and'",
    "|": "write 'or'",
    "!": "write 'not', or !=",
    ",": "several values are COLUMN in (…); numbers have no commas",
    "[": "items of a column cannot be chosen; lists are in (…)",
    ".": "columns have no methods; there are len(COLUMN) and COLUMN contains 'text'",
    **dict.fromkeys("\"'", "close the quote, or write \\ before a quote in the text"),
    **dict.fromkeys("“”„‘’", "write straight quotes"),
    **dict.fromkeys("+-*/%", "there is no arithmetic: add a column (docs/python.md, Write)"),
    **dict.fromkeys(("is", "isna", "isnan", "isnull", "none", "null"), MISSING),
    **dict.fromkeys(("like", "matches", "startswith", "contains"), SEARCH),
    "between": "write COLUMN >= LOW and COLUMN <= HIGH",
    "length": "write len(COLUMN)",
}
BEFORE, BEHIND = 24, 16  # characters of a filter that a message shows around the place


Rows: TypeAlias = Callable[[SingleValues], np.ndarray]  # which rows are meant: bool `(n_rows,)`
# column -> "number" or "text" if it has one a row, "items" if it is ragged, "map" or "array";
# "noted": a text or several that were noted beside the store
Words: TypeAlias = Mapping[str, str]
HAVE_LENGTH = ("text", "items")
Token = tuple[str, str, int]
"""Its kind, its text and its position."""


def words_of(values: SingleValues) -> Words:
    """The names that a filter of a store may have, as `parse_filter` takes them."""
    others = dict.fromkeys(values.store.schema.stored, "array")
    others |= dict.fromkeys(values.ragged, "items") | dict.fromkeys(values.maps, "map")
    single = values.kinds | dict.fromkeys(values.counts, "number")
    others |= {name: kind for name, kind in NOTED.items() if values.is_noted(name)}
    return single | {name: kind for name, kind in others.items() if name not in single}


def filter_rows(values: SingleValues, text: str) -> np.ndarray | None:
    """Which rows a filter means: bool `(n_rows,)`; None for an empty filter, which means all.

    Raises SchemaError if the filter is none, or compares a column with what it does not hold.
    """
    rows = parse_filter(text, words_of(values))
    return None if rows is None else rows(values)


def parse_filter(text: str, kinds: Words) -> Rows | None:
    """Parse a filter into a function from the values of a store to the rows that are meant.

    Raises SchemaError with the position of what was not understood, from 0, a ^ before it, and what
    to write.
    """
    if len(text) > MAX_LENGTH:
        raise SchemaError(f"filter: expected at most {MAX_LENGTH} characters, found {len(text)}")
    parser = _Parser(text, kinds)
    if parser.kind == "end":
        return None
    rows = parser.expression(0)
    parser.check_end()
    return rows


def read_tokens(text: str) -> list[Token]:
    """Kind, text and position of every token, and the end."""
    tokens = []
    for match in TOKEN.finditer(text.rstrip()):
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind], match.start(kind)))
    return [*tokens, ("end", "", len(text))]


def complete(text: str, kinds: Words) -> list[str]:
    """What can stand at the end of a filter that is being typed, or replace its last word.

    `text` is the filter up to the cursor.
    """
    begun = re.search(r"[A-Za-z_]\w*$", text, re.ASCII)
    word = begun[0] if begun else ""
    tokens = read_tokens(text[: len(text) - len(word)][-MAX_LENGTH:])
    if any(kind == "unknown" for kind, _, _ in tokens):
        return []
    expected = _expected(tokens, kinds)
    return [entry for entry in expected if entry.startswith(word) and entry != word]


def _expected(tokens: list[Token], kinds: Words) -> Iterable[str]:
    """What may follow tokens, judged by the last two."""
    before = [text for _, text, _ in tokens[-3:-1]]
    last_kind, last, _ = tokens[-2] if len(tokens) > 1 else ("end", "", 0)
    columns = {name: kind for name, kind in kinds.items() if kind in SIGNS}
    maps = [name for name, kind in kinds.items() if kind == "map"]
    if before == [INSIDE, "("]:
        return maps
    if before == [LENGTH, "("]:
        return [name for name, kind in kinds.items() if kind in HAVE_LENGTH]
    if last.lower() in (",", "in") or [*map(str.lower, before)] == ["in", "("] or last in maps:
        return []  # values, and polygons, which are drawn, not typed
    if last in (*COMPARE, *SPELLINGS, "~", "!~"):
        is_number = columns.get(before[0]) == "number"
        return [name for name, kind in columns.items() if kind == "number"] if is_number else []
    if last_kind == "name" and last in columns and before[0] not in COMPARE:
        return SIGNS[columns[last]]
    if last_kind == "end" or last.lower() in (*WORDS, "("):
        return [*columns, "not", f"{LENGTH}(", *([f"{INSIDE}("] if maps else [])]
    return ["and", "or"]


class _Parser:
    """Reads tokens from left to right, one ahead."""

    def __init__(self, source: str, kinds: Words) -> None:
        self.source = source
        self.tokens = read_tokens(source)
        self.kinds = kinds
        self.at = 0

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    @property
    def text(self) -> str:
        return self.tokens[self.at][1]

    @property
    def word(self) -> str:
        """The text here in lower case; "" of a number, a text in quotes, and the end."""
        return self.next_word(0)

    def next_word(self, n: int = 1) -> str:
        """The same of a later token."""
        kind, text, _ = self.tokens[min(self.at + n, len(self.tokens) - 1)]
        return "" if kind in ("number", "text") else text.lower()

    def names(self, *kinds: str) -> list[str]:
        """The columns of these kinds."""
        return [name for name, kind in self.kinds.items() if kind in kinds]

    def take(self) -> str:
        text = self.text
        self.at += 1
        return text

    def fail(self, expected: str) -> NoReturn:
        """Raise SchemaError; a ^ stands before the place in the filter."""
        _, text, position = self.tokens[self.at]
        found = f"{text!r:.80}" if text else "the end"
        before = self.source[max(0, position - BEFORE) : position]
        shown = " ".join(f"{before}^{self.source[position:][:BEHIND]}".split())
        cure = CURES.get(self.word) or CURES.get(self.word[:1], "")
        raise SchemaError(
            f"filter, character {position}: expected {expected}, found {found}: {shown}"
            f"{cure and f'; {cure}'}"
        )

    def check_end(self) -> None:
        if self.kind != "end":
            self.fail("'and', 'or' or the end")

    def expression(self, depth: int) -> Rows:
        if depth > MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} brackets in each other")
        return self.joined("or", lambda: self.joined("and", lambda: self.negated(depth)))

    def joined(self, word: str, read: Callable[[], Rows]) -> Rows:
        parts = [read()]
        while self.kind == "name" and self.word == word:
            self.take()
            parts.append(read())
        combine = np.logical_and if word == "and" else np.logical_or
        return lambda values: reduce(combine, (rows(values) for rows in parts))

    def negated(self, depth: int) -> Rows:
        if depth > MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} of 'not' and brackets in each other")
        if self.kind == "name" and self.word == "not" and not self.is_compared():
            self.take()
            return _not(self.negated(depth + 1))
        if self.word == "(":
            self.take()
            inner = self.expression(depth + 1)
            self.sign(")")
            return inner
        if self.word == INSIDE and self.next_word() == "(":
            return self.inside()
        return self.comparison()

    def sign(self, sign: str) -> None:
        if self.kind != "sign" or self.text != sign:
            self.fail(repr(sign))
        self.take()

    def inside(self) -> Rows:
        self.take()
        self.sign("(")
        maps = self.names("map")
        if self.text not in maps:
            known = ", ".join(maps) or "none; python -m store project makes one"
            self.fail(f"a column of coordinates (there are: {known:.200})")
        column = self.take()
        self.sign(",")
        if self.kind != "text":
            self.fail('a polygon in quotes, as in "0,0 1,0 1,1"')
        where = f"filter, character {self.tokens[self.at][2]}"
        polygon = parse_polygon(self.take()[1:-1], where)
        self.sign(")")
        return lambda values: inside_polygon(values.points(column), polygon)

    def is_compared(self) -> bool:
        """Whether the name here is a column, also if it is one of the words."""
        signs = SIGNS.get(self.kinds.get(self.text, ""), ())
        return SPELLINGS.get(self.next_word(), self.next_word()) in signs

    def comparison(self) -> Rows:
        if self.word == LENGTH and self.next_word() == "(":
            name, kind = self.length()
        else:
            name = self.column()
            kind = self.kinds[name]
        is_negated = self.word == "not" and self.next_word() in ("in", "contains")
        if is_negated:
            self.take()
        signs = SIGNS[kind]
        sign = SPELLINGS.get(self.word, self.word)
        if sign not in signs:
            self.fail(f"one of {' '.join(signs)} after {name!r}")
        written = self.take()
        rows = self.listed(name, kind) if sign == "in" else self.operand(name, kind, sign, written)
        return _not(rows) if is_negated else rows

    def column(self) -> str:
        if self.kind != "name" or (self.word in WORDS and not self.is_compared()):
            self.fail("a column")
        if self.kinds.get(self.text) not in SIGNS:
            known = self.names(*SIGNS)
            like = closest(self.text, known) or f" (there are: {', '.join(known):.200})"
            length = f", or len({self.text})" if self.kinds.get(self.text) == "items" else ""
            self.fail(f"a column with one value a row{length or like}")
        return self.take()

    def length(self) -> tuple[str, str]:
        """`len(COLUMN)`, of which the name of the column is kept."""
        self.take()
        self.sign("(")
        if self.kinds.get(self.text) not in HAVE_LENGTH:
            known = ", ".join(sorted(self.names(*HAVE_LENGTH)))
            self.fail(f"a column of texts, or ragged (there are: {known:.200})")
        column = self.take()
        self.sign(")")
        return f"{LENGTH}({column})", "number"

    def listed(self, name: str, kind: str) -> Rows:
        """`in (VALUE, VALUE)`."""
        self.sign("(")
        parts = [self.operand(name, kind, "==", "in")]
        while self.word == ",":
            self.take()
            parts.append(self.operand(name, kind, "==", "in"))
        self.sign(")")
        return lambda values: reduce(np.logical_or, (rows(values) for rows in parts))

    def operand(self, column: str, kind: str, sign: str, written: str) -> Rows:
        """The value to compare with, after a sign that was written so."""
        after = f"after {column!r} {written}"
        if SIGNS[kind] is OF_TEXTS:
            if self.kind != "text":
                self.fail(f"a text in quotes {after}")
            text = re.sub(r"\\(.)", r"\1", self.take()[1:-1])
            return lambda values: _compare_texts(values, column, sign, text)
        if self.kind == "number":
            number = _number(self.take())
        elif self.word == LENGTH and self.next_word() == "(":
            return self.of_numbers(column, sign, self.length()[0])
        elif self.kind == "name" and self.kinds.get(self.text) == "number":
            return self.of_numbers(column, sign, self.take())
        elif self.kind == "name" and self.word in NAMED:
            if self.word == "nan" and sign not in ("==", "!="):
                self.fail("== nan or != nan")
            number = NAMED[self.take().lower()]
        else:
            self.fail(f"a number or a column of numbers {after}")
        return lambda values: _compare_number(_numbers(values, column), sign, number)

    @staticmethod
    def of_numbers(column: str, sign: str, other: str) -> Rows:
        return lambda values: _compare_columns(
            _numbers(values, column), sign, _numbers(values, other)
        )


def _not(rows: Rows) -> Rows:
    return lambda values: ~rows(values)


def _numbers(values: SingleValues, name: str) -> np.ndarray:
    """A column of numbers, or the lengths that `len(COLUMN)` means."""
    if name.startswith(f"{LENGTH}("):
        return values.lengths(name[len(LENGTH) + 1 : -1])
    return values.numbers(name)


def _number(text: str) -> float:
    """A number as it was written: whole ones keep all their digits, and inf alone is infinite."""
    if text.lstrip("+-").isdecimal():
        return int(text)
    number = float(text)
    if math.isinf(number) and not text.endswith("inf"):
        return BEYOND if number > 0 else -BEYOND
    return number


def _compare_texts(values: SingleValues, column: str, sign: str, text: str) -> np.ndarray:
    found = values.rows_with(column, text, whole=sign in ("==", "!="))
    return ~found if sign.startswith("!") else found


def _compare_number(values: np.ndarray, sign: str, number: float) -> np.ndarray:
    """NaN is less than, greater than and equal to nothing; `== nan` finds it."""
    if number != number:
        is_nan = np.isnan(values)
        return is_nan if sign == "==" else ~is_nan
    if values.dtype == bool:
        values = values.view(np.uint8)  # truth values compare with numbers of 64 bits alone
    near = _nearest(values.dtype, number)
    # a decimal takes the column's precision: .9 finds the float32 that was written as .9
    takes_precision = isinstance(number, float) and values.dtype.kind == "f" and math.isfinite(near)
    if near != number and not takes_precision:
        sign, near = _beside(sign, near, number)
    return COMPARE[sign](values, near)


def _nearest(dtype: np.dtype, number: float) -> float:
    """The number, or one next to it, as a column of the type has it; too large a float is inf."""
    if dtype.kind != "f":
        return number if number in (math.inf, -math.inf) else int(number)
    with np.errstate(over="ignore"):
        return float(dtype.type(str(number)))  # a large int has no float, its text has


def _beside(sign: str, near: float, number: float) -> tuple[str, float]:
    """What says the same of a column that has `near`, and nothing from there to `number`."""
    if sign in ("==", "!="):
        return sign, math.nan  # which nothing equals
    is_within = (near < number) == (sign[0] == "<")
    return sign[0] + "=" * is_within, near


def _compare_columns(left: np.ndarray, sign: str, right: np.ndarray) -> np.ndarray:
    """NumPy compares whole numbers with floats as floats: those that round are looked at again."""
    found = COMPARE[sign](left, right)
    if (left.dtype.kind == "f") != (right.dtype.kind == "f"):
        rows = np.flatnonzero(left == right)
        rows = rows[np.abs(left[rows], dtype=np.float64) >= EXACT]
        found[rows] = COMPARE[sign](left[rows].astype(object), right[rows].astype(object))
    return found
