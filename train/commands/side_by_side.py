"""Finished runs side by side: AUROCs and paired tests on the rows that all of them were tested on.

Rows are joined by trace id, and count only where they are in the test split of every run. Nothing is
trained.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from store.format.origin import find_difference
from train.errors import DataError
from train.evaluate.metrics import auroc, bootstrap_auroc, same_ranking
from train.evaluate.paired_tests import compare_pairs
from train.files import replace_file
from train.report.markdown import escape, format_table
from train.report.table import Table, clean_text, print_terminal, short, short_p, with_interval
from train.run.results import FinishedRun

__all__ = ["Common", "compare_runs", "find_common", "name_runs", "print_comparison", "write_output"]


Pair = tuple[tuple[str, str], tuple[str, str]]  # (run, detector or baseline) of both


@dataclass(frozen=True)
class Common:
    """The rows that are in the test split of every run.

    Attributes
    ----------
    labels : int64 (n,)
        1 and 0, the same in all runs.
    questions : int64 (n,)
        Equal for rows of the same question.
    scores : dict
        (name of run, name of detector or baseline) -> float64 (n,).
    n_left_out : int
        Rows that are in the test split of some run only.
    n_trained : int
        How many of those are in the train split of another.
    """

    labels: NDArray[np.int64]
    questions: NDArray[np.int64]
    scores: dict[tuple[str, str], NDArray[np.float64]]
    n_left_out: int
    n_trained: int


def name_runs(directories: list[Path]) -> list[str]:
    """A name for each run: its directory's, where several have that the path as given, and a number
    if that fails."""
    names = [clean_text(path.resolve().name) for path in directories]
    names = [
        clean_text(str(path)) if names.count(name) > 1 else name
        for path, name in zip(directories, names, strict=True)
    ]
    for i, name in enumerate(names):
        earlier = names[:i].count(name)
        if earlier:
            names[i] = f"{name} ({earlier + 1})"
    return (
        names
        if len(set(names)) == len(names)
        else [f"{i}: {name}" for i, name in enumerate(names, 1)]
    )


def compare_runs(runs: dict[str, FinishedRun]) -> dict[str, Any]:
    """Compare runs by name, JSON-able: `rows`, `runs` with every AUROC on the common rows, and
    `comparisons`.

    Raises
    ------
    DataError
        If the runs disagree on a label or a question, or have no common rows of both classes.
    """
    common = find_common(runs)
    copies = find_copies(runs, common)
    seed = next(iter(runs.values())).seed
    n = {"rows": len(common.labels), "questions": len(np.unique(common.questions))}
    return {
        **n,
        "hallucinations": int(common.labels.sum()),
        "different_models": differ_in_origin(runs),
        "left_out": common.n_left_out,
        "left_out_trained": common.n_trained,
        "runs": {
            name: {
                "directory": str(run.directory),
                "best": find_best(run),
                "auroc": score_run(name, run, common, seed),
                "same_as": {model: first for (one, model), first in copies.items() if one == name},
            }
            for name, run in runs.items()
        },
        "comparisons": compare_models(runs, common, seed),
    }


def differ_in_origin(runs: dict[str, FinishedRun]) -> bool:
    """Whether two runs read traces whose records of model, layers or prompts contradict each
    other."""
    pairs = combinations(runs.values(), 2)
    return any(a.origins and find_difference(a.origins, one) for a, b in pairs for one in b.origins)


def score_run(name: str, run: FinishedRun, common: Common, seed: int) -> dict[str, dict[str, Any]]:
    """AUROC, interval and validation AUROC of each detector and baseline of a run."""
    found = {}
    for group in run.val_auroc.values():
        for model, val_auroc in group.items():
            scores = common.scores[name, model]
            interval = bootstrap_auroc(common.labels, scores, common.questions, seed)
            found[model] = {
                "auroc": auroc(common.labels, scores),
                "ci": list(interval),
                "val_auroc": val_auroc,
            }
    return found


def compare_models(runs: dict[str, FinishedRun], common: Common, seed: int) -> list[dict[str, Any]]:
    """Both paired tests of each pair, Holm's correction over all of them; detectors before
    baselines.

    Two that give the same scores, as most baselines of runs on one store do, are no hypothesis and
    count for none.

    Parameters
    ----------
    runs : by name
    common : their common rows
    seed : of the resampling

    Returns
    -------
    list of dict
        As `compare_pairs` has it, `a` and `b` being [run, detector or baseline], and `what` "best"
        or "same".
    """
    bests = {name: find_best(run) for name, run in runs.items()}
    chosen: dict[Pair, str] = {}
    for a, b in combinations(runs, 2):
        pairs: dict[Pair, str] = {((a, bests[a]), (b, bests[b])): "best"}
        for model in runs[a].scores:
            if model in runs[b].scores:
                pairs.setdefault(((a, model), (b, model)), "same")
        for pair, what in pairs.items():
            is_new = not any(same_hypothesis(pair, other, common) for other in chosen)
            if is_new and is_hypothesis(pair, common):
                chosen[pair] = what
    used = {key: common.scores[key][None] for pair in chosen for key in pair}
    found = compare_pairs(common.labels, used, list(chosen), common.questions, seed)
    tests = [
        {"what": what, **one, "a": list(one["a"]), "b": list(one["b"])}
        for what, one in zip(chosen.values(), found, strict=True)
    ]
    baselines = {name for run in runs.values() for name in run.val_auroc["baselines"]}
    return sorted(tests, key=lambda one: (one["what"] != "best", one["a"][1] in baselines))


def find_best(run: FinishedRun) -> str:
    """The detector with the best validation AUROC; the best baseline where there is no detector."""
    group = run.val_auroc["models"] or run.val_auroc["baselines"]
    return max(group, key=group.__getitem__)


def is_hypothesis(pair: Pair, common: Common) -> bool:
    """Whether there is something to test: scores that rank the rows in different ways."""
    one, other = (common.scores[key] for key in pair)
    return not same_ranking(one, other)


def same_hypothesis(pair: Pair, other: Pair, common: Common) -> bool:
    """Whether two pairs ask the same, as mean log-probability and perplexity do."""
    return pair == other or all(
        same_ranking(common.scores[a], common.scores[b]) for a, b in zip(pair, other, strict=True)
    )


def find_copies(runs: dict[str, FinishedRun], common: Common) -> dict[tuple[str, str], str]:
    """(run, name) -> the first run in which that name ranks the rows in the same way; not of the
    first itself."""
    copies: dict[tuple[str, str], str] = {}
    names = list(runs)
    for i, later in enumerate(names):
        for model in runs[later].scores:
            earlier = (name for name in names[:i] if model in runs[name].scores)
            same = (
                name
                for name in earlier
                if same_ranking(common.scores[name, model], common.scores[later, model])
            )
            first = next(same, None)
            if first is not None:
                copies[later, model] = first
    return copies


def find_common(runs: dict[str, FinishedRun]) -> Common:
    """Join the runs by trace id, in the order of the first one; raises DataError where they
    contradict each other."""
    where = {
        name: {trace_id: i for i, trace_id in enumerate(run.trace_ids)}
        for name, run in runs.items()
    }
    tested, trained = (
        {name: ids_of_split(run, split) for name, run in runs.items()}
        for split in ("test", "train")
    )
    in_some, in_all = set.union(*tested.values()), set.intersection(*tested.values())
    first_name, first = next(iter(runs.items()))
    ids = [trace_id for trace_id in first.trace_ids if trace_id in in_all]
    rows = {
        name: np.array([where[name][trace_id] for trace_id in ids], dtype=np.int64) for name in runs
    }
    left_out = in_some - in_all
    n_trained = len(left_out & set.union(*trained.values()))
    if not ids:
        raise DataError(
            f"{', '.join(runs)}: expected traces in the test split of every run, found none, but {n_trained} that one "
            "run was tested and another trained on; compare runs with the same --seed on the same store"
        )
    for name, run in runs.items():
        check_same(first_name, first, rows[first_name], name, run, rows[name])
        check_not_trained(name, run, {first.questions[i] for i in rows[first_name]})
    labels = first.labels[rows[first_name]]
    if not 0 < labels.sum() < len(labels):
        raise DataError(
            f"{', '.join(runs)}: expected both classes among the {len(labels)} common test traces, found "
            f"{labels.sum()} hallucinations; compare runs with the same --seed on the same store"
        )
    questions = np.unique([first.questions[i] for i in rows[first_name]], return_inverse=True)[1]
    scores = {
        (name, model): values[rows[name]]
        for name, run in runs.items()
        for model, values in run.scores.items()
    }
    return Common(labels, questions, scores, len(left_out), n_trained)


def ids_of_split(run: FinishedRun, split: str) -> set[str]:
    """Trace ids of one split of a run."""
    return {
        trace_id
        for trace_id, one in zip(run.trace_ids, run.row_splits, strict=True)
        if one == split
    }


def check_same(
    a_name: str,
    a: FinishedRun,
    a_rows: NDArray[np.int64],
    b_name: str,
    b: FinishedRun,
    b_rows: NDArray[np.int64],
) -> None:
    """Raise DataError unless two runs agree on the label and the question of each common row."""
    for i, j in zip(a_rows.tolist(), b_rows.tolist(), strict=True):
        for what, one, other in (
            ("label", a.labels, b.labels),
            ("question", a.questions, b.questions),
        ):
            if one[i] != other[j]:
                raise DataError(
                    f"trace {clean_text(a.trace_ids[i])!r}: expected one {what} in all runs, found "
                    f"{clean_text(str(one[i]))} in {a_name} and {clean_text(str(other[j]))} in {b_name}; "
                    "compare runs on the same store with the same labels"
                )


def check_not_trained(name: str, run: FinishedRun, questions: set[str]) -> None:
    """Raise DataError if a run was trained on a question of the common rows."""
    for trace_id, split, question in zip(run.trace_ids, run.row_splits, run.questions, strict=True):
        if split == "train" and question in questions:
            raise DataError(
                f"{name}: expected the questions of the common test traces to be new to every run, found trace "
                f"{clean_text(trace_id)!r} of question {clean_text(question)!r} in its train split; train again"
            )


def print_comparison(found: dict[str, Any], console: Console) -> None:
    """Print both tables."""
    areas = build_areas(found)
    firsts = [i for i, row in enumerate(areas.rows) if i and row[0]]
    console.print(describe_rows(found), highlight=False, markup=False)
    print_terminal(areas, console, "", firsts)
    if found["comparisons"]:
        print_terminal(
            build_tests(found), console, "paired tests of AUROC; * the best of either run"
        )


def describe_rows(found: dict[str, Any]) -> str:
    """What was compared, and what was left out."""
    text = (
        f"{found['rows']} traces of {found['questions']} questions, {found['hallucinations']} hallucinations, "
        "in the test split of every run"
    )
    if found["left_out"]:
        text += (
            f"; left out {found['left_out']} that are so in some runs only, "
            f"{found['left_out_trained']} of which another was trained on"
        )
    if found["different_models"]:
        text += "; WARNING: the runs read traces of different models, layers or prompts"
    return f"{text}; * is the best on validation"


def build_areas(found: dict[str, Any]) -> Table:
    """AUROC of each detector and baseline of each run; a run's name stands in its first line, a
    star at its best.

    What has the same scores in an earlier run is told there, and only counted here.
    """
    rows: list[tuple[str, ...]] = []
    for name, run in found["runs"].items():
        same = run["same_as"]
        shown = [model for model in run["auroc"] if model not in same or model == run["best"]]
        lines = [area_line(run, model) for model in shown]
        hidden = [same[model] for model in run["auroc"] if model not in shown]
        if hidden:
            first = ", ".join(clean_text(other) for other in dict.fromkeys(hidden))
            lines.append((f"({len(hidden)} with the scores of {first})", "", ""))
        rows += [("" if i else name, *line) for i, line in enumerate(lines)]
    return Table(("run", "", "AUROC [95%]", "val"), rows, n_left=2)


def area_line(run: dict[str, Any], model: str) -> tuple[str, str, str]:
    """A name, its AUROC on test and that on validation."""
    one = run["auroc"][model]
    star = " *" if model == run["best"] else ""
    return (
        clean_text(model) + star,
        with_interval(one["auroc"], one["ci"]),
        short(one["val_auroc"]),
    )


def build_tests(found: dict[str, Any]) -> Table:
    """Both paired tests, a line per pair."""
    rows = [
        (
            clean_text(f"{one['a'][0]} - {one['b'][0]}"),
            clean_text(name_pair(one)),
            with_interval(one["difference"], one["ci"]),
            *(short_p(one[key]) for key in ("p_bootstrap", "p_delong", "p_holm")),
        )
        for one in found["comparisons"]
    ]
    return Table(("runs", "of", "difference [95%]", "p boot", "DeLong", "Holm"), rows, n_left=2)


def name_pair(one: dict[str, Any]) -> str:
    """What two runs are compared by: one name, or the best of each."""
    a, b = one["a"][1], one["b"][1]
    return (a if a == b else f"{a} - {b}") + (" *" if one["what"] == "best" else "")


def write_output(path: Path, found: dict[str, Any]) -> None:
    """Write the comparison as Markdown or CSV, by the ending of the file's name."""
    text = format_markdown(found) if path.suffix == ".md" else format_csv(found)
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def format_markdown(found: dict[str, Any]) -> str:
    """Both tables."""
    parts = [
        "# Runs side by side",
        escape(describe_rows(found)) + ".",
        format_table(build_areas(found)),
    ]
    if found["comparisons"]:
        parts += ["## Paired tests of AUROC", format_table(build_tests(found))]
    return "\n\n".join(parts) + "\n"


def format_csv(found: dict[str, Any]) -> str:
    """One table of full precision: a line per AUROC, with one name, and a line per difference, with
    two."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    tests = ("p_bootstrap", "p_delong", "p_holm")
    writer.writerow(
        ["what", "run", "name", "other_run", "other_name", "value", "low", "high", *tests]
    )
    for name, run in found["runs"].items():
        for model, one in run["auroc"].items():
            writer.writerow(["auroc", name, model, "", "", one["auroc"], *one["ci"], "", "", ""])
    for one in found["comparisons"]:
        numbers = [one["difference"], *one["ci"], *(one[key] for key in tests)]
        writer.writerow([f"difference of {one['what']}", *one["a"], *one["b"], *numbers])
    return text.getvalue()
