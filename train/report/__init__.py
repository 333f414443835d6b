"""The output of a run: results.json, scores.csv, the report in three forms, its figures, the table.

Everything shown is computed from the results and the scores. Each file is complete or absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from train.files import make_directory, replace_file, write_text
from train.records import json_text
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
from train.report.tables import (
    CALIBRATION,
    GUARANTEE,
    RATES,
    build_comparisons,
    build_costs,
    build_facts,
    build_fields,
    build_grouped,
    build_label_noise,
    build_metrics,
    build_mistakes,
    build_sensitivity,
    build_split,
    build_tokens,
    build_traces,
    build_transfer,
)
from train.run.results import write_asked, write_scores

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
    write_asked(path, experiment.data.splits, experiment.followed)
    write_text(path / "results.json", json_text(experiment.results) + "\n")


def write_pages(evidence: Evidence, output_dir: Path, figures: str | None = None) -> None:
    """Write the figures, in another format as well if it is named, and the pages and the table."""
    title = f"Hallucination detectors on {clean_text(evidence.results.store.name)}"
    sections = build_sections(evidence)
    write_figures(sections, output_dir / FOLDER, figures)
    write_text(output_dir / "report.md", render_markdown(title, sections, FOLDER))
    write_text(output_dir / "report.html", render_html(title, sections))
    table = build_metrics(evidence.results)
    caption = in_words("caption", evidence.results, title)
    verdict = in_words("verdict", evidence.results.shown)
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


SECTIONS = (  # macro of report.jinja, title, picture and what it shows
    ("verdict", "Verdict", "forest", "AUROC of every method, with its interval"),
    ("metrics", "Metrics on test", "", ""),
    ("fields", "Fields", "", ""),
    ("costs", "Costs", "", ""),
    ("rates", "At fixed error rates", "", ""),
    ("promise", "A threshold with a promise", "", ""),
    ("wrong_labels", "Wrong labels", "", ""),
    ("left_out", "Left out of training", "", ""),
    ("tokens", "Tokens", "", ""),
    ("tests_over_splits", "Tests over the splits", "", ""),
    ("paired_tests", "Paired tests", "", ""),
    ("other_labels", "Other thresholds of the labels", "", ""),
    ("roc", "ROC", "roc", "true positive rate over false positive rate"),
    ("precision_recall", "Precision and recall", "precision_recall", "precision over recall"),
    ("calibration", "Calibration", "calibration", "share of hallucinations over mean score"),
    ("risk_coverage", "Risk and coverage", "risk_coverage", "share of errors over coverage"),
    ("histograms", "Scores by class", "histograms", "histograms of the scores of both classes"),
    ("learning_curves", "Learning curves", "learning_curves", "loss and AUROC over epochs"),
    ("layers", "Where in the layers the signal lies", "layers", "validation AUROC by layer"),
    ("mistakes", "Most confident mistakes", "", ""),
    ("traces", "The traces", "", ""),
    ("run", "The run", "", ""),
)
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
    """Every section for which there is something to say: what was found, then how."""
    tables = build_tables(evidence)
    template = environment().get_template("report.jinja")
    macros = template.make_module({"evidence": evidence, "tables": tables})
    sections = []
    for name, title, picture, shows in SECTIONS:
        text = tidy(getattr(macros, name)())
        if text:
            drawn = draw(picture, evidence, shows) if picture else None
            notes = tidy(getattr(macros, f"{name}_notes", str)())
            sections.append(Section(title, text, tables.get(name, ()), drawn, notes))
    return sections


def build_tables(evidence: Evidence) -> dict[str, list[Table]]:
    """The tables of sections; those of which there is nothing to show are left out."""
    results = evidence.results
    cuts = results.label_sensitivity
    tables: dict[str, list[Table | None]] = {
        "metrics": [build_metrics(results, more=True)],
        "fields": [build_fields(evidence.results.shown)],
        "costs": [build_costs(results)],
        "rates": [build_grouped(results, RATES)],
        "promise": [build_grouped(results, GUARANTEE)],
        "wrong_labels": [build_label_noise(results)],
        "left_out": [build_transfer(results)],
        "tokens": [build_tokens(results)],
        "tests_over_splits": [build_comparisons(evidence.results.shown.comparisons)],
        "paired_tests": [build_comparisons(results.comparisons)],
        "other_labels": [build_sensitivity(cuts)] if cuts else [],
        "calibration": [build_grouped(results, CALIBRATION)],
        "mistakes": [build_mistakes(evidence, evidence.results.shown.best)],
        "traces": [build_traces(evidence.traces)],
        "run": [build_facts(results), build_split(results)],
    }
    return {name: [one for one in found if one] for name, found in tables.items()}


def draw(name: str, evidence: Evidence, shows: str) -> Picture | None:
    return Picture(name, PICTURES[name](evidence), shows)
