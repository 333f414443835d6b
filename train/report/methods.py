"""The methods of a report: of what kind each is, which of them a figure shows, and its style.

A style depends on the name alone, so that a method looks the same in every figure of every report.
"""

from typing import Any

from models import BASELINES, CONTROLS, DETECTORS, PROBES
from train.evaluate.metrics import Areas
from train.evaluate.results import Results

__all__ = [
    "COLOURS",
    "KINDS",
    "Kinds",
    "Style",
    "Styles",
    "choose_shown",
    "find_kinds",
    "find_styles",
]

Style = dict[str, Any]
Styles = dict[str, Style]  # by name
Kinds = dict[str, list[str]]  # kind -> names

KINDS = ("detectors", "probes", "baselines", "controls")
# Okabe and Ito's colours for colour-blind readers, without yellow, which is invisible on white; and
# grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
REGISTERED: dict[str, list[str]] = {
    "detectors": list(DETECTORS),
    "probes": list(PROBES),
    "baselines": list(BASELINES),
    "controls": list(CONTROLS),
}
WIDTHS = {"detectors": 2.0, "probes": 1.7, "baselines": 1.3, "controls": 1.1}
PATTERNS: dict[str, tuple[Any, ...]] = {  # of lines, in turn, once all colours are taken
    "detectors": ("-", (0, (8, 1)), (0, (12, 1.5, 2, 1.5)), (0, (3, 1, 3, 1, 1, 1))),
    "probes": ((0, (5, 1, 1, 1)), (0, (7, 1, 1, 1, 1, 1)), (0, (2, 0.6)), (0, (9, 2))),
    "baselines": ((0, (4, 1.5)), (0, (1.6, 1.1)), (0, (6, 1.5, 1, 1.5)), (0, (10, 3))),
    "controls": ((0, (1, 1.6)), (0, (1, 3)), (0, (2, 3)), (0, (1, 1, 3, 1))),
}
N_SHOWN = 8  # curves in a figure: more cannot be told apart
PLACES = {"detectors": 4, "probes": 1, "baselines": 2, "controls": 1}  # among them


def find_kinds(results: Results) -> Kinds:
    """Kind -> names of that kind in the order of the results; kinds without a name are left out.

    Of several splits the names that each of them has: the others have no mean to be shown.
    """
    kinds: Kinds = {kind: [] for kind in KINDS}
    for name in results.shown.models:  # means have no runs
        kinds["detectors" if results.models[name].runs is not None else "probes"].append(name)
    for name, entry in results.shown.baselines.items():
        kinds["controls" if entry.control else "baselines"].append(name)
    return {kind: names for kind, names in kinds.items() if names}


def choose_shown(kinds: Kinds, areas: Areas, n: int = N_SHOWN) -> list[str]:
    """Choose the names that a figure shows: the best of each kind, and then the best of the others.

    `kinds` is kind -> names, `areas` name -> AUROC on validation; names without one are not shown.
    Returns at most `n` names, in the order of `kinds`.
    """
    ranked = sorted(areas, key=areas.__getitem__, reverse=True)
    chosen: set[str] = set()
    for kind, names in kinds.items():
        chosen |= set([name for name in ranked if name in names][: PLACES[kind]])
    chosen = set([name for name in ranked if name in chosen][:n])
    chosen |= set([name for name in ranked if name not in chosen][: n - len(chosen)])
    return [name for names in kinds.values() for name in names if name in chosen]


def find_styles(kinds: Kinds) -> Styles:
    """Name -> style of its line, by its place among those of its kind in this package or after."""
    styles: Styles = {}
    for kind, names in kinds.items():
        ordered = list(dict.fromkeys([*REGISTERED[kind], *names]))
        styles |= {name: find_style(kind, ordered.index(name)) for name in names}
    return styles


def find_style(kind: str, place: int) -> Style:
    turn, colour = divmod(place, len(COLOURS))
    patterns = PATTERNS[kind]
    return {
        "color": COLOURS[colour],
        "linewidth": WIDTHS[kind],
        "linestyle": patterns[turn % len(patterns)],
    }
