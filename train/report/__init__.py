"""The output of a run: results.json, scores.csv, the report in three forms, its figures, the table.

Everything shown is computed from the results and the scores. Each file is complete or absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from train.files import make_directory, replace_file, write_text
from train.report import tables
from train.report.evidence import Evidence, gather_evidence
from train.report.numbers import clean_text
from train.report.plots import (
    draw_calibration,
    draw_forest,
    draw_histograms,
    draw_layers,
    draw_learning_curves,
    draw_pr,
    draw_risk_coverage,
    draw_roc,
)
from train.report.render import (
    Picture,
    Section,
    Table,
    environment,
    in_words,
    render_html,
    render_latex,
    render_markdown,
    save_figure,
    tidy,
)
from train.report.tables import build_metrics
from train.run.questions import write_asked
from train.run.results import write_results, write_scores

if TYPE_CHECKING:
    from train.run.experiment import Experiment

__all__ = ["PICTURES", "build_sections", "write_pages", "write_report"]

FOLDER = "figures"
FORMATS = ("png", "pdf", "svg")


def write_report(experiment: Experiment, output_dir: Path) -> None:
    """Write the files of a run; results.json comes last, since it marks the run as finished."""
    for other in experiment.further:
        write_split(other, other.directory.path)
    evidence = gather_evidence(experiment)
    write_pages(evidence, output_dir, experiment.results.config.get("figures"))
    write_split(experiment, output_dir)


def write_split(experiment: Experiment, path: Path) -> None:
    """Write the files of a split that programs read."""
    write_scores(path / "scores.csv", experiment.frame, experiment.results)
    write_asked(path, experiment.data.splits)
    write_results(path / "results.json", experiment.results)


def write_pages(evidence: Evidence, output_dir: Path, figures: str | None = None) -> None:
    """Write the figures, in another format as well if it is named, and the pages and the table."""
    title = f"Hallucination detectors on {clean_text(evidence.results.store.name)}"
    sections = build_sections(evidence)
    write_figures(sections, output_dir / FOLDER, figures)
    write_text(output_dir / "report.md", render_markdown(title, sections, FOLDER))
    write_text(output_dir / "report.html", render_html(title, sections))
    table = build_metrics(evidence.results)
    caption = in_words("caption", evidence.results, title)
    verdict = in_words("verdict", evidence.shown_results)
    write_text(output_dir / "table.tex", render_latex(table, caption, verdict))


def write_figures(sections: Sequence[Section], folder: Path, also: str | None = None) -> None:
    """Write the pictures as PNG, and in another format if it is named.

    Those of an earlier run that this run does not have are removed.
    """
    make_directory(folder)
    figures = {
        section.picture.name: section.picture.figure for section in sections if section.picture
    }
    for name in PICTURES:
        for ending in FORMATS:
            path = folder / f"{name}.{ending}"
            if name in figures and ending in ("png", also):
                with replace_file(path) as temporary:
                    save_figure(figures[name], temporary, ending)
            else:
                path.unlink(missing_ok=True)
        if name in figures:
            # the page draws it again, with the same layout
            figures[name].set_layout_engine("none")


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
