"""Which columns are maps, and the colours of their points."""

import numpy as np
import pytest
from view_traces import write_traces

from store import Column, Schema, TraceStore
from store.traces.maps import find_maps
from store.view.maps import MISSING, levels_of, map_states

POINT = np.zeros(2, np.float32)


def store_of(tmp_path, columns, provenance=None):
    return TraceStore.open(write_traces(tmp_path / "s.zarr", Schema(columns), [], provenance))


def maps_of(store):
    return find_maps(store.schema, store.provenance)


def test_maps_are_projections_and_what_looks_like_them(tmp_path):
    """Those that the store recorded come first."""
    columns = {
        "own": Column("float64", (3,)),
        "wide": Column("float32", (4,)),
        "named": Column("float32", (5,), axis_names=("dimensions",)),
        "line": Column("float32", (1,), axis_names=("dimensions",)),
        "whole": Column("int32", (2,)),
        "each": Column("float32", (2,), axis="tokens"),
        "made": Column("float32", (8,)),
    }
    made = {"column": "hs_last", "layer": 16, "method": "umap", "explained_variance": [0.5]}
    maps = maps_of(store_of(tmp_path, columns, {"projections": {"made": made}}))
    assert list(maps) == ["made", "own", "named"]
    assert maps["made"]._asdict() == {
        "name": "made", "column": "hs_last", "layer": 16, "method": "umap", "variance": (),
    }  # fmt: skip


@pytest.mark.parametrize(
    "made",
    [
        None,
        [],
        {"column": 7, "layer": True, "method": ["pca"], "explained_variance": {}},
        {"method": "pca", "explained_variance": ["x", None, 2.0]},
    ],
)
def test_a_provenance_of_another_form_is_no_error(tmp_path, made):
    """The map is there, and says nothing."""
    columns = {"map": Column("float32", (2,))}
    (found,) = maps_of(store_of(tmp_path, columns, {"projections": {"map": made}})).values()
    assert found[:3] == ("map", None, None)
    assert found.variance == ()


def test_states_to_project(tmp_path):
    """Those of the last token, else those that they can be derived from."""
    layers = ("layers", "hidden")
    states = Column("float16", (2, 3), axis_names=layers)
    tokens = Column("float16", (2, 3), "tokens", layers)
    both = {"hs_mean": states, "hs_last": states}
    found = map_states(store_of(tmp_path / "a", both, {"layers": [8, 16]}))
    assert found == {"column": "hs_last", "layers": [8, 16], "is_there": True}
    found = map_states(store_of(tmp_path / "b", {"hidden_states": tokens}))
    assert found == {"column": "hs_last", "layers": [1, 2], "is_there": False}
    assert map_states(store_of(tmp_path / "c", {"x": Column("float32")})) is None


@pytest.mark.parametrize(
    "values, classes",
    [
        (np.array([-128, 127, 0, -128], np.int8), (-128, 0, 127)),
        (np.array([True, False, True]), (0, 1)),
        (np.array([2**63 + 5, 2**63], np.uint64), (2**63, 2**63 + 5)),
        (np.array([-(2**62)] * 3, np.int64), (-(2**62),)),
        (np.arange(11, dtype=np.int32), ()),
        (np.array([0, 2**40], np.int64), ()),
        (np.array([], np.int8), ()),
    ],
    ids=lambda values: f"{values.dtype}{len(values)}" if isinstance(values, np.ndarray) else "",
)
def test_a_few_whole_numbers_are_classes(values, classes):
    """Each level is the place of the value among them."""
    found = levels_of(values)
    assert found.classes == classes
    if classes:
        assert [classes[level] for level in found.levels] == [int(value) for value in values]


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0, np.nan, 3, np.inf, -np.inf, 2], np.float16),
        np.array([-1.7e308, np.nan, 1.7e308], np.float64),
        np.array([-3e38, np.nan, 3e38], np.float32),
        np.full(4, 0.5, np.float32),
        np.full(4, np.nan, np.float32),
        np.array([2**62, -(2**62), 0], np.int64),
    ],
    ids=lambda values: f"{values.dtype}{len(values)}",
)
def test_other_numbers_rise_with_their_levels(values):
    """From the lowest to the highest; what is not finite has a level of its own."""
    found = levels_of(values)
    is_finite = np.isfinite(values)
    assert (found.levels[~is_finite] == MISSING).all()
    assert (found.levels[is_finite] < MISSING).all()
    order = np.argsort(values[is_finite])
    assert (np.diff(found.levels[is_finite][order].astype(int)) >= 0).all()
    if len(set(values[is_finite].tolist())) > 1:
        assert (found.levels.min(), found.levels[is_finite].max()) == (0, 254)
