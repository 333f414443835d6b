"""Whole numbers of 64 bits, truth values and infinity, in filters and answers."""

import numpy as np
import pytest
from view_traces import write_traces

from store import Column, Schema, TraceStore
from store.read.filters.filter import filter_rows
from store.view.columns import Table, json_number
from store.view.histograms import histogram

STAMP = 1_763_000_000_000_000_001  # nanoseconds: 19 digits
NUMBERS = {
    "at": np.array([STAMP, STAMP + 1, STAMP + 2, -(2**63), 2**63 - 1]),
    "hash": np.array([0, 2**53 + 1, 2**64 - 2, 2**64 - 1, 1], np.uint64),
    "ok": np.array([True, False, True, False, True]),
    "and": np.array([1, 2, 3, 4, 5], np.int8),
    "half": np.array([1, 2, 1, 1.5, 2], np.float16),
    "huge": np.array([1.7e308, -1.7e308, 0, 1, np.inf]),
    "not": np.array([np.inf, -np.inf, np.nan, 1, 2], np.float32),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    schema = Schema({name: Column(values.dtype.name) for name, values in NUMBERS.items()})
    rows = [
        (f"t{i}", {name: values[i] for name, values in NUMBERS.items()})
        for i in range(len(NUMBERS["at"]))
    ]
    path = write_traces(tmp_path_factory.mktemp("numbers") / "n.zarr", schema, rows)
    return Table(TraceStore.open(path))


@pytest.mark.parametrize(
    "text, rows",
    [
        (f"at == {STAMP}", [0]),
        (f"at > {STAMP} and at < {STAMP + 2}", [1]),
        ("at >= 9223372036854775807", [4]),
        ("at == -9223372036854775808", [3]),
        ("hash == 18446744073709551615", [3]),
        ("hash == 9007199254740993", [1]),
        ("hash < 99999999999999999999", [0, 1, 2, 3, 4]),
        ("ok == true", [0, 2, 4]),
        ("ok != true and ok == false", [1, 3]),
        ("ok < 99999999999999999999", [0, 1, 2, 3, 4]),
        ("and >= 2 and and < 4", [1, 2]),
        ("not == 1 or not not == 1 and and == 1", [0, 3]),
        ("not == inf", [0]),
        ("not < inf", [1, 3, 4]),
        ("not == -inf", [1]),
        ("not == nan", [2]),
    ],
)
def test_a_filter_compares_exactly(table, text, rows):
    """To the last of 20 digits; columns may be called as the words are."""
    found = filter_rows(table, text)
    assert np.flatnonzero(found).tolist() == rows


@pytest.mark.parametrize("name", NUMBERS)
def test_a_bar_is_a_filter_of_its_count(table, name):
    """As the page writes it, of edges as JSON has them."""
    values = table.numbers(name)
    found = histogram(values, [np.ones(len(values), bool)])
    edges = [json_number(edge) for edge in found.edges.tolist()]
    signs = ["<"] * (len(edges) - 2) + ["<="]
    for low, high, sign, count in zip(edges, edges[1:], signs, found.counts[0], strict=False):
        rows = filter_rows(table, f"{name} >= {low} and {name} {sign} {high}")
        assert rows.sum() == count
    assert found.counts.sum() == np.isfinite(values).sum()


def test_whole_numbers_are_sent_unrounded():
    """As texts where JavaScript would round them."""
    assert json_number(2**53) == 2**53
    assert json_number(2**53 + 1) == "9007199254740993"
    assert json_number(-(2**63)) == "-9223372036854775808"
    assert json_number(2.0**80) == 2.0**80
