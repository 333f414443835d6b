"""Layers are numbered as the model numbers them, and named in one syntax."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import NotFoundError, SchemaError
from store.traces.layers import (
    choose_layers,
    format_layers,
    layer_numbers,
    parse_layers,
    recorded_layers,
)


def merged(*parts):
    """The provenance of a store that was merged of others."""
    return {"source": "merge", "stores": list(parts)}


TEN = list(range(1, 11))
SOME = [8, 16, 17, 24]


@pytest.mark.parametrize(
    "text, numbers, chosen",
    [
        ("3", TEN, [3]),
        ("10", TEN, [10]),
        ("8,16,24", SOME, [8, 16, 24]),
        ("3, 1", TEN, [1, 3]),
        ("2-4", TEN, [2, 3, 4]),
        ("2:4", TEN, [2, 3, 4]),
        ("2-4,4-5,9", TEN, [2, 3, 4, 5, 9]),
        ("2:8:3", TEN, [2, 5, 8]),
        ("8:24:8", SOME, [8, 16, 24]),
        ("9-20", SOME, [16, 17]),
        ("8:", SOME, SOME),
        (":16", SOME, [8, 16]),
        (":", TEN, TEN),
        ("::5", TEN, [1, 6]),
        ("-1", SOME, [24]),
        ("-2", SOME, [17]),
        ("-2:", SOME, [17, 24]),
        ("-3:-2", TEN, [8, 9]),
        ("0", [0, 1, 2], [0]),
    ],
)
def test_a_text_names_layers_by_the_models_numbers(text, numbers, chosen):
    """Both ends of a range are included; negative numbers count from the last layer there is."""
    positions = choose_layers(text, numbers, "here")
    assert [numbers[i] for i in positions] == chosen


@pytest.mark.parametrize(
    "text, numbers, known",
    [
        *((text, TEN, "1-10") for text in ("0", "11", "5-11", "0:4", "-11", "3,12")),
        *((text, SOME, "8,16,17,24") for text in ("9", "9-15", "18:23")),
    ],
)
def test_a_layer_that_is_not_there_is_named(text, numbers, known):
    """Also where a range only begins or ends outside: a part of it would be a silent surprise."""
    message = f"here: there is no layer .*; it has layers {known}, as the model numbers"
    with pytest.raises(NotFoundError, match=message):
        choose_layers(text, numbers, "here")


def test_anything_else_is_refused():
    for text in ("", "a", "1,,2", "1-", "5-3", "5:3", "1:2:0", "1.5", "--1", "1;2", "²", "9999999"):
        with pytest.raises(SchemaError, match="layers: expected"):
            parse_layers(text)


@given(st.sets(st.integers(1, 32), min_size=1).map(sorted))
def test_what_is_written_reads_as_the_same_layers(numbers):
    everything = list(range(1, 33))
    positions = choose_layers(format_layers(numbers), everything, "here")
    assert [everything[i] for i in positions] == numbers


def test_formats_in_the_shortest_form():
    assert format_layers([1, 2, 3, 5, 6, 8]) == "1-3,5,6,8"


THREE = {"layers": [3, 4, 5]}


@pytest.mark.parametrize(
    "provenance, recorded",
    [
        (THREE, [3, 4, 5]),
        ({}, None),
        ({"layers": [3, 4]}, [3, 4]),
        ({"layers": [3, 3, 4]}, None),
        ({"layers": "3-5"}, None),
        ({"layers": [True, 2, 3]}, None),
        (merged(THREE, THREE), [3, 4, 5]),
        (merged(THREE, merged(THREE)), [3, 4, 5]),
        (merged(THREE, {"layers": [1, 2, 3]}), None),
        (merged(THREE, {}), None),
        (merged(), None),
        ({"stores": ["mine"], **THREE}, [3, 4, 5]),
    ],
)
def test_a_store_without_a_record_counts_from_one(provenance, recorded):
    """So does a column with another number of layers, and a store merged of different ones."""
    assert recorded_layers(provenance) == recorded
    assert layer_numbers(provenance, 3) == (recorded if recorded == [3, 4, 5] else [1, 2, 3])
