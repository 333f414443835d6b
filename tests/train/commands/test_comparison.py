"""A comparison as tables."""

from runs import make_run

from train.commands.side_by_side import build_areas, compare_runs
from train.evaluate.results import StoreRecord
from train.report.render import in_words


def test_a_run_beside_its_own_copy():
    """Everything is equal: nothing is tested, and both are shown."""
    run = make_run({"x": 1, "y": 2}, "y")
    found = compare_runs({"a": run, "b": run})
    assert found.comparisons == []
    rows = [("a", "x"), ("", "y *"), ("b", "x"), ("", "y *")]
    assert [row[:2] for row in build_areas(found).rows] == rows


def store_of(origins):
    return StoreRecord("traces.zarr", "ab", 1, 0, origins, False)


def test_runs_on_traces_of_different_models_are_said_to_be():
    """Their rows are paired by trace id all the same; a run that records none says nothing."""
    found = []
    for origins in ([{"weights_sha256": "a"}], [{"weights_sha256": "b"}], []):
        first = make_run({"x": 0}, store=store_of([{"weights_sha256": "a"}]))
        compared = compare_runs({"a": first, "b": make_run({"x": 1}, store=store_of(origins))})
        is_said = "different models" in in_words("compared_rows", compared)
        assert is_said == compared.different_models
        found.append(compared.different_models)
    assert found == [False, True, False]
