"""The language of filters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import NotFoundError, SchemaError, TraceStore
from store.read.filters.completion import complete
from store.read.filters.filter import MAX_LENGTH, filter_rows, parse_filter
from store.read.filters.single_values import SingleValues
from store.read.filters.text_search import equal_rows, find_rows, row_blocks

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
def test_a_filter_means_what_python_would(values, traces, text, condition):
    """On rows with NaN, empty texts and every label."""
    assert filter_rows(values, text).tolist() == oracle(traces, condition)


def test_a_store_has_the_rows_of_a_filter(values):
    """By number, ascending, without a page."""
    store = values.store
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


def test_an_empty_filter_means_all_rows(values):
    """No mask is made for it."""
    assert filter_rows(values, "") is None
    assert filter_rows(values, "  ") is None


@pytest.mark.parametrize(
    "text, message",
    [
        ("lable == 1", "character 0: expected a column with one value a row; closest: 'label'"),
        ("label", "one of == != < <= > >= in after 'label', found the end"),
        ("label == ", "a number or a column of numbers after 'label' =="),
        ('label == "1"', "a number or a column of numbers"),
        ("question ~ 1", "a text in quotes after 'question' ~"),
        ("question > 'a'", "one of == != ~ !~ contains in after 'question'"),
        ("label == 1 score > 0", "'and', 'or' or the end, found 'score'"),
        ("(label == 1", "expected ')', found the end"),
        ("label == 1)", "found ')'"),
        ("label == 1__import__", "character 9"),
        ("__import__('os')", "a column with one value a row (there are: trace_id, "),
        ("question ~ 'open", "character 11"),
        ("hidden_states > 1", "a column with one value a row"),
        ("and", "expected a column, found 'and'"),
        ("(" * 100 + "label == 1", "at most 30"),
        ("not " * 100 + "label == 1", "at most 30"),
        ("inside == 1", "expected a column with one value a row"),
        ("inside(score, '0,0 1,0 1,1')", "a column of coordinates (there are: map_pca), found"),
        ("inside(map_pca '0,0 1,0 1,1')", "expected ',', found"),
        ("inside(map_pca, 1)", "expected a polygon in quotes"),
        ("inside(map_pca, '0,0 1,0 1,1'", "expected ')', found the end"),
        ("inside(map_pca, '0,0 1,0')", "character 16: expected 3 to 100 corners"),
        ("inside(map_pca, '0,0 1,0 nan,1')", "expected a corner x,y of finite numbers"),
        ("label == 1, label == 0", "'and', 'or' or the end, found ','"),
        ("label == 1 && score > 0", "character 11: expected 'and', 'or' or the end, found '&&'"),
        ("label == 1 & score > 0", "write 'and'"),
        ("label == 1 | score > 0", "write 'or'"),
        ("! label == 1", "write 'not', or !="),
        ("question == capital", "found 'capital': question == ^capital; write 'capital'"),
        ("question == 5", "write '5'"),
        ('label == "1"', 'label == ^"1"; leave out the quotes'),
        ("question like '%a%'", "question ^like '%a%'; write COLUMN contains 'text'"),
        ("question contains 5", "a text in quotes after 'question' contains"),
        ("id == 't1'", "id == 't1'; write trace_id"),
        ("label is null", "write == or !=; a missing number is nan, a missing text ''"),
        ("label == None", "found 'None': label == ^None; write == or !=; a missing number is"),
        ("isnan(score)", "a missing number is nan"),
        ("exact % 2 == 0", "exact ^% 2 == 0; there is no arithmetic: write COLUMN in"),
        ("-score < 0", "character 0: expected a column, found '-': ^-score < 0; there is no arith"),
        ("label[0] == 1", "label^[0] == 1; items of a column cannot be chosen"),
        ("hidden_states[0] > 1", "^hidden_states[0]; hidden_states has several: write len(hidden_"),
        ("map_pca > 0", "^map_pca > 0; map_pca has several: add a column of one (docs/python.md"),
        ("df['label'] == 1", "found 'df': ^df['label'] == 1; write the column alone"),
        ("abs(score) > 1", "there is no function but len and inside"),
        ("length(question) > 1", "write len(COLUMN)"),
        ("1 == label", "found '1': ^1 == label; a comparison begins with a column"),
        ("0 < label < 1", "write COLUMN >= LOW and COLUMN <= HIGH"),
        ("label > 0 < 1", "label > 0 ^< 1; write COLUMN >= LOW and COLUMN <= HIGH"),
        ("question == 'a' or 'b'", "or ^'b'; a comparison begins with a column; several values: "),
        ("question == “a”", "found '“': question == ^“a”; write straight quotes"),
        ("question == 'it's'", "found 's': question == 'it'^s'; close the quote"),
        ("question >= '2024-01-01'", "texts have no order; write question contains 'text'"),
        ("question == 2024-01-01", "question == ^2024-01-01; write '2024-01-01'"),
        ("question", "write question != ''"),
        ("label not 1", "label ^not 1; write !="),
        ("label === 1", "found '=': label ==^= 1; the signs are == != < <= > >= in"),
        ("question =~ 'a'", "found '~': question =^~ 'a'; the signs are == != ~ !~ contains in"),
        ("score ≥ 0", "score ^≥ 0; write >="),
        ("label: 1", "label^: 1; write =="),
        ("score > 1,000", "score > 1^,000; write numbers without commas"),
        ("LABEL == 1", "closest: 'label', found 'LABEL'"),
        ("where label == 1", "^where label == 1; leave it out"),
        ("label between 0 and 1", "write COLUMN >= LOW and COLUMN <= HIGH"),
        ("question.str.contains('a')", "columns have no methods"),
        ("exact and label == 1", "write exact == 1"),
        ("label in 1", "expected '(', found '1'"),
        ("label in [1, 2]", "write 'in' with round brackets"),
        ("label in ()", "a number or a column of numbers after 'label' in"),
        ("label in (1, 'a')", "leave out the quotes"),
        ("question in ('a' 'b')", "expected ')', found"),
        ("hidden_states > 1", "write len(hidden_states)"),
        ("len(label) > 1", "a column of texts, or ragged (there are: answer, attn_"),
        ("len(question) > 'a'", "a number or a column of numbers after 'len(question)' >"),
        ("question == 'a\n\nb' or x", "a column with one value a row"),
    ],
)
def test_a_wrong_filter_says_where(values, text, message):
    """In one line, with what was expected there."""
    with pytest.raises(SchemaError) as caught:
        filter_rows(values, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_unknown_columns_are_named(values):
    """With those like it."""
    with pytest.raises(NotFoundError, match="found 'labl'; closest: 'label'"):
        values.numbers("labl")
    with pytest.raises(SchemaError, match="expected numbers, found texts"):
        values.numbers("question")
