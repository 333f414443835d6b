"""The tables of a report as plain texts, the same on the terminal, in Markdown and in HTML.

A number that is missing or not finite is a dash. Texts of traces are not trusted: they are cut and
cleaned here, and escaped where they are written.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from platform import python_version

from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from store.reports import terminal_text
from store.traces.layers import format_layers
from store.traces.question_split import SPLITS
from train.config import OUTSIDE, PATHS, Config
from train.evaluate.over_splits import over_all_splits
from train.files import Json
from train.outside.records import describe_outside
from train.report.evidence import Evidence, Mistake
from train.report.explained import explained_in_words
from train.report.imputed import imputed_in_words
from train.report.looking import view_command
from train.report.methods import find_kinds, ranks
from train.report.numbers import (
    clean_text,
    short,
    short_count,
    short_ms,
    with_interval,
)
from train.report.tuned import tuned_in_words
from train.report.verdict import on_top_in_words, verdict_in_words

__all__ = [
    "METRICS",
    "MORE_METRICS",
    "Table",
    "build_facts",
    "build_metrics",
    "build_mistakes",
    "build_sensitivity",
    "build_split",
    "build_tokens",
    "build_traces",
    "changes_labels",
    "columns_in_words",
    "describe_test",
    "intervals_in_words",
    "print_table",
    "print_terminal",
    "tokens_in_words",
]

AREA = "AUROC [95%]"
METRICS = {  # header -> key
    AREA: "auroc",
    "within": "auroc_within",
    "AUPRC": "auprc",
    "F1": "f1",
    "MCC": "mcc",
    "acc": "accuracy",
    "ECE": "ece",
    "Brier": "brier",
}
MORE_METRICS = {  # for which the terminal has no room
    "confidence ECE": "confidence_ece",
    "AURC": "aurc",
    "PRR": "prr",
}
LESS_IS_BETTER = ("ece", "confidence_ece", "brier", "aurc")
TOKEN_AREAS = ("auroc", "auprc")
TOKEN_METRICS = {  # header -> key
    "F1": "f1",
    "span F1": "span_f1",
    "IoU": "iou",
    "trace AUROC": "trace_auroc",
}
GROUPS = ("models", "baselines")
PACKAGES = ("trace-store", "torch", "torch-geometric", "numpy", "scipy", "scikit-learn")
LABELS = ("right", "hallucination")


@dataclass(frozen=True)
class Table:
    """Texts in rows; the first `n_left` columns are words, the others numbers.

    Attributes
    ----------
    groups : dict
        Row -> name of the group of rows that begins there; it may be empty.
    best : set of (row, column)
        Numbers that are the best of their column.
    commands : dict
        Row -> a shell command that shows more of it.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_left: int = 1
    groups: Mapping[int, str] = field(default_factory=dict)
    best: frozenset[tuple[int, int]] = frozenset()
    commands: Mapping[int, str] = field(default_factory=dict)


def build_facts(results: Json) -> Table:
    """The run: its store, settings that are not the defaults, time, versions."""
    store = results["store"]
    settings = changed_settings(results["config"])
    facts = {
        "run": results["run"],
        "store": store["path"],
        "state of the store": (
            f"{store['uuid']}, commit {store['generation']}, {store['rows']} traces"
        ),
        "settings that are not the defaults": ", ".join(settings) or "none",
        "layers": describe_layers(results),
        "training and scoring": f"{total_seconds(results):.0f} s",
        "versions": ", ".join(find_versions()),
    }
    rows = [(key, clean_text(str(value), 2000)) for key, value in facts.items() if value]
    return Table(("", ""), rows, n_left=2)


def build_traces(traces: Mapping[str, str]) -> Table:
    """How the traces were made: name and text."""
    rows = [(name, clean_text(text, 600)) for name, text in traces.items()]
    return Table(("", ""), rows, n_left=2)


def total_seconds(results: Json) -> float:
    """Seconds of all trainings and fits; an entry has the mean over its runs."""
    parts = results["splits"]["runs"] if results.get("splits") else [results]
    entries = [entry for part in parts for group in GROUPS for entry in part[group].values()]
    return sum(len(entry.get("runs", [entry])) * entry["seconds"] for entry in entries)


def describe_layers(results: Json) -> str:
    """The layers that were read; empty for none."""
    layers = {name: format_layers(numbers) for name, numbers in results["layers"].items()}
    text, *others = set(layers.values()) or [""]
    if others:
        text = "; ".join(f"{name} {numbers}" for name, numbers in layers.items())
    if not text:
        return ""
    if results["store"]["layers_recorded"]:
        return f"{text} (as the model numbers them)"
    return f"{text} (counted from 1: the store does not record their numbers)"


def changed_settings(config: Json) -> list[str]:
    """Settings, as NAME = VALUE, that differ from their defaults, without the paths."""
    defaults = asdict(Config())
    changed = [
        f"{name} = {value}"
        for name, value in config.items()
        if name not in (*PATHS, OUTSIDE) and defaults[name] != value
    ]
    return changed + describe_outside(config.get(OUTSIDE))


def find_versions() -> list[str]:
    versions = [f"Python {python_version()}"]
    for name in PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:  # a checkout that was not installed
            continue
    return versions


def build_split(results: Json) -> Table:
    """Rows, questions, hallucinations and base rate of each split."""
    rows = []
    for split in SPLITS:
        counts = results["split"][split]
        numbers = [counts[key] for key in ("rows", "questions", "hallucinations")]
        base_rate = short(counts["hallucinations"] / counts["rows"])
        rows.append((split, *map(str, numbers), base_rate))
    return Table(("split", "traces", "questions", "hallucinations", "base rate"), rows)


def build_metrics(results: Json, more: Mapping[str, str] | None = None) -> Table:
    """Test metrics, a line per method; with `more` of them, header -> key.

    Of several splits they are means.
    """
    kinds = find_kinds(results)
    results = over_all_splits(results)
    metrics = METRICS | dict(more or {})
    entries = results["models"] | results["baselines"]
    names = [name for group in kinds.values() for name in group]
    lines = [metric_cells(entries[name], metrics) for name in names]
    header = max(map(list, lines), key=len, default=[])
    rows = [
        (name, *(cells.get(key, "") for key in header))
        for name, cells in zip(names, lines, strict=True)
    ]
    columns = {header.index(text) + 1: key for text, key in metrics.items() if text in header}
    best = {
        (row, column)
        for column, key in columns.items()
        for row in find_best([ranked_number(entries[name], key) for name in names], key)
    }
    return Table(("", *header), rows, groups=find_groups(kinds), best=frozenset(best))


def ranked_number(entry: Json, key: str) -> float | None:
    """A metric of a method that ranks at all: a constant score is calibrated, but of no use."""
    return entry["test"].get(key) if ranks(entry) else None


def find_groups(kinds: Mapping[str, Sequence[str]]) -> dict[int, str]:
    """The row at which each kind begins."""
    groups = {}
    row = 0
    for kind, names in kinds.items():
        groups[row] = kind
        row += len(names)
    return groups


def find_best(numbers: Sequence[float | None], key: str) -> list[int]:
    """Places of the best number as it is shown; none where fewer than two are there."""
    sign = -1 if key in LESS_IS_BETTER else 1
    shown = {
        place: sign * round(number, 3)
        for place, number in enumerate(numbers)
        if number is not None and math.isfinite(number)
    }
    if len(shown) < 2:
        return []
    best = max(shown.values())
    return [place for place, number in shown.items() if number == best]


def metric_cells(entry: Json, metrics: Mapping[str, str]) -> dict[str, str]:
    test = entry["test"]
    cells = {AREA: with_interval(test["auroc"], test["auroc_ci"])}
    if "auroc_sd" in test:
        cells["sd"] = short(test["auroc_sd"])
    others = {header: key for header, key in metrics.items() if header != AREA and key in test}
    cells |= {header: short(test[key]) for header, key in others.items()}
    cells["params"] = short_count(round(entry["parameters"]))
    cells["s"] = f"{entry['seconds']:.0f}"
    if "ms_per_trace" in entry:
        cells["ms"] = short_ms(entry["ms_per_trace"])
    return cells


def build_tokens(results: Json) -> Table | None:
    """Metrics of tokens on test, a line per method that scores them; None without labels."""
    entries = results["models"] | results["baselines"]
    of_tokens = {
        name: entry["tokens"]
        for name, entry in entries.items()
        if "auroc" in entry.get("tokens", {})
    }
    grouped = {
        kind: [name for name in group if name in of_tokens]
        for kind, group in find_kinds(results).items()
    }
    kinds = {kind: group for kind, group in grouped.items() if group}
    if not kinds:
        return None
    names = [name for group in kinds.values() for name in group]
    keys = [*TOKEN_AREAS, *TOKEN_METRICS.values()]
    best = {
        (row, column)
        for column, key in enumerate(keys, start=1)
        for row in find_best([of_tokens[name].get(key) for name in names], key)
    }
    rows = [(name, *token_cells(of_tokens[name])) for name in names]
    header = ("", "AUROC [95%]", "AUPRC [95%]", *TOKEN_METRICS)
    return Table(header, rows, groups=find_groups(kinds), best=frozenset(best))


def token_cells(metrics: Json) -> list[str]:
    areas = [with_interval(metrics[key], metrics[f"{key}_ci"]) for key in TOKEN_AREAS]
    return areas + [short(metrics.get(key)) for key in TOKEN_METRICS.values()]


def build_sensitivity(cuts: list[Json]) -> Table:
    """Test AUROCs for labels of other thresholds of the score.

    Thresholds that give the same labels share a column.
    """
    groups = group_cuts(cuts)
    header = ("hallucination if the score is below", *groups)
    columns = list(groups.values())
    rows = [
        ("traces", *(str(cut["rows"]) for cut in columns)),
        ("hallucinations", *(str(cut["hallucinations"]) for cut in columns)),
    ]
    for name in cuts[0]["auroc"]:
        areas = [short(cut["auroc"][name]) for cut in columns]
        rows.append((name, *areas))
    return Table(header, rows)


def group_cuts(cuts: list[Json]) -> dict[str, Json]:
    """Thresholds, as '0.3' or '0.4 to 0.6' -> the cut of all of them, which has the same labels.

    A higher threshold makes hallucinations of right answers, never the reverse: equal numbers of
    them are equal labels.
    """
    groups = {}
    for _, equal in groupby(cuts, key=lambda cut: (cut["rows"], cut["hallucinations"])):
        first, *others = equal
        name = f"{first['threshold']:g}"
        if others:
            name += f" to {others[-1]['threshold']:g}"
        groups[name] = first
    return groups


def changes_labels(results: Json) -> bool:
    """Whether a threshold of `label_sensitivity` gives an AUROC other than that of the metrics."""
    entries = results["models"] | results["baselines"]
    return any(
        area != entries[name]["test"]["auroc"]
        for cut in results["label_sensitivity"]
        for name, area in cut["auroc"].items()
    )


def build_mistakes(evidence: Evidence, mistakes: list[Mistake]) -> Table:
    """Mistakes with their trace ids, the texts that the store has, and how to look at them."""
    texts = evidence.texts([mistake.position for mistake in mistakes])
    rows = []
    for i, mistake in enumerate(mistakes):
        trace_id = clean_text(evidence.trace_ids[mistake.position])
        label = LABELS[mistake.label]
        shown = [clean_text(column[i]) for column in texts.values()]
        rows.append((trace_id, label, short(mistake.score), *shown))
    header = ("trace", "label", "score", *texts)
    commands = find_commands(evidence, mistakes)
    return Table(header, rows, n_left=3 + len(texts), commands=commands)


def find_commands(evidence: Evidence, mistakes: list[Mistake]) -> dict[int, str]:
    """Row of the table -> the command that opens its trace."""
    if evidence.directory is None:
        return {}
    store = evidence.results["store"]["path"]
    ids = [evidence.trace_ids[mistake.position] for mistake in mistakes]
    commands = [view_command(store, evidence.directory, trace_id) for trace_id in ids]
    return {row: command for row, command in enumerate(commands) if command is not None}


def print_table(results: Json, console: Console) -> None:
    """Print test metrics, a line per detector and baseline, and the verdict, in 100 columns."""
    shown = over_all_splits(results)
    print_terminal(build_metrics(results), console, describe_test(results))
    notes = [
        tuned_in_words(results),
        columns_in_words(results),
        imputed_in_words(results),
        explained_in_words(shown),
    ]
    for note in filter(None, notes):
        console.print(terminal_text(note), highlight=False, markup=False)
    of_tokens = build_tokens(results)
    if of_tokens is not None:
        console.print()
        print_terminal(of_tokens, console, tokens_in_words(results))
    for remark in shown["remarks"]:
        console.print(terminal_text(remark), highlight=False, markup=False, soft_wrap=True)
    for note in filter(None, [verdict_in_words(shown), on_top_in_words(shown)]):
        console.print(terminal_text(note), highlight=False, markup=False)


def describe_test(results: Json) -> str:
    """What the metrics were measured on."""
    test = results["split"]["test"]
    splits = results.get("splits")
    if splits:
        tests = [run["split"]["test"] for run in splits["runs"]]
        rows, questions = ([one[key] for one in tests] for key in ("rows", "questions"))
        return (
            f"means over {len(tests)} splits, with {min(rows)} to {max(rows)} traces of "
            f"{min(questions)} to {max(questions)} questions in test"
        )
    return (
        f"test split: {test['rows']} traces of {test['questions']} questions, "
        f"{test['hallucinations']} hallucinations"
    )


def intervals_in_words(results: Json) -> str:
    """What the intervals of the table are."""
    if results.get("splits"):
        return "95% intervals of the means by the corrected t-test over the splits."
    return "95% intervals by a bootstrap over questions."


def columns_in_words(results: Json) -> str:
    """What the columns of the table mean that no paper defines, and controls."""
    entries = list(results["models"].values()) + list(results["baselines"].values())
    texts = []
    if any(entry.get("control") for entry in entries):
        texts.append("Controls see nothing of the answer but its length.")
    if results.get("splits"):
        texts.append("sd: over the splits.")
    if any(entry["test"].get("auroc_within") is not None for entry in entries):
        texts.append(f"within: AUROC within {results['strata']['by']}.")
    if any("ms_per_trace" in entry for entry in entries):
        texts.append("ms: milliseconds to score a trace, reading included.")
    return " ".join(texts)


def tokens_in_words(results: Json) -> str:
    """How many tokens of test have a label; of several splits the first one is judged by them."""
    test = results["tokens"]["test"]
    split = "test of the first split" if results.get("splits") else "test"
    return (
        f"tokens of {split}: {test['tokens']} labelled in {test['traces']} traces, "
        f"{test['hallucinated']} hallucinated in {test['spans']} spans"
    )


def print_terminal(table: Table, console: Console, title: str) -> None:
    """Print a table without lines, with an empty row between groups of rows and at the end.

    On a narrow terminal words are folded, never numbers.
    """
    heading = Text(title) if title else None
    terminal = TerminalTable(title=heading, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for i, header in enumerate(table.header):
        if i < table.n_left:
            terminal.add_column(Text(header), overflow="fold")
        else:
            width = max(len(header), *(len(row[i]) for row in table.rows))
            terminal.add_column(Text(header), justify="right", no_wrap=True, min_width=width)
    for i, row in enumerate(table.rows):
        if i in table.groups and i:
            terminal.add_row()
        if table.groups.get(i):
            terminal.add_row(Text(table.groups[i], style="italic"))
        styles = ["bold" if (i, j) in table.best else "" for j in range(len(row))]
        # rich would take a string for markup
        terminal.add_row(*(Text(*cell) for cell in zip(row, styles, strict=True)))
    terminal.add_row()
    console.print(terminal)
