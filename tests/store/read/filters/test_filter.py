"""The language of filters."""

import operator
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import SchemaError, TraceStore
from store.read.filters.filter import MAX_LENGTH, complete, filter_rows, parse_filter
from store.read.filters.single_values import SingleValues
from store.read.filters.text_search import count_characters, equal_rows, find_rows, row_blocks

KINDS = {"label": "number", "score": "number", "exact": "number", "question": "text"}


@pytest.fixture(scope="module")
def values(traces_path):
    return SingleValues(TraceStore.open(traces_path), {"score_a": np.arange(40, dtype=np.float32)})


def oracle(traces, condition):
    return [condition(i, row) for i, (_, row) in enumerate(traces)]


@pytest.mark.parametrize(
    "text, condition",
    [
        ("label == 1", lambda i, row: row["label"] == 1),
        ("label <> 1", lambda i, row: row["label"] != 1),
        ("label > .5", lambda i, row: row["label"] > 0.5),
        ("score_a >= 7 and score_a < 9.5", lambda i, row: 7 <= i < 9.5),
        ("score == nan", lambda i, row: np.isnan(row["score"])),
        ("score < exact", lambda i, row: row["score"] < row["exact"]),
        (
            "label == 1 or label == 0 and score > 0",
            lambda i, row: row["label"] == 1 or (row["label"] == 0 and row["score"] > 0),
        ),
        (
            "(label == 1 or label == 0) and score > 0",
            lambda i, row: row["label"] in (0, 1) and row["score"] > 0,
        ),
        ('question ~ "CAPITAL"', lambda i, row: "capital" in row["question"].lower()),
        ('question ~ "ünïcode 東"', lambda i, row: "ünïcode 東" in row["question"].lower()),
        (r'question ~ "quotes \" and \\ a"', lambda i, row: 'quotes " and \\ a' in row["question"]),
        ("answer == ''", lambda i, row: row["answer"] == ""),
        (
            'label == 1 and not inside(map_pca, "-1,-1 1,-1 1,1 -1,1")',
            lambda i, row: row["label"] == 1 and not (np.abs(row["map_pca"][:2]) < 1).all(),
        ),
        ("inside ( map_pca , '0,-9 9,-9 9,9 0,9' )", lambda i, row: row["map_pca"][0] > 0),
        ("label = 1 AND score > 0", lambda i, row: row["label"] == 1 and row["score"] > 0),
        ("NOT label=1 Or score>2", lambda i, row: row["label"] != 1 or row["score"] > 2),
        ("label not in (1, -1)", lambda i, row: row["label"] not in (1, -1)),
        ("score IN (nan)", lambda i, row: np.isnan(row["score"])),
        ("trace_id in ('trace-07', \"trace-31\")", lambda i, row: i in (7, 31)),
        ("question not contains 'x'", lambda i, row: "x" not in row["question"].lower()),
        ("len(question) == len(answer)", lambda i, row: len(row["question"]) == len(row["answer"])),
        ("len(hidden_states) >= 5", lambda i, row: len(row["hidden_states"]) >= 5),
        (
            "n_tokens < 5 and label in (0)",
            lambda i, row: len(row["tokens"]) < 5 and not row["label"],
        ),
    ],
)
def test_a_filter_means_what_python_would(values, traces, text, condition):
    """On rows with NaN, empty texts and every label."""
    assert filter_rows(values, text).tolist() == oracle(traces, condition)


SIGNS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
LARGE = [1, 2**24, 2**53, 2**63, 2**64]
NUMBERS = [
    *(sign * number + off for number in LARGE for sign in (1, -1) for off in (-1, 0, 1)),
    *(
        sign * number
        for number in (65504, 65519, 65520, 70000, 10**39, 10**400)
        for sign in (1, -1)
    ),
]
FLOATS = [0.0, 0.5, -1.0, 65504.0, 2.0**24, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63), 2.0**64]


def column_of(dtype):
    """Numbers around the ends of a type, and around where floats begin to round."""
    if np.dtype(dtype).kind == "f":
        limit = np.finfo(dtype).max
        with np.errstate(over="ignore"):
            return np.array([*FLOATS, limit, -limit, np.inf, -np.inf, np.nan], dtype)
    if dtype == "bool":
        return np.array([False, True])
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    numbers = [low, low + 1, high - 1, high, 0, *NUMBERS]
    return np.array([number for number in numbers if low <= number <= high], dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint64"])
def test_numbers_are_compared_exactly(values, dtype):
    """Whole ones, those beyond the range of the column, and any with whole numbers."""
    numbers = column_of(dtype)
    rows = SingleValues(values.store, {"x": numbers})
    meant = {str(number): number for number in NUMBERS} | {"inf": np.inf, "-inf": -np.inf}
    meant |= {"1e39": 10**39, "-1e39": -(10**39), "1e400": 10**400, "-1e400": -(10**400)}
    if numbers.dtype.kind != "f":
        meant |= {"0.5": 0.5, "-1.5": -1.5}
    for (sign, compare), (text, number) in product(SIGNS.items(), meant.items()):
        expected = [compare(one, number) for one in numbers.tolist()]
        assert filter_rows(rows, f"x {sign} {text}").tolist() == expected, (sign, text)


@pytest.mark.parametrize("whole", ["bool", "int8", "int64", "uint64"])
@pytest.mark.parametrize("real", ["float16", "float32", "float64"])
def test_columns_are_compared_exactly(values, whole, real):
    """Whole numbers with floats, in either order."""
    pairs = [*product(column_of(whole), column_of(real))]
    x, y = (np.array(column) for column in zip(*pairs, strict=True))
    rows = SingleValues(values.store, {"x": x, "y": y})
    columns = {name: rows.numbers(name).tolist() for name in "xy"}
    for (sign, compare), (a, b) in product(SIGNS.items(), ("xy", "yx")):
        expected = [*map(compare, columns[a], columns[b])]
        assert filter_rows(rows, f"{a} {sign} {b}").tolist() == expected


def test_a_decimal_takes_the_precision_of_its_column(values):
    """What was written as .9 is found as .9."""
    rows = SingleValues(values.store, {"x": np.array([0.9, 1], np.float32)})
    assert filter_rows(rows, "x == .9").tolist() == [True, False]
    assert filter_rows(rows, "x < .9").tolist() == [False, False]


def test_a_store_has_the_rows_of_a_filter(values, traces):
    """By number, ascending."""
    store = values.store
    rows = store.where("label == 1 and question contains 'capital' and n_tokens > 5")
    expected = oracle(
        traces,
        lambda i, row: (
            row["label"] == 1 and "capital" in row["question"].lower() and len(row["tokens"]) > 5
        ),
    )
    assert rows.dtype == np.int64
    assert rows.tolist() == np.flatnonzero(expected).tolist()
    assert store.where("").tolist() == list(range(len(store)))
    with pytest.raises(SchemaError, match="closest: 'label'"):
        store.where("lable == 1")


def test_a_wrong_filter_says_where(values, golden_lines):
    """In one line, with what was expected there."""

    def refuse(text):
        with pytest.raises(SchemaError) as caught:
            filter_rows(values, text)
        return str(caught.value)

    golden_lines("wrong_filters.txt", refuse)


def test_a_long_filter_is_refused():
    """Before anything of it is read."""
    with pytest.raises(SchemaError, match=f"at most {MAX_LENGTH} characters, found 100000"):
        parse_filter("(" * 100_000, KINDS)


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_a_schema_error(text):
    """Never another error."""
    try:
        parse_filter(text, KINDS)
    except SchemaError as error:
        assert str(error).startswith("filter")  # noqa: PT017


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", ["label", "score", "exact", "question", "not", "len(", "inside("]),
        ("sc", ["score"]),
        ("label", []),
        ("label ", ["==", "!=", "<", "<=", ">", ">=", "in"]),
        ("question ", ["==", "!=", "~", "!~", "contains", "in"]),
        ("score > ", ["label", "score", "exact"]),
        ("score > 1 ", ["and", "or"]),
        ("question ~ ", []),
        ("?", []),
        ("len(", ["question"]),
        ("label in (", []),
        ("label = 1 AND sc", ["score"]),
        ("ins", ["inside("]),
        ("inside(", ["map_pca", "map_umap"]),
        ("label == 1 and inside(map_u", ["map_umap"]),
        ('inside(map_pca, "0,0 1,0 1,1") ', ["and", "or"]),
        ("inside(map_pca", []),
    ],
)
def test_completions_are_what_may_follow(text, expected):
    """Columns, signs that fit the column, and words; of coordinates after the bracket alone."""
    kinds = KINDS | dict.fromkeys(["map_pca", "map_umap"], "map")
    assert complete(text, kinds) == expected
    assert complete("", KINDS)[-1] == "len("  # without coordinates there is no polygon


def packed(texts):
    """Texts as a column has them: their bytes, and offsets."""
    encoded = [text.encode() for text in texts]
    return b"".join(encoded), np.cumsum([0, *map(len, encoded)])


TEXTS = st.lists(st.text("asAéÉßẞﬁıİ東рР\n𝛼", max_size=6), max_size=30)


@given(TEXTS, st.text("asAéßiİ東Р", min_size=0, max_size=3))
def test_a_search_finds_what_python_finds(texts, needle):
    """Also across the borders of texts that lie one after the other; a text equals itself alone,
    and characters are counted, not bytes."""
    found = find_rows(*packed(texts), needle)
    # a needle of ASCII has no case but that of ASCII
    fold = (lambda text: text.encode().lower()) if needle.isascii() else str.casefold
    assert found.tolist() == [fold(needle) in fold(text) for text in texts]
    assert count_characters(*packed(texts)).tolist() == [*map(len, texts)]
    for text in (needle, *texts[:2]):
        assert equal_rows(*packed(texts), text).tolist() == [text == other for other in texts]


def test_blocks_of_rows_are_of_bytes():
    """A long text is a block of its own; texts without a byte are in one as well."""
    offsets = np.cumsum([0, 3, 3, 50, 0, 1, 1, 1, 0])
    assert list(row_blocks(offsets, 8, 3)) == [(0, 2), (2, 3), (3, 6), (6, 8)]
    assert list(row_blocks(np.zeros(1, np.int64))) == []


def test_a_letter_of_another_length_is_found():
    """The sign of kelvin is a k, in texts and in needles that are not of ASCII alone."""
    texts = ["2 K é", "2 k É", "2 \u212a é", "straße É", "STRASSE é"]
    for needle, expected in (("K é", [1, 1, 1, 0, 0]), ("straße", [0, 0, 0, 1, 1])):
        assert find_rows(*packed(texts), needle).tolist() == expected
