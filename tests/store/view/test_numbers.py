"""Numbers of the page against NumPy and Python: orders, histograms, colours, curves, and whole
numbers of 64 bits, truth values and infinity in filters and answers."""

import numpy as np
import pytest
from small import store_columns

from store.read.filters.filter import filter_rows
from store.view.columns import Table, json_number
from store.view.histograms import histogram
from store.view.maps import MISSING, levels_of
from store.view.scores import calibrate, rank_density, rank_limits, roc
from store.view.snapshots import sorted_rows
from train.evaluate.metrics import auroc, calibration_bins, expected_calibration_error

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
VALUES = [
    *NUMBERS.values(),
    np.array([3, 1, 2, 1], np.int8),
    np.array([-128, 127, 0, -128], np.int8),
    np.array([0.0, -0.0, np.nan, np.inf, -np.inf, -1.5, 2, np.nan], np.float32),
    np.array([-3e38, np.nan, 3e38], np.float32),
    np.array([1, np.nan, -1, 0.5, 0.5, np.nan], np.float16),
    np.array([1.0, np.nan, -1, 1.0, 2**53 + 2], np.float64),
    np.array([1e10, np.nextafter(1e10, 2e10)]),
    np.array([0.0, 5e-324]),
    np.array([1.7e308, -1.7e308, 0.0]),
    np.array([60_000, -60_000], np.float16),
    np.full(4, 0.5, np.float32),
    np.full(4, np.nan, np.float32),
    np.full(2, np.finfo(np.float64).max),
    np.full(2, np.finfo(np.float16).max, np.float16),
    np.array([2**40, -(2**40), 5, 5], np.int64),
    np.array([2**62, -(2**62)]),
    np.array([-(2**62)] * 3, np.int64),
    np.array([2**53 + 1, 2**53 + 2, 2**53 + 1]),
    np.array([STAMP, STAMP + 89]),
    np.array([2**31, 5, 2**32 - 1], np.uint32),
    np.array([2**63 + 5, 2**63], np.uint64),
    np.array([0, 2**64 - 1, 2**63], np.uint64),
    np.zeros(0, np.float32),
    np.zeros(0, np.int8),
    np.linspace(0, 1, 2000, dtype=np.float32),
    np.arange(-50, 50, dtype=np.int8),
    np.tile([5, -1, 2**40, 2**40 + 1, 0], 20_000),
]
of_values = pytest.mark.parametrize("values", VALUES, ids=lambda one: f"{one.dtype}{len(one)}")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    columns = {name: (values.dtype.name, values) for name, values in NUMBERS.items()}
    return Table(store_columns(tmp_path_factory.mktemp("numbers") / "n.zarr", columns))


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
    assert np.flatnonzero(filter_rows(table, text)).tolist() == rows


@pytest.mark.parametrize("name", NUMBERS)
def test_a_bar_is_a_filter_of_its_count(table, name):
    """As the page writes it, of edges as JSON has them."""
    found = histogram(table.numbers(name), [np.ones(5, bool)])
    edges = [json_number(edge) for edge in found.edges.tolist()]
    signs = ["<"] * (len(edges) - 2) + ["<="]
    for low, high, sign, count in zip(edges, edges[1:], signs, found.counts[0], strict=False):
        assert filter_rows(table, f"{name} >= {low} and {name} {sign} {high}").sum() == count


def test_whole_numbers_are_sent_unrounded():
    """As texts where JavaScript would round them."""
    assert json_number(2**53) == 2**53
    assert json_number(2**53 + 1) == "9007199254740993"
    assert json_number(-(2**63)) == "-9223372036854775808"
    assert json_number(2.0**80) == 2.0**80


@of_values
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
    """For each group of rows; what is not finite is counted aside. Labels have a bin each."""
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
    np.testing.assert_array_equal(found.counts.sum(0), expected)
    found = histogram(np.array([-1, 0, 1, 1], np.int8), [np.ones(4, bool)])
    assert found.edges.tolist() == [-1.5, -0.5, 0.5, 1.5]
    assert found.counts.tolist() == [[1, 1, 2]]


@of_values
def test_every_finite_value_is_in_a_bin(values):
    """The one that a filter of its edges means; also of numbers close together, or far apart."""
    found = histogram(values, [np.ones(len(values), bool)])
    finite = values[np.isfinite(values)]
    edges = found.edges.tolist()
    if not len(finite):
        assert (edges, found.counts.tolist()) == ([], [[]])
        return
    assert found.counts.sum() == len(finite)
    assert (np.diff(found.edges) > 0).all()
    uppers = [*edges[1:-1], np.inf]
    filtered = [
        int(((finite >= low) & (finite < high)).sum())
        for low, high in zip(edges, uppers, strict=False)
    ]
    assert found.counts[0].tolist() == filtered


@of_values
def test_colours_rise_with_numbers(values):
    """A few whole numbers are classes, each level the place of the value among them; other levels
    go from the lowest to the highest. What is not finite has a level of its own."""
    found = levels_of(values)
    is_finite = np.isfinite(values)
    numbers, levels = values[is_finite], found.levels[is_finite].astype(int)
    known = sorted({int(value) for value in numbers.tolist()})
    is_few = 0 < len(known) <= 10 and known[-1] - known[0] <= 1 << 16
    if values.dtype.kind != "f" and is_few:
        assert found.classes == tuple(known)
        assert [known[level] for level in levels] == [int(value) for value in numbers]
        return
    assert found.classes == ()
    assert (found.levels[~is_finite] == MISSING).all()
    assert (levels < MISSING).all()
    assert (np.diff(levels[np.argsort(numbers)]) >= 0).all()
    if len({number / 4 for number in numbers.tolist()}) > 1:  # the smallest number's is 0
        assert (levels.min(), levels.max()) == (0, 254)


def test_calibration_is_that_of_a_report():
    """The same bins and the same error; rows without score or label do not count."""
    rng = np.random.default_rng(3)
    scores = np.append(rng.random(500), [0.0, 1.0, np.nan, 0.5])
    labels = np.append(rng.integers(0, 2, 500), [0, 1, 1, -1])
    used = slice(0, 502)
    found = calibrate(scores, labels)
    means, shares, counts = calibration_bins(labels[used], scores[used])
    np.testing.assert_allclose(found.scores, means)
    np.testing.assert_allclose(found.shares, shares)
    np.testing.assert_array_equal(found.counts, counts)
    assert found.error == pytest.approx(expected_calibration_error(labels[used], scores[used]))
    assert calibrate(np.array([0.5, 1.5]), np.array([0, 1])) is None
    assert calibrate(np.array([np.nan]), np.array([1])) is None


def test_a_bin_of_a_calibration_is_a_filter(client):
    """Its edges and the labels find as many rows as it counts; other scores have none."""
    found = client.get("/api/0/1/calibration?column=score_gvae").json()
    assert len(found["counts"]) > 3
    for (low, high), count in zip(found["edges"], found["counts"], strict=True):
        sign = "<=" if high == 1 else "<"
        text = f"score_gvae >= {low} and score_gvae {sign} {high} and (label == 0 or label == 1)"
        table = client.get("/api/0/1/table", params={"filter": text, "count": 0}).json()
        assert table["total"] == count
    assert client.get("/api/0/1/calibration?column=score_my_model").json() is None


def test_roc_is_that_of_a_report():
    """The same area, ties included; the curve's points are rates at scores of rows."""
    rng = np.random.default_rng(5)
    scores = np.append(rng.integers(0, 40, 500) / 40, [np.nan, 0.5]).astype(np.float32)
    labels = np.append(rng.integers(0, 2, 500), [1, -1])
    found = roc(scores, labels)
    assert found.auroc == pytest.approx(auroc(labels[:500], scores[:500].astype(np.float64)))
    for threshold, false_rate, true_rate in zip(*found[1:], strict=True):
        says = scores >= np.float32(threshold)
        assert false_rate == pytest.approx(says[labels == 0].mean())
        assert true_rate == pytest.approx(says[:500][labels[:500] == 1].mean())
    assert found.false_rates[-1] == found.true_rates[-1] == 1
    assert roc(scores, np.zeros(502)) is None


def test_limits_are_the_scores_of_each_cell():
    """A filter between them means the rows of the cell, ties included."""
    rng = np.random.default_rng(4)
    x, y = rng.integers(0, 9, 300).astype(float), rng.standard_normal(300)
    x[::7] = np.nan
    counts, limits = rank_density(x, y, 6), rank_limits(x, y, 6)
    for j in range(6):
        for i in range(6):
            (low_y, high_y), (low_x, high_x) = limits[0, j], limits[1, i]
            is_here = (x >= low_x) & (x <= high_x) & (y >= low_y) & (y <= high_y)
            assert is_here.sum() == counts[j, i]
