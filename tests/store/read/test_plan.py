"""Plans and what they select, against Python's own slicing."""

from itertools import chain, combinations, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import SCHEMA, assert_same_row, bits
from small import make_store

from store import (
    Column,
    NotFoundError,
    RowRanges,
    TokenLoader,
    TraceStore,
)
from store.read.plan import Span, plan_read, slice_ranges

ENDS = [None, *range(-5, 6)]


def test_a_span_slices_each_row_as_a_list_is_sliced():
    lengths = np.arange(6)
    stops = np.cumsum(lengths)
    items = list(range(stops[-1]))
    for start, stop in product(ENDS, ENDS):
        span = Span("t", start, stop)
        first, last = slice_ranges(stops - lengths, stops, span, np.arange(6))
        for i, n in enumerate(lengths):
            row = items[stops[i] - n : stops[i]]
            assert items[first[i] : last[i]] == row[start:stop]


@given(
    start=st.sampled_from(ENDS),
    stop=st.sampled_from(ENDS),
    token=st.integers(-3, 3),
    layer=st.sampled_from([None, 0, -1, slice(1, 3)]),
)
def test_items_and_item_axes_are_selected_together(store_path, rows, start, stop, token, layer):
    """In raw, compressed and split columns; columns of one axis may be cut differently. An index
    keeps its axis, and a row too short gives none."""
    select = {
        "tokens": {"tokens": token},
        "hidden_states": {"tokens": slice(start, stop)}
        | ({} if layer is None else {"layers": layer}),
        "zipped": {"tokens": slice(stop, start)},
        "planes": {"pairs": slice(start, stop)} | ({} if layer is None else {"layers": 1}),
    }
    wanted = [5, 39, 0, 5, 17]
    batch = TraceStore.open(store_path).read(wanted, select=select)
    for found, row in zip(batch, wanted, strict=True):
        expected = dict(rows[row][1])
        part = slice(start, stop)
        layers = layer if isinstance(layer, slice) else slice(None) if layer is None else [layer]
        expected |= {
            "tokens": expected["tokens"][token : token + 1 or None],
            "hidden_states": expected["hidden_states"][part][:, layers],
            "zipped": expected["zipped"][stop:start],
            "planes": expected["planes"][part][:, slice(None) if layer is None else [1]],
        }
        assert_same_row(found, expected)


def test_each_row_may_have_a_range_of_its_own(store_path, rows):
    """Only these bytes are read, of these layers alone; columns with one object share offsets."""
    store = TraceStore.open(store_path)
    n_tokens = store.lengths("hidden_states")
    ranges = RowRanges(np.arange(len(n_tokens)) % 4 - 1, np.arange(len(n_tokens)) % 7)
    select = {"tokens": {"tokens": ranges}, "hidden_states": {"tokens": ranges, "layers": "1,3"}}
    before = store.reader.n_bytes_read
    batch = store.read([5, 39, 0, 5, 17], list(select), select)
    read = [batch.ragged(name) for name in select]
    assert store.reader.n_bytes_read - before == sum(one.values.nbytes for one in read)
    assert read[0].offsets is read[1].offsets
    for found, row in zip(batch, (5, 39, 0, 5, 17), strict=True):
        part = slice(ranges.starts[row], ranges.stops[row])
        assert np.array_equal(found["tokens"].numpy(), rows[row][1]["tokens"][part])
        expected = rows[row][1]["hidden_states"][part][:, [0, 2]]
        assert np.array_equal(found["hidden_states"].numpy(), expected)


def test_ranges_that_are_refused(store_path):
    """Other arrays, and one for more or fewer rows than the store has."""
    whole = np.arange(40)
    for starts, stops, message in (
        (whole.astype(float), whole, "found starts float64"),
        (whole, whole.reshape(5, 8), r"found stops int64 \(5, 8\)"),
        (3, whole, r"integers \(n_rows,\), found starts"),
        (whole, whole[:-1], r"as many starts as stops, .* stops int64 \(39,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            RowRanges(starts, stops)
    assert RowRanges([0, 1], np.array([1, 2], np.uint8)).stops.dtype == np.int64
    store = TraceStore.open(store_path)
    short = RowRanges(whole[:39], whole[:39])
    expected = "axis 'tokens': expected one for each of its 40 rows, found 39"
    with pytest.raises(ValueError, match=expected):
        store.read([0], ["tokens"], {"tokens": {"tokens": short}})
    with pytest.raises(ValueError, match=expected):
        TokenLoader(store, ["tokens"], tokens=short)


WHOLE = "expected whole numbers as ends of a slice"


@pytest.mark.parametrize(
    "column, axis, part, error, message",
    [
        ("tokens", "tokens", slice(0, 4, 2), IndexError, "expected a slice of step 1, found"),
        ("tokens", "tokens", "a", TypeError, "expected a slice or an integer, found 'a'; only"),
        ("tokens", "tokens", True, TypeError, "expected a slice or an integer, found True; only"),
        ("hidden_states", "hidden", "1", TypeError, "expected a slice or an integer, found '1'"),
        ("hidden_states", "layers", "9", NotFoundError, "there is no layer 9; it has layers 1-3"),
        ("label", "tokens", 1, NotFoundError, "expected an axis of none, found 'tokens'"),
        *(
            ("hidden_states", axis, part, TypeError, WHOLE)
            for part in (slice(1.5, None), slice("a"), slice(0, 1, 1.0))
            for axis in ("tokens", "layers")
        ),
    ],
)
def test_wrong_parts(column, axis, part, error, message):
    """Positions are whole numbers; only layers have names."""
    with pytest.raises(error, match=f"column '{column}'.*{message}"):
        plan_read(SCHEMA, None, {column: {axis: part}}, "here")


def test_row_bytes_count_the_items_read():
    part = plan_read(
        SCHEMA, ["hidden_states"], {"hidden_states": {"tokens": -1, "layers": 0}}, "here"
    ).parts[0]
    assert part.row_bytes(20.0) == 2 * 5
    assert part.row_bytes(0.0) == 0


def test_padded_columns_hold_the_rows_and_their_mask(store_path, rows):
    store = TraceStore.open(store_path)
    batch = store.read(range(40))
    for name in ("tokens", "hidden_states", "planes"):
        values, mask = batch.padded(name, value=-7)
        lengths = [len(row[name]) for _, row in rows]
        assert values.shape == (40, max(lengths), *SCHEMA.columns[name].item_shape)
        assert mask.tolist() == [[i < n for i in range(max(lengths))] for n in lengths]
        assert (values[~mask] == -7).all()
        found = torch.cat([values[i, :n] for i, n in enumerate(lengths)])
        assert bits(found) == bits(batch[name].values)
        empty, mask = store.read([]).padded(name)
        assert (*empty.shape[:2], *mask.shape) == (0, 0, 0, 0)
    with pytest.raises(TypeError, match="column 'label': expected a ragged column, found "):
        batch.padded("label")


NUMBERED = [8, 16, 17, 24]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """A store of four layers that are not neighbours in their model: raw, compressed and split
    columns."""
    states = {"item_shape": (4, 40), "axis_names": ("layers", "hidden")}
    columns = {
        "raw": Column("float16", axis="tokens", **states),
        "packed": Column("float16", axis="tokens", codec="zstd:1", **states),
        "split": Column("float16", axis="tokens", split=("layers",), **states),
        "fixed": Column("float16", **states),
    }
    random = np.random.default_rng(0)
    rows = []
    for i in range(9):
        items = random.random((i % 4, 4, 40)).astype(np.float16)
        fixed = random.random((4, 40)).astype(np.float16)
        rows.append({"raw": items, "packed": items, "split": items, "fixed": fixed})
    path = tmp_path_factory.mktemp("numbered") / "numbered.zarr"
    traces = {f"t{i}": row for i, row in enumerate(rows)}
    return make_store(path, columns, traces, {"layers": NUMBERED}), rows


def test_layers_are_read_by_the_models_numbers(numbered):
    """Whichever of them, and however they are stored."""
    store, rows = numbered
    for kept in chain.from_iterable(combinations(range(4), n) for n in range(1, 5)):
        part = {"layers": ",".join(str(NUMBERED[i]) for i in kept)}
        batch = store.read([7, 0, 3], select=dict.fromkeys(store.schema.columns, part))
        for found, row in zip(batch, (7, 0, 3), strict=True):
            for name in ("raw", "packed", "split"):
                assert np.array_equal(found[name].numpy(), rows[row][name][:, kept])
            assert np.array_equal(found["fixed"].numpy(), rows[row]["fixed"][list(kept)])


def test_a_store_tells_its_layers(numbered, store_path):
    assert numbered[0].layers("fixed") == NUMBERED
    assert TraceStore.open(store_path).layers("hidden_states") == [1, 2, 3]
    assert TraceStore.open(store_path).layers("label") == []
