"""The sections of a report, in order: made once from a template, then written in each format."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from train.report import tables
from train.report.evidence import Evidence
from train.report.forest import draw_forest
from train.report.numbers import clean_text
from train.report.plots import (
    draw_calibration,
    draw_histograms,
    draw_layers,
    draw_learning_curves,
    draw_pr,
    draw_risk_coverage,
    draw_roc,
)
from train.report.render import Picture, Section, Table, environment, tidy

__all__ = ["PICTURES", "build_sections", "find_title"]

PICTURES: dict[str, Callable[[Evidence], Figure]] = {
    "forest": draw_forest,
    "roc": draw_roc,
    "precision_recall": draw_pr,
    "calibration": draw_calibration,
    "risk_coverage": draw_risk_coverage,
    "learning_curves": draw_learning_curves,
    "histograms": draw_histograms,
    "layers": draw_layers,
}


def find_title(evidence: Evidence) -> str:
    """The report's heading, with the name of the store."""
    return f"Hallucination detectors on {clean_text(Path(evidence.results.store.path).name)}"


def build_sections(evidence: Evidence) -> list[Section]:
    """Every section for which there is something to show: what was found, then how."""
    sections: list[Section] = []

    def section(
        title: str,
        found: Sequence[Table] = (),
        *,
        caller: Callable[[], str],
        picture: str = "",
        shows: str = "",
        notes: str = "",
    ) -> str:
        drawn = draw(picture, evidence, shows) if picture else None
        sections.append(Section(title, tidy(caller()), found, drawn, tidy(notes)))
        return ""

    builders = {name: one for name, one in vars(tables).items() if name in tables.__all__}
    environment().get_template("report.jinja").render(builders, evidence=evidence, section=section)
    return sections


def draw(name: str, evidence: Evidence, shows: str) -> Picture | None:
    return Picture(name, PICTURES[name](evidence), shows)
