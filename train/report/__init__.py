"""What a run leaves to look at: results.json, scores.csv, report.md with its figures, report.html,
and the table.

Everything shown follows from the results and the scores; nothing here trains. Each file is whole or
not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from train.files import make_directory, replace_file
from train.report.evidence import Evidence, gather_evidence
from train.report.html import render_html
from train.report.markdown import render_markdown
from train.report.sections import PICTURES, Section, build_sections, find_title
from train.report.table import print_table
from train.run.results import write_results, write_scores

if TYPE_CHECKING:
    from train.data.batches import TrainingData
    from train.run.experiment import Experiment

__all__ = ["print_table", "write_pages", "write_report", "write_results", "write_scores"]

FOLDER = "figures"


def write_report(experiment: Experiment, data: TrainingData, output_dir: Path) -> None:
    """Write the files of a run; results.json, which says that it is finished, comes last."""
    write_scores(output_dir / "scores.csv", experiment, data)
    write_pages(gather_evidence(experiment, data), output_dir)
    write_results(output_dir / "results.json", experiment.results)


def write_pages(evidence: Evidence, output_dir: Path) -> None:
    """Write the figures, report.md and report.html."""
    title, sections = find_title(evidence), build_sections(evidence)
    write_figures(sections, output_dir / FOLDER)
    write_text(output_dir / "report.md", render_markdown(title, sections, FOLDER))
    write_text(output_dir / "report.html", render_html(title, sections))


def write_figures(sections: Sequence[Section], folder: Path) -> None:
    """Write the pictures as PNG; those of an earlier run that this one does not draw go."""
    make_directory(folder)
    drawn = {
        section.picture.name: section.picture.figure for section in sections if section.picture
    }
    for name in PICTURES:
        if name not in drawn:
            (folder / f"{name}.png").unlink(missing_ok=True)
    for name, figure in drawn.items():
        with replace_file(folder / f"{name}.png") as temporary:
            figure.savefig(temporary, format="png", dpi=120)
        # it stays where it is: drawn again for the page, it is not laid out again
        figure.set_layout_engine("none")


def write_text(path: Path, text: str) -> None:
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
