"""Methods keep their looks, and no figure shows more of them than can be told apart."""

from itertools import chain
from types import SimpleNamespace

from train.evaluate.results import Facts
from train.report.evidence import N_SHOWN, choose_shown, find_kinds, find_styles


def make_results(models, baselines):
    """Only what tells the kinds of methods apart."""
    results = SimpleNamespace(models=models, baselines=baselines)
    results.shown = results
    return results


COSTS = {"parameters": 1, "seconds": 1}
RESULTS = make_results(
    {name: Facts(**COSTS, runs=[]) for name in ("lstm_solo", "saplma")}
    | {"lapeigvals": Facts(**COSTS)},
    {"entropy": Facts(**COSTS), "answer_length": Facts(**COSTS, control=True)},
)
KINDS = {
    "detectors": ["lstm_solo", "saplma"],
    "probes": ["lapeigvals"],
    "baselines": ["entropy"],
    "controls": ["answer_length"],
}


def test_kinds_of_methods():
    """Trained step by step, fitted, to compare with, and to control for; none without a name."""
    assert find_kinds(RESULTS) == KINDS
    alone = make_results({}, {"entropy": RESULTS.baselines["entropy"]})
    assert find_kinds(alone) == {"baselines": ["entropy"]}


def test_a_method_looks_the_same_in_every_run():
    """Whatever else is in the run."""
    alone = find_styles({"detectors": ["saplma"], "probes": ["lapeigvals"]})
    assert alone.items() <= find_styles(KINDS).items()


def test_the_best_of_each_kind_are_shown():
    """A few of each, though others are better; in the order of the kinds."""
    kinds = {
        "detectors": [f"d{i}" for i in range(9)],
        "probes": ["p0", "p1"],
        "baselines": [f"b{i}" for i in range(9)],
        "controls": ["c"],
    }
    areas = {name: 0.5 + i / 100 for i, name in enumerate(chain.from_iterable(kinds.values()))}
    shown = choose_shown(kinds, areas)
    assert shown == ["d5", "d6", "d7", "d8", "p1", "b7", "b8", "c"]
    assert len(shown) == N_SHOWN


def test_free_places_go_to_the_best_of_the_others():
    kinds = {"detectors": ["d"], "baselines": [f"b{i}" for i in range(9)]}
    areas = {"d": 0.6} | {f"b{i}": 0.9 - i / 100 for i in range(9)}
    assert choose_shown(kinds, areas) == ["d", *(f"b{i}" for i in range(7))]
