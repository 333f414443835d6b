"""Which columns are maps, and which states one can be made of."""

import pytest
from small import make_store

from store import Column
from store.traces.maps import find_maps
from store.view.maps import map_states


def maps_of(path, columns, made):
    store = make_store(path, columns, {}, {"projections": made})
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
    maps = maps_of(tmp_path / "s.zarr", columns, {"made": made})
    assert list(maps) == ["made", "own", "named"]
    assert maps["made"] == ("made", "hs_last", 16, "umap", ())


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
    (found,) = maps_of(tmp_path / "s.zarr", columns, {"map": made}).values()
    assert found[:3] == ("map", None, None)
    assert found.variance == ()


def test_states_to_project(tmp_path):
    """Those of the last token, else those that they can be derived from."""
    layers = {"axis_names": ("layers", "hidden")}
    states = Column("float16", (2, 3), **layers)
    tokens = Column("float16", (2, 3), "tokens", **layers)
    for name, columns, given, expected in (
        ("a", {"hs_mean": states, "hs_last": states}, [8, 16], (True, [8, 16])),
        ("b", {"hidden_states": tokens}, None, (False, [1, 2])),
    ):
        provenance = {"layers": given} if given else {}
        found = map_states(make_store(tmp_path / name, columns, {}, provenance))
        is_there, numbers = expected
        assert found == {"column": "hs_last", "layers": numbers, "is_there": is_there}
    assert map_states(make_store(tmp_path / "c", {"x": "float32"}, {})) is None
