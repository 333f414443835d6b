"""The tables of a report as plain texts, the same on the terminal, in Markdown and in HTML.

A number that is missing or not finite is a dash. Texts of traces come from outside: they are cut
and cleaned here, and escaped where they are written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Any

from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from store.format.layers import format_layers
from store.sources.split import SPLITS
from train.config import Config
from train.report.evidence import Evidence, Mistake

__all__ = [
    "Table",
    "build_comparisons",
    "build_facts",
    "build_metrics",
    "build_mistakes",
    "build_sensitivity",
    "build_split",
    "clean_text",
    "print_table",
    "print_terminal",
    "short",
    "short_p",
    "verdict_in_words",
]

METRICS = {
    "AUPRC": "auprc",
    "F1": "f1",
    "MCC": "mcc",
    "acc": "accuracy",
    "ECE": "ece",
    "Brier": "brier",
}  # header -> key
PACKAGES = ("trace-store", "torch", "torch-geometric", "numpy", "scipy", "scikit-learn")
N_SHOWN = 200  # characters of a text
# Control characters, and those that turn the direction of writing: they would change what stands
# around them.
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class Table:
    """Texts in rows; the first `n_left` columns are words, the others numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_left: int = 1


def build_facts(results: dict[str, Any]) -> Table:
    """What was run: store, settings that are not the defaults, time, versions."""
    store, entries = results["store"], (results["models"] | results["baselines"]).values()
    seconds = sum(entry.get("seconds", 0) * max(1, len(entry.get("runs", []))) for entry in entries)
    facts = {
        "run": results.get("run", ""),
        "store": store["path"],
        "state of the store": f"{store['uuid']}, commit {store['generation']}, {store['rows']} traces",
        "settings that are not the defaults": ", ".join(changed_settings(results.get("config", {})))
        or "none",
        "layers": describe_layers(results),
        "training and scoring": f"{seconds:.0f} s",
        "versions": ", ".join(
            f"{name} {number}" for name, number in find_versions(results).items()
        ),
    }
    return Table(
        ("", ""),
        [(key, clean_text(str(value), 2000)) for key, value in facts.items() if value],
        n_left=2,
    )


def describe_layers(results: dict[str, Any]) -> str:
    """The layers that were read, as the model numbers them; empty where there are none, or an older
    run tells none."""
    layers = results.get("layers", {})
    distinct = {format_layers(numbers): None for numbers in layers.values()}
    if len(distinct) > 1:
        text = "; ".join(f"{name} {format_layers(numbers)}" for name, numbers in layers.items())
    else:
        text = "".join(distinct)
    if not text:
        return ""
    recorded = results["store"].get("layers_recorded", False)
    how = (
        "as the model numbers them"
        if recorded
        else "counted from 1: the store does not record their numbers"
    )
    return f"{text} ({how})"


def changed_settings(config: dict[str, Any]) -> list[str]:
    """Settings, as NAME = VALUE, that differ from their defaults; the store is told elsewhere."""
    defaults = {setting.name: setting.default for setting in fields(Config)}
    return [
        f"{name} = {value}"
        for name, value in config.items()
        if name not in ("store", "output_dir") and (name not in defaults or defaults[name] != value)
    ]


def find_versions(results: dict[str, Any]) -> dict[str, str]:
    """Package -> version, as the results say, else as installed."""
    if isinstance(results.get("versions"), dict):
        return results["versions"]
    found = {"Python": python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a checkout that was not installed
            continue
    return found


def build_split(results: dict[str, Any]) -> Table:
    """Rows, questions, hallucinations and base rate of each split."""
    rows = []
    for split in SPLITS:
        one = results["split"][split]
        rate = one["hallucinations"] / one["rows"] if one["rows"] else math.nan
        rows.append(
            (
                split,
                *(str(one[key]) for key in ("rows", "questions", "hallucinations")),
                short(rate),
            )
        )
    return Table(("split", "traces", "questions", "hallucinations", "base rate"), rows)


def build_metrics(results: dict[str, Any]) -> Table:
    """Test metrics, a line per detector and baseline."""
    cells = {
        group: {name: metric_cells(entry) for name, entry in results[group].items()}
        for group in ("models", "baselines")
    }
    header = max(
        (list(one) for group in cells.values() for one in group.values()), key=len, default=[]
    )
    rows = [
        (name, *(one.get(key, "") for key in header))
        for group in cells.values()
        for name, one in group.items()
    ]
    return Table(("", *header), rows)


def metric_cells(entry: dict[str, Any]) -> dict[str, str]:
    """One line of the table of metrics: header -> text."""
    test = entry["test"]
    cells = {"AUROC [95%]": with_interval(test["auroc"], test["auroc_ci"])}
    if "auroc_sd" in test:
        cells["sd"] = short(test["auroc_sd"])
    for header, key in METRICS.items():
        cells[header] = short(test[key])
    cells["params"] = short_count(entry["parameters"]) if "parameters" in entry else ""
    cells["s"] = f"{entry['seconds']:.0f}" if "seconds" in entry else ""
    return cells


def build_comparisons(comparisons: list[dict[str, Any]]) -> Table:
    """Paired tests, a line per pair."""
    rows = [
        (
            one["a"],
            one["b"],
            with_interval(one["difference"], one["ci"]),
            *(short_p(one[key]) for key in ("p_bootstrap", "p_delong", "p_holm")),
        )
        for one in comparisons
    ]
    header = (
        "this one",
        "against",
        "difference of AUROC [95%]",
        "p bootstrap",
        "p DeLong",
        "p Holm",
    )
    return Table(header, rows, n_left=2)


def build_sensitivity(cuts: list[dict[str, Any]]) -> Table:
    """Test AUROCs under labels cut at other thresholds of the score, a column per threshold."""
    names = list(dict.fromkeys(name for cut in cuts for name in cut["auroc"]))
    rows = [
        ("traces", *(str(cut["rows"]) for cut in cuts)),
        ("hallucinations", *(str(cut["hallucinations"]) for cut in cuts)),
        *((name, *(short(cut["auroc"].get(name)) for cut in cuts)) for name in names),
    ]
    return Table(("label = 1 iff score <", *(f"{cut['threshold']:g}" for cut in cuts)), rows)


def build_mistakes(evidence: Evidence, mistakes: list[Mistake]) -> Table:
    """Mistakes with their trace ids, and the texts that the store has."""
    texts = evidence.texts([one.position for one in mistakes])
    words = {0: "right", 1: "hallucination"}
    rows = [
        (
            clean_text(evidence.trace_ids[one.position]),
            words[one.label],
            short(one.score),
            *(clean_text(column[i]) for column in texts.values()),
        )
        for i, one in enumerate(mistakes)
    ]
    return Table(("trace", "label", "score", *texts), rows, n_left=3 + len(texts))


def verdict_in_words(verdict: dict[str, Any]) -> str:
    """Who was chosen on validation, and how they compare on test; each line fits 80 columns."""
    low, high = verdict["ci"]
    if low > 0:
        found = "the detector is better"
    elif high < 0:
        found = "the detector is worse"
    else:
        found = "they cannot be told apart"
    difference = with_interval(verdict["difference"], verdict["ci"])
    return (
        f"Best on validation: detector {verdict['detector']}, baseline {verdict['baseline']}.\n"
        f"On test {found}: difference {difference}, p = {short(verdict['p_bootstrap'])}\n"
        "(of AUROC, with 95% interval; paired bootstrap over questions)."
    )


def print_table(results: dict[str, Any], console: Console) -> None:
    """Print test metrics, a line per detector and baseline, and the verdict, in 80 columns."""
    test = results["split"]["test"]
    title = f"test split: {test['rows']} traces of {test['questions']} questions, {test['hallucinations']} hallucinations"
    print_terminal(build_metrics(results), console, title, gaps=(len(results["models"]),))
    for remark in results.get("remarks", []):
        console.print(remark, highlight=False, markup=False, soft_wrap=True)
    if results["verdict"]:
        console.print(verdict_in_words(results["verdict"]), highlight=False, markup=False)


def print_terminal(table: Table, console: Console, title: str, gaps: Sequence[int] = ()) -> None:
    """Print a table without lines; an empty row stands before each of the rows `gaps`, and at the
    end.

    Where the terminal is too narrow words are folded, never numbers.
    """
    shown = TerminalTable(
        title=Text(title) if title else None, box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    for i, header in enumerate(table.header):
        if i < table.n_left:
            shown.add_column(Text(header), overflow="fold")
        else:
            width = max(map(len, [header, *(row[i] for row in table.rows)]))
            shown.add_column(Text(header), justify="right", no_wrap=True, min_width=width)
    for i, row in enumerate(table.rows):
        if i in gaps:
            shown.add_row()
        shown.add_row(*map(Text, row))  # as they are: a string would be read as markup
    shown.add_row()
    console.print(shown)


def with_interval(number: float, interval: Sequence[float]) -> str:
    """A number and its interval: .906 [.883, .925]."""
    return f"{short(number)} [{', '.join(map(short, interval))}]"


def short_count(n: int) -> str:
    """A number of parameters: 129, 66.3k, 4.80M."""
    if n < 1000:
        return str(n)
    return f"{n / 1e3:.1f}k" if n < 100_000 else f"{n / 1e6:.2f}M"


def short(number: float | None) -> str:
    """Three decimals without the leading zero: .917, -.036, 1.000; a dash for what is no finite
    number."""
    if number is None or not math.isfinite(number):
        return "–"
    return f"{number:.3f}".replace("0.", ".", 1) if abs(number) < 0.9995 else f"{number:.3f}"


def short_p(p: float | None) -> str:
    """A p value, never as nought."""
    return "<.001" if p is not None and p < 0.001 else short(p)


def clean_text(text: str, n_shown: int = N_SHOWN) -> str:
    """One line of at most `n_shown` characters, without characters that are not seen."""
    line = UNSEEN.sub("\N{REPLACEMENT CHARACTER}", " ".join(text[: 8 * n_shown].split()))
    return line if len(line) <= n_shown else line[: n_shown - 1] + "…"
