"""What the sections of a report say of several splits and seeds."""

from dataclasses import replace

import pytest

from train.evaluate.over_splits import summarise_splits
from train.report import build_sections


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "n_splits, n_seeds, curves, scores",
    [
        (1, 1, "", ""),
        (1, 2, "Curves are of the first seed, numbers means over the seeds.", "Of the first seed."),
        (2, 1, "Curves and numbers are of the first split.", "Of the first split."),
        (
            2,
            2,
            "Curves are of the first split's first seed, numbers means over that split's seeds.",
            "Of the first split's first seed.",
        ),
    ],
)
def test_a_figure_says_which_of_several_it_shows(make_evidence, n_splits, n_seeds, curves, scores):
    """Where there is one split and one seed there is nothing to say."""
    evidence = make_evidence(n_runs=n_seeds)
    if n_splits > 1:
        evidence.results.splits = summarise_splits([replace(evidence.results)] * n_splits)
    texts = {section.title: section.text for section in build_sections(evidence)}
    level = "The level line is the base rate, the precision of random scores."
    assert texts["Precision and recall"] == f"{level} {curves}".strip()
    assert texts["Scores by class"] == f"The dashed line is the threshold. {scores}".strip()
