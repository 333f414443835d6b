"""The language of filters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import NotFoundError, SchemaError, TraceStore
from store.read.filters import MAX_LENGTH, complete, filter_rows, parse_filter
from store.read.searches import equal_rows, find_rows, row_blocks
from store.view.columns import Table
from store.view.histograms import histogram
from store.view.orders import sorted_rows

KINDS = {"label": "number", "score": "number", "exact": "number", "question": "text"}


@pytest.fixture(scope="module")
def table(traces_path):
    return Table(TraceStore.open(traces_path), {"score_a": np.arange(40, dtype=np.float32)})


def oracle(traces, condition):
    return [condition(i, row) for i, (_, row) in enumerate(traces)]


@pytest.mark.parametrize(
    "text, condition",
    [
        ("label == 1", lambda i, row: row["label"] == 1),
        ("label != 1", lambda i, row: row["label"] != 1),
        ("label <> 1", lambda i, row: row["label"] != 1),
        ("label > .5", lambda i, row: row["label"] > 0.5),
        ("score_a >= 7 and score_a < 9.5", lambda i, row: 7 <= i < 9.5),
        ("score == nan", lambda i, row: np.isnan(row["score"])),
        ("score != nan", lambda i, row: not np.isnan(row["score"])),
        ("score < exact", lambda i, row: row["score"] < row["exact"]),
        ("brain <= 2.0", lambda i, row: i <= 2),
        ("not label == 1", lambda i, row: row["label"] != 1),
        (
            "label == 1 or label == 0 and score > 0",
            lambda i, row: row["label"] == 1 or (row["label"] == 0 and row["score"] > 0),
        ),
        (
            "(label == 1 or label == 0) and score > 0",
            lambda i, row: row["label"] in (0, 1) and row["score"] > 0,
        ),
        ('question ~ "CAPITAL"', lambda i, row: "capital" in row["question"].lower()),
        ('question !~ "capital"', lambda i, row: "capital" not in row["question"].lower()),
        ('question ~ "ünïcode 東"', lambda i, row: "ünïcode 東" in row["question"].lower()),
        (r'question ~ "quotes \" and \\ a"', lambda i, row: 'quotes " and \\ a' in row["question"]),
        ("answer == ''", lambda i, row: row["answer"] == ""),
        ("trace_id == 'trace-07'", lambda i, row: i == 7),
        ("label == -1", lambda i, row: row["label"] == -1),
        ("score_a == 1e1", lambda i, row: i == 10),
        ("score_a < 1e300", lambda i, row: True),
        ("label < 1000", lambda i, row: True),
        ("label < 99999999999999999999999", lambda i, row: True),
        ("label > -.5", lambda i, row: row["label"] >= 0),
        (
            'label == 1 and not inside(map_pca, "-1,-1 1,-1 1,1 -1,1")',
            lambda i, row: row["label"] == 1 and not (np.abs(row["map_pca"][:2]) < 1).all(),
        ),
        ("inside ( map_pca , '0,-9 9,-9 9,9 0,9' )", lambda i, row: row["map_pca"][0] > 0),
        ("label = 1 AND score > 0", lambda i, row: row["label"] == 1 and row["score"] > 0),
        ("NOT label=1 Or score>2", lambda i, row: row["label"] != 1 or row["score"] > 2),
        ("label in (1, -1)", lambda i, row: row["label"] in (1, -1)),
        ("label not in (1, -1)", lambda i, row: row["label"] not in (1, -1)),
        ("score IN (nan)", lambda i, row: np.isnan(row["score"])),
        ("trace_id in ('trace-07', \"trace-31\")", lambda i, row: i in (7, 31)),
        ("question contains 'CAPITAL'", lambda i, row: "capital" in row["question"].lower()),
        ("question not contains 'x'", lambda i, row: "x" not in row["question"].lower()),
        ("len(question) > 20", lambda i, row: len(row["question"]) > 20),
        ("len(question) == len(answer)", lambda i, row: len(row["question"]) == len(row["answer"])),
        ("len(hidden_states) >= 5", lambda i, row: len(row["hidden_states"]) >= 5),
        (
            "n_tokens < 5 and label in (0)",
            lambda i, row: len(row["tokens"]) < 5 and not row["label"],
        ),
    ],
)
def test_a_filter_means_what_python_would(table, traces, text, condition):
    """On rows with NaN, empty texts and every label."""
    assert filter_rows(table, text).tolist() == oracle(traces, condition)


def test_a_store_has_the_rows_of_a_filter(table):
    """By number, ascending, without a page."""
    store = table.store
    rows = store.where("label == 1 and question contains 'capital' and n_tokens > 5")
    assert rows.dtype == np.int64
    expected = [
        i
        for i, trace in enumerate(store)
        if trace["label"] == 1
        and "capital" in trace["question"].lower()
        and len(trace["tokens"]) > 5
    ]
    assert rows.tolist() == expected
    assert store.where("").tolist() == list(range(len(store)))
    with pytest.raises(SchemaError, match="closest: 'label'"):
        store.where("lable == 1")


def test_an_empty_filter_means_all_rows(table):
    """No mask is made for it."""
    assert filter_rows(table, "") is None
    assert filter_rows(table, "  ") is None


def test_a_wrong_filter_says_where(table, golden_lines):
    """In one line, with what was expected there."""

    def refuse(text):
        with pytest.raises(SchemaError) as caught:
            filter_rows(table, text)
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


def test_maps_complete_a_polygon():
    """Columns of coordinates come after the bracket and nowhere else."""
    kinds = KINDS | dict.fromkeys(["map_pca", "map_umap"], "map")
    assert complete("ins", kinds) == ["inside("]
    assert complete("inside(", kinds) == ["map_pca", "map_umap"]
    assert complete("label == 1 and inside(map_u", kinds) == ["map_umap"]
    assert complete('inside(map_pca, "0,0 1,0 1,1") ', kinds) == ["and", "or"]
    assert complete("inside(map_pca", kinds) == []


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", ["label", "score", "exact", "question", "not", "len("]),
        ("sc", ["score"]),
        ("lab", ["label"]),
        ("label", []),
        ("label ", ["==", "!=", "<", "<=", ">", ">=", "in"]),
        ("question ", ["==", "!=", "~", "!~", "contains", "in"]),
        ("score > ", ["label", "score", "exact"]),
        ("score > 1 ", ["and", "or"]),
        ("score > 1 a", ["and"]),
        ("score > exact ", ["and", "or"]),
        ("score > 1 and q", ["question"]),
        ("(", ["label", "score", "exact", "question", "not", "len("]),
        ("question ~ ", []),
        ("?", []),
        ("len(", ["question"]),
        ("label in (", []),
        ("label = 1 AND sc", ["score"]),
    ],
)
def test_completions_are_what_may_follow(text, expected):
    """Columns, signs that fit the column, and words."""
    assert complete(text, KINDS) == expected


@pytest.mark.parametrize("text", ["abab", "é", "", "b"])
def test_a_text_equals_itself_alone(text):
    """Not one that holds it, nor one of another case."""
    texts = ["abab", "ABAB", "xabab", "", "é", "è", "b", "abab"]
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)])
    found = equal_rows(b"".join(encoded), offsets, text)
    assert found.tolist() == [other == text for other in texts]


TEXTS = st.lists(st.text("asAéÉßẞﬁıİ東рР\n", max_size=6), max_size=30)


@given(TEXTS, st.text("asAéßiİ東Р", min_size=0, max_size=3))
def test_a_search_finds_what_python_finds(texts, needle):
    """Also across the borders of texts that lie one after the other."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)])
    found = find_rows(b"".join(encoded), offsets, needle)
    # a needle of ASCII has no case but that of ASCII
    fold = (lambda text: text.encode().lower()) if needle.isascii() else str.casefold
    assert found.tolist() == [fold(needle) in fold(text) for text in texts]


def test_blocks_of_rows_are_of_bytes():
    """A long text is a block of its own; texts without a byte are in one as well."""
    offsets = np.cumsum([0, 3, 3, 50, 0, 1, 1, 1, 0])
    assert list(row_blocks(offsets, 8, 3)) == [(0, 2), (2, 3), (3, 6), (6, 8)]
    assert list(row_blocks(np.zeros(1, np.int64))) == []


def test_a_letter_of_another_length_is_found():
    """The sign of kelvin is a k, in texts and in needles that are not of ASCII alone."""
    texts = ["2 K é", "2 k É", "2 \u212a é", "straße É", "STRASSE é"]
    offsets = np.cumsum([0, *(len(text.encode()) for text in texts)])
    data = "".join(texts).encode()
    assert find_rows(data, offsets, "K é").tolist() == [True, True, True, False, False]
    assert find_rows(data, offsets, "straße").tolist() == [False, False, False, True, True]


def test_unknown_columns_are_named(table):
    """With those like it."""
    with pytest.raises(NotFoundError, match="found 'labl'; closest: 'label'"):
        table.numbers("labl")
    with pytest.raises(SchemaError, match="expected numbers, found texts"):
        table.numbers("question")


VALUES = [
    np.array([3, 1, 2, 1], np.int8),
    np.array([0.0, -0.0, np.nan, np.inf, -np.inf, -1.5, 2, np.nan], np.float32),
    np.array([1, np.nan, -1, 0.5, 0.5, np.nan], np.float16),
    np.array([1.0, np.nan, -1, 1.0, 2**53 + 2], np.float64),
    np.array([2**40, -(2**40), 5, 5], np.int64),
    np.array([True, False, True]),
    np.array([2**31, 5, 2**32 - 1], np.uint32),
    np.array([], np.float32),
    np.tile([5, -1, 2**40, 2**40 + 1, 0], 20_000),
]


@pytest.mark.parametrize("values", VALUES, ids=lambda values: f"{values.dtype}{len(values)}")
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_agrees_with_python(values, descending):
    """NaN comes last in both directions; equal values stay by row."""
    rows = np.arange(len(values), dtype=np.uint32) * 3
    numbers = values.tolist()
    present = [i for i, value in enumerate(numbers) if value == value]
    missing = [i for i, value in enumerate(numbers) if value != value]
    present.sort(key=lambda i: -numbers[i] if descending else numbers[i])
    expected = [3 * i for i in [*present, *missing]]
    assert sorted_rows(rows, values, descending).tolist() == expected


def test_a_histogram_agrees_with_numpy():
    """For each group of rows; what is not finite is counted aside."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(1000).astype(np.float32)
    values[::10] = np.nan
    values[5] = np.inf
    group = rng.random(1000) < 0.5
    found = histogram(values, [group, ~group])
    finite = values[np.isfinite(values)]
    assert found.n_missing == 1000 - len(finite)
    expected, edges = np.histogram(finite.astype(np.float64), 60)
    np.testing.assert_allclose(found.edges, edges, rtol=1e-6)
    assert found.counts.sum() == expected.sum()
    np.testing.assert_array_equal(found.counts.sum(0), expected)


def test_whole_numbers_have_a_bin_each():
    """Labels, for example."""
    found = histogram(np.array([-1, 0, 1, 1], np.int8), [np.ones(4, bool)])
    assert found.edges.tolist() == [-1.5, -0.5, 0.5, 1.5]
    assert found.counts.tolist() == [[1, 1, 2]]


@pytest.mark.parametrize(
    "values",
    [
        np.array([1e10, np.nextafter(1e10, 2e10)]),
        np.full(5, 3.0, np.float32),
        np.array([60_000, -60_000], np.float16),
        np.array([True, False]),
        np.array([0.0, 5e-324]),
        np.array([2**62, -(2**62)]),
        np.array([2**53 + 1, 2**53 + 2, 2**53 + 1]),
        np.array([2**63 - 1, -(2**63)]),
        np.array([2**64 - 1, 2**64 - 2], np.uint64),
        np.array([0, 2**64 - 1, 2**63], np.uint64),
        np.array([1_763_000_000_000_000_001, 1_763_000_000_000_000_090]),
        np.array([1.7e308, -1.7e308, 0.0]),
        np.full(2, np.finfo(np.float64).max),
        np.full(2, np.finfo(np.float16).max, np.float16),
        np.array([1, 2, 1, 2, 2], np.float16),
        np.linspace(0, 1, 2000, dtype=np.float32),
        np.arange(-50, 50, dtype=np.int8),
    ],
    ids=lambda values: f"{values.dtype}{len(values)}",
)
def test_every_value_is_in_a_bin(values):
    """The one that a filter of its edges means; also of numbers close together, or far apart."""
    found = histogram(values, [np.ones(len(values), bool)])
    assert found.counts.sum() == len(values)
    assert (np.diff(found.edges) > 0).all()
    edges = found.edges.tolist()
    uppers = [*edges[1:-1], np.inf]
    filtered = [
        int(((values >= low) & (values < high)).sum())
        for low, high in zip(edges, uppers, strict=False)
    ]
    assert found.counts[0].tolist() == filtered


def test_histograms_of_nothing_are_empty():
    """No row, or none with a finite value."""
    for values in (np.zeros(0, np.float32), np.full(3, np.nan, np.float32)):
        found = histogram(values, [np.ones(len(values), bool)])
        assert found.edges.tolist() == []
        assert found.counts.tolist() == [[]]
