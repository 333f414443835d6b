"""The order of a table, and the histograms of its columns."""

import numpy as np
import pytest

from store.view.histograms import histogram
from store.view.snapshots import sorted_rows

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
