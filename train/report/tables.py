"""The tables of a report as plain texts, the same on the terminal, in Markdown, LaTeX and HTML.

A number that is missing or not finite is a dash. Texts of traces are not trusted: they are cut and
cleaned here, and escaped where they are written.
"""

import math
import shlex
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import TypeVar
from urllib.parse import quote

from store.traces.layers import format_layers
from train.config import OUTSIDE, PATHS, Config, config_of_run
from train.evaluate.calibrate import LOG_RANGE
from train.evaluate.results import Cut, PairedTest, Results
from train.outside import describe_outside
from train.report.evidence import Evidence, find_kinds, find_mistakes
from train.report.numbers import clean_text, p_value, short, short_p, with_interval
from train.report.render import Table

__all__ = [
    "CALIBRATION",
    "GUARANTEE",
    "METRICS",
    "RATES",
    "build_comparisons",
    "build_costs",
    "build_facts",
    "build_fields",
    "build_grouped",
    "build_label_noise",
    "build_metrics",
    "build_mistakes",
    "build_numbers",
    "build_sensitivity",
    "build_split",
    "build_tokens",
    "build_traces",
    "build_transfer",
    "comparison_cells",
    "view_command",
]

METRICS = {  # header -> key
    "AUROC [95%]": "auroc",
    "sd": "auroc_sd",
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
    "PRR at .5": "prr_half",
}
RATES = {
    "recall at 1% FPR": "recall_at_1",
    "at 5%": "recall_at_5",
    "at 10%": "recall_at_10",
    "FPR at 95% recall": "fpr_at_95",
    "AUPRC": "auprc",
}
CALIBRATION = {
    "ECE": "ece",
    "Brier": "brier",
    "T": "temperature",
    "ECE (T)": "temperature_ece",
    "Brier (T)": "temperature_brier",
    "ECE (isotonic)": "isotonic_ece",
    "Brier (isotonic)": "isotonic_brier",
}
GUARANTEE = {
    "threshold": "risk_threshold",
    "hallucinations let through": "risk",
    "answers let through": "answered",
    "wrong among those": "wrong_answered",
}
LESS_IS_BETTER = ("ECE", "confidence ECE", "Brier", "AURC")
TOKEN_METRICS = {
    "AUROC [95%]": "auroc",
    "AUPRC [95%]": "auprc",
    "F1": "f1",
    "span F1": "span_f1",
    "IoU": "iou",
    "trace AUROC": "trace_auroc",
}
COSTS = {
    "parameters": "parameters",
    "s to train": "seconds",
    "ms a trace": "ms_per_trace",
    "bytes a trace": "bytes_per_trace",
    "and besides": "also_needs",
}
OPTIONAL = ("auroc_sd", "auroc_within", "also_needs")  # keys without a dash where there is none


def short_temperature(number: float) -> str:
    """A temperature; of one at an end of the search, beyond what it lies."""
    low, high = map(math.exp, LOG_RANGE)
    if number > 0.999 * high:
        return f">{math.floor(high)}"
    return f"<{short(low)}" if number < 1.001 * low else short(number)


FORMATS: dict[str, Callable[[float], str]] = {  # of keys; `short` of all others
    "parameters": "{:,.0f}".format,
    "seconds": "{:.0f}".format,
    "bytes_per_trace": "{:,.0f}".format,
    "temperature": short_temperature,
    "also_needs": str,
}
PACKAGES = ("trace-store", "torch", "torch-geometric", "numpy", "scipy", "scikit-learn")
LABELS = ("right", "hallucination")
Key = TypeVar("Key", bound=Hashable)
Record = TypeVar("Record")
MAX_ID = 200  # characters of a trace id in a command


def build_facts(results: Results) -> Table:
    """The run: its store, settings that are not the defaults, time, versions."""
    store = results.store
    settings = changed_settings(results.config)
    entries = [entry for part in results.of_each_split for entry in part.entries.values()]
    seconds = sum(len(entry.runs or [entry]) * entry.seconds for entry in entries)
    facts = {
        "run": results.run,
        "store": store.path,
        "state of the store": f"{store.uuid}, commit {store.generation}, {store.rows} traces",
        "settings that are not the defaults": ", ".join(settings) or "none",
        "layers": describe_layers(results),
        "training and scoring": f"{seconds:.0f} s",
        "versions": ", ".join(find_versions()),
    }
    rows = [(key, clean_text(value, 2000)) for key, value in facts.items() if value]
    return Table(("", ""), rows, n_left=2)


def build_traces(traces: Mapping[str, str]) -> Table | None:
    """How the traces were made: name and text; None where nothing is recorded."""
    rows = [(name, clean_text(text, 600)) for name, text in traces.items()]
    return Table(("", ""), rows, n_left=2) if rows else None


def describe_layers(results: Results) -> str:
    """The layers that were read; empty for none."""
    layers = {name: format_layers(numbers) for name, numbers in results.layers.items()}
    text, *others = set(layers.values()) or [""]
    if others:
        text = "; ".join(f"{name} {numbers}" for name, numbers in layers.items())
    if not text:
        return ""
    if results.store.layers_recorded:
        return f"{text} (as the model numbers them)"
    return f"{text} (counted from 1: the store does not record their numbers)"


def changed_settings(config: Mapping[str, object]) -> list[str]:
    """Settings, as NAME = VALUE, that differ from their defaults, without the paths."""
    defaults = asdict(Config())
    changed = [
        f"{name} = {value}"
        for name, value in config.items()
        if name not in (*PATHS, OUTSIDE) and defaults[name] != value
    ]
    return changed + describe_outside(config_of_run(config, "settings").outside)


def find_versions() -> list[str]:
    versions = [f"Python {python_version()}"]
    for name in PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:  # a checkout that was not installed
            continue
    return versions


def build_split(results: Results) -> Table:
    """Rows, questions, hallucinations and base rate of each split."""
    rows = []
    for split, counts in results.split.parts.items():
        numbers = (counts.rows, counts.questions, counts.hallucinations)
        base_rate = short(counts.hallucinations / counts.rows)
        rows.append((split, *map(str, numbers), base_rate))
    return Table(("split", "traces", "questions", "hallucinations", "base rate"), rows)


def build_metrics(results: Results, *, more: bool = False) -> Table:
    """Test metrics, a line per method; with `more` those for which a terminal has no room.

    Of several splits they are means.
    """
    entries = results.shown.entries
    metrics, groups = by_kind(results, lambda name: entries[name].test)
    columns = {
        header: key
        for header, key in (METRICS | (MORE_METRICS if more else {})).items()
        if key not in OPTIONAL or any(getattr(one, key) is not None for one in metrics.values())
    }
    # a method that may rank as a constant does may be calibrated, but is of no use
    useful = {name for name, one in metrics.items() if one.beats_chance}
    useful -= {name for name, entry in entries.items() if entry.control}
    best = find_best(columns, [metrics[name] if name in useful else None for name in metrics])
    return build_numbers(metrics, columns, groups, best, intervals=("auroc",))


def build_grouped(results: Results, columns: Mapping[str, str]) -> Table:
    """Metrics on test of the methods that rank at all, by kind."""
    tested = {name: entry.test for name, entry in results.shown.entries.items()}
    metrics, groups = by_kind(results, lambda name: tested[name] if tested[name].ranks else None)
    return build_numbers(metrics, columns, groups)


def by_kind(
    results: Results, select: Callable[[str], Record | None]
) -> tuple[dict[str, Record], dict[int, str]]:
    """What is shown of each method, None for nothing, by kind; and the row where a kind begins."""
    shown: dict[str, Record] = {}
    groups = {}
    for kind, names in find_kinds(results).items():
        found = {name: one for name in names if (one := select(name)) is not None}
        if found:
            groups[len(shown)] = kind
        shown |= found
    return shown, groups


def build_numbers(
    records: Mapping[str, object],
    columns: Mapping[str, str],
    groups: Mapping[int, str] | None = None,
    best: frozenset[tuple[int, int]] = frozenset(),
    *,
    corner: str = "",
    intervals: Collection[str] | None = None,
) -> Table:
    """A line per record with some of its numbers, and their 95% intervals, or those of some."""
    rows = [
        (clean_text(name), *(number_cell(one, key, intervals) for key in columns.values()))
        for name, one in records.items()
    ]
    return Table((corner, *columns), rows, groups=groups or {}, best=best)


def number_cell(record: object, key: str, intervals: Collection[str] | None) -> str:
    number, interval = getattr(record, key), getattr(record, f"{key}_ci", None)
    if interval and (intervals is None or key in intervals):
        return with_interval(number, interval)
    if number is None:
        return "" if key in OPTIONAL else "–"
    return FORMATS.get(key, short)(number)


def build_label_noise(results: Results) -> Table | None:
    """How far the AUROC of each method can move; None where it was not asked for."""
    noise = results.label_noise
    if noise is None:
        return None
    columns = {"true labels": "corrected", "least": "low", "largest": "high"}
    if noise.agreement is not None:
        columns["second grader"] = "second"
    return build_numbers(noise.auroc, columns, corner="AUROC")


def find_best(
    columns: Mapping[str, str], records: Sequence[object | None]
) -> frozenset[tuple[int, int]]:
    """Places (row, column) of the best number of each column as it is shown.

    A record that is None may not be the best. There is none where fewer than two numbers are.
    """
    best = set()
    for column, (header, key) in enumerate(columns.items(), start=1):
        sign = {"sd": 0, **dict.fromkeys(LESS_IS_BETTER, -1)}.get(header, 1)
        numbers = [getattr(record, key, None) for record in records]
        shown = {
            row: sign * round(number, 3)
            for row, number in enumerate(numbers)
            if sign and number is not None and math.isfinite(number)
        }
        if len(shown) > 1:
            highest = max(shown.values())
            best |= {(row, column) for row, number in shown.items() if number == highest}
    return frozenset(best)


def build_transfer(results: Results, names: Collection[str] = ()) -> Table:
    """AUROC on each value that was left out, beside in-domain: a line per method, or per name.

    The in-domain AUROC and the difference are of the traces in domain alone.
    """
    rows: list[tuple[str, ...]] = []
    groups = {}
    for one in results.transfer or ():
        counts = f"{one.test.rows} traces, {one.rows_in_domain} of them in domain"
        groups[len(rows)] = f"{clean_text(one.value)} ({counts})"
        rows += [
            (
                name,
                with_interval(found.auroc, found.auroc_ci),
                with_interval(found.in_domain_auroc, found.in_domain_auroc_ci),
                with_interval(found.difference, found.difference_ci),
            )
            for name, found in one.methods.items()
            if not names or name in names
        ]
    header = ("tested on", "left out [95%]", "in domain [95%]", "difference [95%]")
    return Table(header, rows, groups=groups)


def build_tokens(results: Results) -> Table | None:
    """Metrics of tokens on test, a line per method that scores them; None without labels."""
    found = {name: entry.tokens for name, entry in results.entries.items()}
    judged = {name: one for name, one in found.items() if one and one.auroc is not None}
    tokens, groups = by_kind(results, judged.get)
    best = find_best(TOKEN_METRICS, list(tokens.values()))
    return build_numbers(tokens, TOKEN_METRICS, groups, best) if tokens else None


def build_fields(results: Results) -> Table | None:
    """The fields of the control that reads them; None where there is none."""
    rows = [
        (clean_text(name), short(area))
        for entry in results.entries.values()
        for name, area in (entry.fields or {}).items()
    ]
    return Table(("field", "AUROC by itself"), rows) if rows else None


def build_costs(results: Results) -> Table:
    """What each method costs: to train, and to score a trace."""
    entries = results.shown.entries
    costs, groups = by_kind(results, lambda name: entries[name].costs)
    return build_numbers(costs, COSTS, groups)


def build_sensitivity(cuts: Sequence[Cut]) -> Table:
    """Test AUROCs for labels of other thresholds of the score, a column per threshold."""
    header = ("hallucination if the score is below", *(f"{cut.threshold:g}" for cut in cuts))
    rows = [
        ("traces", *(str(cut.rows) for cut in cuts)),
        ("hallucinations", *(str(cut.hallucinations) for cut in cuts)),
    ]
    rows += [(name, *(short(cut.auroc[name]) for cut in cuts)) for name in cuts[0].auroc]
    return Table(header, rows)


def build_mistakes(evidence: Evidence, name: str, n: int = 20) -> Table | None:
    """The surest mistakes of a method with their trace ids, the texts that the store has, and the
    commands that open them; None where there is none."""
    mistakes = find_mistakes(evidence, name, n)
    if not mistakes:
        return None
    texts = evidence.texts([mistake.position for mistake in mistakes])
    rows = []
    commands = {}
    traces = {}
    for i, mistake in enumerate(mistakes):
        trace_id = evidence.frame.test.trace_ids[mistake.position]
        shown = [clean_text(column[i]) for column in texts.values()]
        rows.append((clean_text(trace_id), LABELS[mistake.label], short(mistake.score), *shown))
        found = evidence.results.store.find(trace_id)
        if found is None:
            continue
        if len(evidence.results.store.paths) == 1:
            traces[i] = quote(trace_id, safe="")
        command = evidence.directory and view_command(*found, evidence.directory)
        if command:
            commands[i] = command
    header = ("trace", "label", "score", *texts)
    return Table(header, rows, n_left=3 + len(texts), commands=commands, traces=traces)


def view_command(store: str, trace_id: str, run: Path) -> str | None:
    """The shell command that opens a trace beside the scores of a run.

    It is quoted for a POSIX shell; the trace id is not trusted. None where a path or the id has
    characters that nobody sees: a command that is pasted must be the one that was read.
    """
    where = str(run.resolve())
    is_seen = all(clean_text(text, 8 * MAX_ID) == text for text in (store, where))
    if not is_seen or clean_text(trace_id, MAX_ID) != trace_id:
        return None
    # joined by =, an id that begins with - is no option
    return shlex.join(
        ["python", "-m", "store", "view", store, "--run", where, f"--trace={trace_id}"]
    )


def build_comparisons(comparisons: Sequence[PairedTest[str]]) -> Table:
    """Paired tests of one split, or of several, a line per pair; a control is marked."""
    rows = [
        (test.a, f"{test.b} (control)" if test.control else test.b, *comparison_cells(test))
        for test in comparisons
    ]
    if any(test.differences for test in comparisons):
        columns = ("mean difference of AUROC [95%]", "in the splits", "p", "p Holm")
    else:
        columns = ("difference of AUROC [95%]", "p bootstrap", "p DeLong", "p Holm")
    return Table(("detector", "against", *columns), rows, n_left=2)


def comparison_cells(test: PairedTest[Key]) -> list[str]:
    """A difference with its interval, and p values; of several splits the least and the largest."""
    difference = with_interval(test.difference, test.ci)
    if not test.differences:
        return [difference, p_value(test), short_p(test.p_delong), short_p(test.p_holm)]
    between = f"{short(min(test.differences))} to {short(max(test.differences))}"
    return [difference, between, short_p(test.p), short_p(test.p_holm)]
