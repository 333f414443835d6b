"""Fields of records as columns: types by what is there, names, cuts, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import NotFoundError, SchemaError
from store.traces.fields import MAX_CHARACTERS, find_fields

RECORDS = [
    {"easy": True, "year": 1990, "share": 0.5, "task": "QA", "docs": [3, 4], "odd": 1, "_id": "x"},
    {"easy": False, "year": -1, "share": 1, "task": None, "docs": [], "odd": "a", "hops": 2},
]


NAMES = ["easy", "year", "share", "task", "docs", "odd", "id", "hops"]
DTYPES = ["bool", "int64", "float64", "utf8", "utf8", "utf8", "utf8", "float64"]


def test_what_all_records_have_decides_the_column():
    """Missing numbers are NaN, missing texts empty; a list is JSON."""
    fields = find_fields(RECORDS)
    dtypes = {name: column.dtype for name, column in fields.columns.items()}
    assert dtypes == dict(zip(NAMES, DTYPES, strict=True))
    first, second = map(fields.row, RECORDS)
    found = [first[name] for name in ("easy", "year", "docs", "odd")]
    assert found == [True, 1990, "[3, 4]", "1"]
    assert math.isnan(first["hops"])
    assert (second["task"], second["id"], second["hops"]) == ("", "", 2)


@pytest.mark.parametrize(
    "wanted, expected",
    [
        (["all"], NAMES),
        (["none"], []),
        (["task", "_id"], ["task", "id"]),
        (["-task", "-docs"], ["easy", "year", "share", "odd", "id", "hops"]),
        (["none", "year"], ["year"]),
    ],
)
def test_fields_are_chosen_by_name(wanted, expected):
    assert list(find_fields(RECORDS, wanted).columns) == expected


@pytest.mark.parametrize(
    ("others", "expected"),
    [([], "int64"), ([1], "int64"), ([None], "utf8"), ([2.5], "utf8"), ([10**400], "utf8")],
)
@pytest.mark.parametrize("large", [2**53 + 1, -(2**63) + 1])
def test_no_digit_of_a_large_number_is_lost(others, expected, large):
    """Where a float cannot hold it, the field is a text, and no record is left out."""
    records = [{"n": number} for number in (*others, large)]
    fields = find_fields(records)
    assert fields.columns["n"].dtype == expected
    values = [fields.row(one)["n"] for one in records]
    assert str(values[-1]) == str(large)


def test_truth_values_of_which_some_are_missing_are_numbers():
    """As merge makes of them: NaN is not false."""
    records = [{"easy": True}, {"easy": None}, {"easy": False}, {}]
    fields = find_fields(records)
    assert fields.columns["easy"].dtype == "float64"
    np.testing.assert_equal([fields.row(one)["easy"] for one in records], [1, np.nan, 0, np.nan])


def test_names_of_columns_do_not_depend_on_the_order_of_fields():
    """Or the columns of two stores would be called alike and hold other fields; other names are
    said."""
    record = {"难度": 1, "语言": "en", "Größe": 2.5}
    fields = find_fields([record])
    names = {"field_a5e0cc09": "难度", "field_8f82f856": "语言", "Gr_e_b7256ba6": "Größe"}
    assert fields.names == find_fields([dict(reversed(record.items()))]).names == names
    (line,) = find_fields([{"_id": 1, "язык": "ru", "task": "QA"}]).remarks()
    assert line == "fields whose columns have other names: '_id' is id, 'язык' is field_f6714b4d"


def test_objects_come_along_by_name_alone():
    records = [{"spans": [{"start": 1}], "meta": {"a": 1}, "n": 1}]
    assert list(find_fields(records).columns) == ["n"]
    assert find_fields(records, ["all", "meta"]).row(records[0]) == {"n": 1, "meta": '{"a": 1}'}


def test_long_texts_are_cut_and_said():
    """Those of a field that is named stay whole."""
    records = [{"page": "é" * 3000}, {"page": "short"}]
    fields = find_fields(records)
    assert len(fields.row(records[0])["page"]) == MAX_CHARACTERS
    assert fields.remarks() == [
        "texts of more than 1,000 characters are cut in the fields page; --fields all,page keeps "
        "them whole"
    ]
    whole = find_fields(records, ["all", "page"])
    assert len(whole.row(records[0])["page"]) == 3000
    assert not whole.remarks()


def test_what_is_not_utf8_is_said():
    """It becomes a question mark, of a text, of one in a list, and of bytes of array files."""
    records = [{"note": "a\ud800", "docs": ["\udc00"], "city": b"N\xeemes", "task": "QA"}]
    records += [{"note": "é", "city": "Nîmes".encode(), "docs": [b"Is\xe8re", b"Gard", b""]}]
    fields = find_fields(records)
    row = {"note": "a?", "docs": '["?"]', "city": "N?mes", "task": "QA"}
    assert fields.row(records[0]) == row
    assert fields.row(records[1])["city"] == "Nîmes"
    assert fields.row(records[1])["docs"] == '["Is?re", "Gard", ""]'
    assert fields.remarks() == [
        "half a character (a lone surrogate), or bytes that are not UTF-8, became ? in texts of "
        "the fields note,docs,city"
    ]


@pytest.mark.parametrize(
    "name, found",
    [
        ("label", "column 'label'"),
        ("Tokens", "column 'tokens'"),
        ("trace id", "column 'trace_id'"),
        ("edges", "column 'edges'"),
        ("n_tokens", "column 'n_tokens'"),
        ("N-Pairs", "column 'n_pairs'"),
    ],
)
def test_the_name_of_a_column_is_refused(name, found):
    """With the cure; a disk may not tell upper from lower case."""
    records = [{name: 1, "task": "QA"}]
    with pytest.raises(SchemaError, match=f"of the {found}; .*--fields all,-{name}"):
        find_fields(records)
    assert list(find_fields(records, [f"-{name}"]).columns) == ["task"]


@pytest.mark.parametrize(("one", "other"), [("type", "Type"), ("a b", "a-b")])
def test_two_fields_of_one_name_are_refused(one, other):
    with pytest.raises(SchemaError, match=f"field '{other}': .* of the field '{one}'"):
        find_fields([{one: 1, other: 2}])


def test_what_does_not_fit_the_columns_is_refused():
    """A field that is not there; values, where columns are made of the first records."""
    with pytest.raises(NotFoundError, match="found 'tusk'; closest: 'task'"):
        find_fields(RECORDS, ["tusk"])
    fields = find_fields([{"year": 1, "easy": True}])
    for record in ({"year": "x", "easy": True}, {"year": 2**63, "easy": True}, {"year": 1}):
        with pytest.raises(SchemaError, match="as in the first records, found"):
            fields.row(record)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just("\ud800")
)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), max_size=5))
def test_every_value_has_a_place_in_its_column(records):
    """Also integers beyond 64 bits and halves of characters."""
    fields = find_fields(records)
    for record in records:
        for name, value in fields.row(record).items():
            if fields.columns[name].is_text:
                value.encode()
            else:
                np.array(value, fields.columns[name].dtype)
