"""The sections of a report, in order: built once, written as Markdown and as HTML."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from store.reports import count
from train.data.splits import BY_QUESTION
from train.files import Json
from train.report.differences import build_comparisons
from train.report.evidence import Evidence, find_mistakes
from train.report.explained import explained_in_words
from train.report.forest import draw_forest
from train.report.imputed import imputed_in_words
from train.report.numbers import clean_text, short
from train.report.plots import (
    draw_calibration,
    draw_histograms,
    draw_layers,
    draw_learning_curves,
    draw_pr,
    draw_risk_coverage,
    draw_roc,
    find_histories,
    find_layers,
)
from train.report.table import (
    MORE_METRICS,
    Table,
    build_facts,
    build_metrics,
    build_mistakes,
    build_sensitivity,
    build_split,
    build_tokens,
    build_traces,
    changes_labels,
    columns_in_words,
    describe_test,
    intervals_in_words,
    tokens_in_words,
)
from train.report.tuned import tuned_in_words
from train.report.verdict import on_top_in_words, verdict_in_words

__all__ = ["PICTURES", "Picture", "Section", "build_sections", "find_title"]

PICTURES = (
    "forest",
    "roc",
    "precision_recall",
    "calibration",
    "risk_coverage",
    "learning_curves",
    "histograms",
    "layers",
)


GLOSSARY = """\
AUROC: area under the ROC curve, the chance that a hallucination gets a higher score than a right \
answer; .5 is that of random scores.
AUPRC: area under the curve of precision over recall; {base_rate}, the base rate, is that of \
random scores.
F1: harmonic mean of precision and recall. MCC: Matthews correlation coefficient, from -1 to 1.
ECE: expected calibration error, the mean distance of the scores from the share of hallucinations. \
The confidence ECE is that of the likelier class's probability from the share of right predictions \
(Guo et al., 2017). Brier: mean squared error of the scores. Of all three, less is better.
AURC: area under the curve of risk over coverage, less is better. PRR: prediction-rejection ratio, \
what leaving out the answers of the highest scores gains; 1 if perfect, 0 if random.
params: number of trained parameters. s: seconds of training."""
FOREST = """\
AUROC on test and its 95% interval, by kind and the best first. The dashed line is the baseline \
that is best on validation, the dotted one random scores. Controls see nothing of the answer but \
its length: what they reach, a detector may have learned from the question or the length."""
MEANS = """ Numbers are means over the splits, with the interval of the corrected resampled \
t-test; the curves below are of the first split."""
TESTS = """\
Difference of AUROC on the same rows. Its interval and p bootstrap are of a paired bootstrap over \
questions, whose p cannot be below 2 / (resamples + 1); p DeLong is of DeLong's test, which takes \
the rows of a question together (Obuchowski, 1997); p Holm is p DeLong after Holm's correction for \
the number of pairs. Pairs with a control are corrected apart from the others, because they answer \
another question: what a detector knows beyond it. With fewer than about 30 questions of a class \
DeLong's test finds too many differences: read the bootstrap's interval. Of several seeds all are \
of the mean AUROC. Detectors are compared with each other, with baselines and with controls, but \
not with majority, which is constant, nor with a baseline or control that ranks the rows as an \
earlier one does, as perplexity does mean_logprob."""
OVER_SPLITS = (
    "Mean over the splits of the difference of AUROC on the same rows, its interval, the smallest "
    "and the largest difference of a split, and p, by the corrected resampled t-test (Nadeau and "
    "Bengio, 2003), which allows for the training rows that the splits share; p Holm is after "
    "Holm's correction for the number of pairs, apart for pairs with a control."
)
SENSITIVITY = (
    "AUROC on test if a trace is a hallucination whose score in the store is below a threshold; "
    "nothing is trained again. Thresholds that give the same labels share a column. "
    "A dash: a single class would remain."
)


TOKENS = """\
Scores of single tokens against their labels; 95% intervals by a bootstrap over questions. The \
threshold of a method is the one with the best F1 of tokens on validation. F1 is of tokens. Span \
F1 is of runs of tokens above the threshold, which count as right, or as found, if they share a \
token with a labelled span. IoU is the intersection over the union of both sets of tokens, 1 where \
both are empty, the mean over traces. Trace AUROC is that of an answer's largest score, for the \
labels of traces. Detectors that did not learn from tokens have the gradient of their logit times \
its input, or the logit that the state of each token gives."""


@dataclass(frozen=True)
class Picture:
    """A figure, its file name without the ending, and a description for those who do not see it."""

    name: str
    figure: Figure
    shows: str


@dataclass(frozen=True)
class Section:
    """A heading, an explanation, tables and a picture, and below them what their words mean."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    picture: Picture | None = None
    notes: str = ""


def find_title(evidence: Evidence) -> str:
    """The report's heading, with the name of the store."""
    return f"Hallucination detectors on {clean_text(Path(evidence.results['store']['path']).name)}"


def build_sections(evidence: Evidence) -> list[Section]:
    """Every section for which there is something to show: what was found, then how."""
    return [
        build_verdict(evidence),
        *build_tables(evidence),
        *build_curves(evidence),
        *build_histories(evidence),
        build_worst(evidence),
        *build_how(evidence),
    ]


def build_verdict(evidence: Evidence) -> Section:
    shown = evidence.shown_results
    text = verdict_in_words(shown) or "There is no baseline to compare with."
    text = "\n".join(filter(None, [text, on_top_in_words(shown), explained_in_words(shown)]))
    picture = Picture("forest", draw_forest(evidence), "AUROC of every method, with its interval")
    notes = FOREST + (MEANS if evidence.results.get("splits") else "")
    return Section("Verdict", text, picture=picture, notes=notes)


def build_tables(evidence: Evidence) -> Iterator[Section]:
    results = evidence.results
    shown = evidence.shown_results
    base_rate = short(evidence.test_labels.mean())
    yield Section(
        "Metrics on test",
        f"{intervals_in_words(results)} F1, MCC and accuracy (acc) are at the threshold. "
        f"{under_the_table(results)}"
        + several_splits(results)
        + several_seeds(
            evidence, "Means over the seeds; sd is the standard deviation of the AUROC."
        )
        + " The best of each column is bold.",
        [build_metrics(results, MORE_METRICS)],
        notes=GLOSSARY.format(base_rate=base_rate),
    )
    of_tokens = build_tokens(results)
    if of_tokens is not None:
        yield Section("Tokens", f"Of the {tokens_in_words(results)}. {TOKENS}", [of_tokens])
    if results.get("splits"):
        yield Section(
            "Tests over the splits", OVER_SPLITS, [build_comparisons(shown["comparisons"])]
        )
    elif results["comparisons"]:
        yield Section("Paired tests", TESTS, [build_comparisons(results["comparisons"])])
    cuts = results.get("label_sensitivity")
    if cuts:
        is_news = changes_labels(results)
        yield Section(
            "Other thresholds of the labels",
            (SENSITIVITY if is_news else same_labels(cuts)) + first_split(results),
            [build_sensitivity(cuts)] if is_news else [],
        )


def under_the_table(results: Json) -> str:
    """What was tuned, what the columns mean, and what was imputed."""
    notes = [tuned_in_words(results), columns_in_words(results), imputed_in_words(results)]
    return " ".join(filter(None, notes))


def build_how(evidence: Evidence) -> Iterator[Section]:
    """What another would need to do it again."""
    results = evidence.results
    split = results["split"]
    sentences = [split_in_words(split)]
    n_unlabelled = split["unlabelled"]
    if n_unlabelled:
        traces = count(n_unlabelled, "trace without a label is", "traces without a label are")
        sentences.append(f"{traces} left out.")
    remarks = evidence.shown_results["remarks"]
    sentences += [f"{remark[0].upper()}{remark[1:]}." for remark in remarks]
    if results.get("splits"):
        sentences.append("Counts of train, val and test are those of the first split.")
    if evidence.traces:
        yield Section("The traces", "As the store records them.", [build_traces(evidence.traces)])
    yield Section("The run", " ".join(sentences), [build_facts(results), build_split(results)])


def same_labels(cuts: list[Json]) -> str:
    """Said instead of a table that would repeat the AUROCs of the metrics."""
    low, high = (f"{cuts[i]['threshold']:g}" for i in (0, -1))
    return (
        f"Labels made from the store's scores with any threshold from {low} to {high} are those "
        "that were used, and every AUROC on test is the same."
    )


def build_curves(evidence: Evidence) -> Iterator[Section]:
    which = which_curves(evidence)
    yield Section(
        "ROC",
        "Detectors are thick lines, baselines thin and dashed. The diagonal is of random scores."
        + some_shown(evidence)
        + which,
        picture=Picture("roc", draw_roc(evidence), "true positive rate over false positive rate"),
    )
    yield Section(
        "Precision and recall",
        "The level line is the base rate, the precision of random scores." + which,
        picture=Picture("precision_recall", draw_pr(evidence), "precision over recall"),
    )
    yield Section(
        "Calibration",
        "Share of hallucinations in 15 bins of the score, and how many traces each bin holds: "
        "bins of few traces are uncertain. On the diagonal a score is the share." + which,
        picture=Picture(
            "calibration",
            draw_calibration(evidence),
            "share of hallucinations over mean score",
        ),
    )
    yield Section(
        "Risk and coverage",
        "Errors among the traces that remain if the least certain ones are left out; certainty is "
        "the distance from the threshold that was chosen on validation, in odds. AURC is the area "
        "below the curve; less is better." + which,
        picture=Picture(
            "risk_coverage", draw_risk_coverage(evidence), "share of errors over coverage"
        ),
    )
    yield Section(
        "Scores by class",
        "The dashed line is the threshold." + which_scores(evidence),
        picture=Picture(
            "histograms",
            draw_histograms(evidence),
            "histograms of the scores of both classes",
        ),
    )


def build_histories(evidence: Evidence) -> Iterator[Section]:
    if find_histories(evidence):
        yield Section(
            "Learning curves",
            "A dot is the epoch whose weights were kept."
            + several_seeds(evidence, "One thin line per seed.")
            + first_split(evidence.results),
            picture=Picture(
                "learning_curves",
                draw_learning_curves(evidence),
                "loss and AUROC over epochs",
            ),
        )
    if find_layers(evidence):
        yield Section(
            "Where in the layers the signal lies",
            "AUROC on validation, which chooses the layer, not on test."
            + first_split(evidence.results),
            picture=Picture("layers", draw_layers(evidence), "validation AUROC by layer"),
        )


def build_worst(evidence: Evidence) -> Section:
    best = evidence.best
    mistakes = find_mistakes(evidence, best)
    threshold = short(evidence.entries[best]["test"]["threshold"])
    where = ", in test of the first split" if evidence.results.get("splits") else ""
    text = f"Of {best}, best on validation, with its threshold of {threshold}{where}: "
    if not mistakes:
        return Section("Most confident mistakes", text + "there are none.")
    tables = [build_mistakes(evidence, mistakes)]
    return Section("Most confident mistakes", text + "the most confident first.", tables)


def split_in_words(split: Json) -> str:
    """Where the splits come from."""
    if split["by"] == BY_QUESTION:
        return f"Traces of one question are in one split, drawn with seed {split['seed']}."
    return f"The splits are those of {clean_text(split['by'])}."


def several_splits(results: Json) -> str:
    """Said of means over splits."""
    if not results.get("splits"):
        return ""
    return (
        f" Shown are {describe_test(results)}. Everything but the tables of metrics and tests is of"
        " the first split."
    )


def several_seeds(evidence: Evidence, text: str) -> str:
    """The text, after a space, if anything was trained more than once."""
    return f" {text}" if has_seeds(evidence) else ""


def has_seeds(evidence: Evidence) -> bool:
    """Whether a detector was trained more than once on a split."""
    return any(len(scored.test) > 1 for scored in evidence.scored.values())


def first_split(results: Json) -> str:
    """Said of what shows one of several splits."""
    return " Of the first split." if results.get("splits") else ""


def which_curves(evidence: Evidence) -> str:
    """Which of several splits and seeds curves are of, and the numbers beside their names."""
    if not evidence.results.get("splits"):
        return several_seeds(
            evidence, "Curves are of the first seed, numbers means over the seeds."
        )
    if not has_seeds(evidence):
        return " Curves and numbers are of the first split."
    return " Curves are of the first split's first seed, numbers means over that split's seeds."


def which_scores(evidence: Evidence) -> str:
    """Which of several splits and seeds scores are of."""
    if not has_seeds(evidence):
        return first_split(evidence.results)
    is_split = bool(evidence.results.get("splits"))
    return " Of the first split's first seed." if is_split else " Of the first seed."


def some_shown(evidence: Evidence) -> str:
    """That this figure and those below leave methods out, if they do."""
    n_left_out = len(evidence.ranking) - len(evidence.shown)
    if not n_left_out:
        return ""
    return (
        f" This and the next figures show the {len(evidence.shown)} best of each kind on "
        "validation; the table has all."
    )
