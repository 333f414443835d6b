"""What stands in a report, in its order: built once, written as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from train.report import plots
from train.report.evidence import Evidence, find_mistakes
from train.report.table import (
    Table,
    build_comparisons,
    build_facts,
    build_metrics,
    build_mistakes,
    build_sensitivity,
    build_split,
    clean_text,
    short,
    verdict_in_words,
)

__all__ = ["PICTURES", "Picture", "Section", "build_sections", "find_title"]

PICTURES = (
    "roc",
    "precision_recall",
    "calibration",
    "risk_coverage",
    "learning_curves",
    "histograms",
    "layers",
)


@dataclass(frozen=True)
class Picture:
    """A figure, the name of its file without its ending, and what it shows for those who do not see
    it."""

    name: str
    figure: Figure
    shows: str


@dataclass(frozen=True)
class Section:
    """A heading, what to know to read what follows, tables and a picture."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    picture: Picture | None = None


def find_title(evidence: Evidence) -> str:
    """The report's heading: the name of the store."""
    return f"Hallucination detectors on {clean_text(Path(evidence.results['store']['path']).name)}"


def build_sections(evidence: Evidence) -> list[Section]:
    """Every section for which there is something to show."""
    return [
        *build_tables(evidence),
        *build_curves(evidence),
        *build_histories(evidence),
        build_worst(evidence),
    ]


def build_tables(evidence: Evidence) -> Iterator[Section]:
    """Run, verdict, metrics and tests."""
    results = evidence.results
    unlabelled = results["split"].get("unlabelled", 0)
    text = f"Split by question with seed {results['split']['seed']}; {unlabelled} unlabelled traces are in no split."
    remarks = [f" {remark[0].upper()}{remark[1:]}." for remark in results.get("remarks", [])]
    yield Section("Run", text + "".join(remarks), [build_facts(results), build_split(results)])
    verdict = results.get("verdict")
    yield Section(
        "Verdict", verdict_in_words(verdict) if verdict else "There is no baseline to compare with."
    )
    yield Section(
        "Metrics on test",
        f"95% intervals by a bootstrap over questions. The AUPRC of a coin is the base rate, "
        f"{short(float(evidence.test_labels.mean()))}. F1, MCC and accuracy at the threshold that was chosen on "
        "validation." + several_seeds(evidence, "Means over the seeds; sd is that of the AUROC."),
        [build_metrics(results)],
    )
    if results.get("comparisons"):
        yield Section(
            "Paired tests",
            "Difference of AUROC on the same rows: paired bootstrap over questions; DeLong's test takes rows to be "
            "independent; Holm's correction of DeLong's p for the number of pairs.",
            [build_comparisons(results["comparisons"])],
        )
    if results.get("label_sensitivity"):
        yield Section(
            "If labels were cut elsewhere",
            "AUROC on test, nothing trained again. A dash: only one class would be left.",
            [build_sensitivity(results["label_sensitivity"])],
        )


def build_curves(evidence: Evidence) -> Iterator[Section]:
    """What the scores on test look like."""
    first = several_seeds(evidence, "Curves are the first seed's, numbers the mean over the seeds.")
    yield Section(
        "ROC",
        "Detectors are thick lines, baselines thin and dashed. The diagonal is a coin's." + first,
        picture=Picture(
            "roc", plots.draw_roc(evidence), "true positive rate over false positive rate"
        ),
    )
    yield Section(
        "Precision and recall",
        "The level line is the base rate, the precision of a coin." + first,
        picture=Picture("precision_recall", plots.draw_pr(evidence), "precision over recall"),
    )
    yield Section(
        "Calibration",
        "Share of hallucinations in 15 bins of the score, and how many traces each bin holds: a bin of few says little."
        + first,
        picture=Picture(
            "calibration",
            plots.draw_calibration(evidence),
            "share of hallucinations over mean score",
        ),
    )
    yield Section(
        "Risk and coverage",
        "Errors among the traces that remain if the least certain ones are left out; certainty is the distance from "
        "the threshold that was chosen on validation, in odds. AURC is the area beneath; less is better."
        + first,
        picture=Picture(
            "risk_coverage", plots.draw_risk_coverage(evidence), "share of errors over coverage"
        ),
    )
    yield Section(
        "Scores by class",
        "The dashed line is the threshold." + several_seeds(evidence, "Of the first seed."),
        picture=Picture(
            "histograms",
            plots.draw_histograms(evidence),
            "histograms of the scores of both classes",
        ),
    )


def build_histories(evidence: Evidence) -> Iterator[Section]:
    """How training went, and where in the layers the signal lies, where the results tell."""
    if plots.find_histories(evidence):
        yield Section(
            "Learning curves",
            "A dot is the epoch whose weights were kept."
            + several_seeds(evidence, "One thin line per seed."),
            picture=Picture(
                "learning_curves",
                plots.draw_learning_curves(evidence),
                "loss and AUROC over epochs",
            ),
        )
    if plots.find_layers(evidence):
        yield Section(
            "Where in the layers the signal lies",
            "AUROC on validation, which chooses the layer, not on test.",
            picture=Picture("layers", plots.draw_layers(evidence), "validation AUROC by layer"),
        )


def build_worst(evidence: Evidence) -> Section:
    """The most confident mistakes of the best detector."""
    best = evidence.best
    mistakes = find_mistakes(evidence, best)
    threshold = short(evidence.entries[best]["test"]["threshold"])
    text = f"Of {best}, best on validation, with its threshold of {threshold}: "
    if not mistakes:
        return Section("Most confident mistakes", text + "there are none.")
    return Section(
        "Most confident mistakes", text + "the surest first.", [build_mistakes(evidence, mistakes)]
    )


def several_seeds(evidence: Evidence, text: str) -> str:
    """The text, after a space, where anything was trained more than once."""
    return f" {text}" if any(len(one.test) > 1 for one in evidence.scored.values()) else ""
