"""Who finds a signal that is known to be there, and who finds one where there is none?

Each store has noise in all columns and one planted signal (`benchmarks.signals`). Each method is
searched, trained and scored as by `python -m train` with its defaults. The table has the AUROC on
the 1,000 test traces (of `duplicates` on the test part of the default split) and seconds of a core.

A method that should find the signal has at least the AUROC of the reference but for .02. The
reference is the likelihood ratio of the plant, so only chance can lift a method above it. One that
cannot find it is within chance: nothing that it reads tells the label, or how it reads it loses
that. The bound is that of Mann-Whitney without ties over questions, for all such methods of all
stores at once (Bonferroni): were all of them blind, one run in twenty would have one outside. Of
other methods, which read a part of the signal, the table just says what they have.

`--methods all` has every method whose columns a store has, without it only those that should find
its signal and some that should not. `--save` and `--output` replace the rows of these stores and
methods in the table that is there, and leave the others.

    python -m benchmarks.known_signal --stores order,null --methods state_sequence,halunet
"""

import math
import time
from argparse import Namespace
from collections.abc import Container, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from benchmarks.data import make_store
from benchmarks.harness import fail, parser, run, show
from benchmarks.signals import SIGNALS, Signal, rows_of, told_by
from benchmarks.tables import finish, read_table
from models import DETECTORS, METHODS, PROBES, find
from store import Column, TraceStore
from store.traces.columns import TRACE_COLUMNS
from train.config import parse_arguments
from train.evaluate.metrics import auroc
from train.fit.device import cpu_arithmetic, launched
from train.run.checkpoint import RunDirectory
from train.run.experiment import train_detectors
from train.run.jobs import Jobs
from train.run.plan import open_data
from train.run.progress import TrainingProgress
from train.run.trainer import Trainer

NEAR = 0.02  # of the reference's AUROC
SURE = 0.95  # that no blind method of any store is outside the bounds
REFERENCE = "reference"
ALL = "all"
UNEXPECTED = "NO"


class Task(NamedTuple):
    """A method on a store, or its reference."""

    store: str
    method: str
    seed: int  # of the data
    path: Path
    options: tuple[str, ...]  # of `python -m train`


def main(args: Namespace) -> None:
    """A row for each store and method."""
    tasks = [task for name in named(args.stores, SIGNALS) for task in tasks_of(name, args)]
    rows = {(row["store"], row["method"]): row for row in run_all(tasks, args.jobs)}
    table = judge(earlier_rows(args.output) | rows)
    finish("known_signal", args.output, table, "store", "method")
    if args.output is not None:
        draw(table, args.output / "known_signal.png")
    wrong = [
        f"{row['store']}: {row['method']}" for row in table if row["as_expected"] == UNEXPECTED
    ]
    judged = [row["as_expected"] for row in table if row["as_expected"]]
    n_missed = len(judged) - judged.count("yes") - len(wrong)
    print(f"{judged.count('yes')} of {len(judged)} as expected, {n_missed} known to miss; ", end="")
    print(f"not: {', '.join(wrong) or 'none'}")


def named(text: str, choices: Iterable[str]) -> list[str]:
    """The names in a list; all of an empty one."""
    names = text.split(",") if text else list(choices)
    for name in names:
        if name not in choices:
            fail(f"expected names of {', '.join(choices)}, found {name!r}")
    return names


def tasks_of(name: str, args: Namespace) -> list[Task]:
    """What is to be run on a store, which is made."""
    signal = SIGNALS[name]
    show(f"{name}: making the store")
    store = open_signal(args.dir / f"{name}-{args.seed}.zarr", signal, args.seed)
    options = ["--store", str(store.path), "--seeds", str(args.seeds), "--force-cpu"]
    if signal.n_copies == 1:  # the copies of a question are to cross a split that knows ids alone
        options += ["--split", "split"]
    options += args.train.split()
    methods = list(signal.methods)
    if args.methods == ALL:
        methods = [one for one in METHODS if one in methods or not is_blind(name, one)]
    elif args.methods:
        methods = named(args.methods, METHODS)
    methods = [one for one in methods if is_readable(one, store.schema.columns)]
    wanted = [REFERENCE, *methods] if signal.reference else methods
    return [Task(name, method, args.seed, store.path, tuple(options)) for method in wanted]


def is_readable(method: str, columns: Container[str]) -> bool:
    """Whether a store with these columns has what a method learns from."""
    return bool(find(method).columns) and all(name in columns for name in needed(method))


def needed(name: str) -> set[str]:
    """The columns that a method is trained on."""
    method = find(name)
    return {*method.columns, *method.targets, *getattr(method, "learns_from", ())}


def run_all(tasks: list[Task], n_jobs: int) -> Iterator[dict]:
    """The row of each task, as they end."""
    with ProcessPoolExecutor(n_jobs, mp_context=get_context("spawn")) as pool:
        pending = [pool.submit(run_task, task) for task in tasks]
        for number, future in enumerate(as_completed(pending), 1):
            row = future.result()
            show(f"{number} of {len(tasks)}: {row['store']}: {row['method']} {row['auroc']}")
            yield row


def run_task(task: Task) -> dict:
    """Train and score on one core."""
    start = time.process_time()
    with cpu_arithmetic(1):
        if task.method == REFERENCE:
            area, by_chance = score_reference(SIGNALS[task.store], task.seed), 0.0
        else:
            area, by_chance = score_method(task)
    return {
        "store": task.store,
        "method": task.method,
        "auroc": round(area, 4),
        "by_chance": round(by_chance, 4),
        "seconds": round(time.process_time() - start),
    }


def score_method(task: Task) -> tuple[float, float]:
    """The mean AUROC of the trainings on test, and its standard deviation by chance."""
    # of a method that learns nothing else the run of another has the settings
    models = task.method if task.method in {*DETECTORS, *PROBES} else "logreg_pca"
    config = parse_arguments([*task.options, "--models", models]).config
    data = open_data(config, [task.path]).splits[0]
    with launched(config) as fabric, TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder), id="")
        trainer = Trainer(directory, data, fabric, TrainingProgress(visible=False))
        if task.method in DETECTORS:
            scored = train_detectors(Jobs(trainer), [task.method])[task.method]
        else:
            scored = trainer.fit_probe(task.method)
    labels = data.splits.labels_of("test")
    areas = [auroc(labels, scores) for scores in scored.test]
    questions = data.splits.questions[data.splits.test]
    n_wrong, n_right = (len(np.unique(questions[labels == label])) for label in (1, 0))
    deviation = math.sqrt((n_wrong + n_right + 1) / (12 * n_wrong * n_right))
    return float(np.mean(areas)), deviation


def earlier_rows(results: Path | None) -> dict[tuple[str, str], dict]:
    """The rows of the table that is there, by store and method."""
    path = None if results is None else results / "known_signal.csv"
    if path is None or not path.exists():
        return {}
    numbers = {"auroc": float, "by_chance": float, "seconds": int}
    return {
        (row["store"], row["method"]): row
        | {name: of(row[name] or 0) for name, of in numbers.items()}
        for row in read_table(path).rows
    }


def judge(rows: Mapping[tuple[str, str], dict]) -> list[dict]:
    """The rows in the order of stores and methods, with what was expected and whether it is so."""
    methods = [REFERENCE, *METHODS]
    deviations = deviations_of_chance()
    return [
        rows[store, method] | expectation(rows, store, method, deviations)
        for store in SIGNALS
        for method in methods
        if (store, method) in rows
    ]


def expectation(
    rows: Mapping[tuple[str, str], dict], store: str, method: str, deviations: float
) -> dict:
    """What is expected of a method: nothing of one that may find a part of a signal."""
    area, signal = rows[store, method]["auroc"], SIGNALS[store]
    if method in signal.finds and (store, REFERENCE) in rows:
        least = rows[store, REFERENCE]["auroc"] - NEAR
        return expected("at least", least, area >= least, signal.misses.get(method))
    if method != REFERENCE and is_blind(store, method):
        most = deviations * rows[store, method]["by_chance"]
        return expected("chance, at most", 0.5 + most, abs(area - 0.5) <= most)
    return {"expected": "", "bound": "", "as_expected": ""}


def expected(what: str, bound: float, is_so: bool, reason: str | None = None) -> dict:
    """With a `reason`, it is known why it may not be so."""
    found = "yes" if is_so else f"missed: {reason}" if reason else UNEXPECTED
    return {"expected": what, "bound": f"{bound:.3f}", "as_expected": found}


def is_blind(store: str, method: str) -> bool:
    """Whether a method cannot find the signal of a store."""
    signal = SIGNALS[store]
    return method in signal.blind or told_by(signal).isdisjoint(needed(method))


def deviations_of_chance() -> float:
    """How many standard deviations from .5 none of the blind methods is, with 95%."""
    n_blind = sum(
        is_readable(method, columns_of(signal))
        for signal in SIGNALS.values()
        for method in signal.blind
    )
    return float(norm.isf((1 - SURE) / (2 * n_blind)))


def draw(table: list[dict], path: Path) -> None:
    """AUROC by store and method; what is not as expected is framed."""
    from matplotlib import pyplot as plt

    stores = [name for name in SIGNALS if any(row["store"] == name for row in table)]
    methods = [
        name for name in (REFERENCE, *METHODS) if any(row["method"] == name for row in table)
    ]
    areas = np.full((len(methods), len(stores)), np.nan)
    figure, axes = plt.subplots(figsize=(9, 2 + 0.24 * len(methods)), layout="constrained")
    for row in table:
        y, x = methods.index(row["method"]), stores.index(row["store"])
        areas[y, x] = row["auroc"]
        weight = "bold" if row["expected"] == "at least" else "normal"
        text = f"{row['auroc']:.3f}".lstrip("0")
        axes.text(x, y, text, ha="center", va="center", fontsize=7, fontweight=weight)
        if row["as_expected"] not in ("yes", ""):
            axes.add_patch(plt.Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, color="red"))
    axes.imshow(areas, cmap="RdBu", vmin=0, vmax=1, aspect="auto", alpha=0.6)
    axes.set_xticks(range(len(stores)), stores, rotation=30, ha="left", fontsize=8)
    axes.set_yticks(range(len(methods)), methods, fontsize=8)
    axes.xaxis.tick_top()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def open_signal(path: Path, signal: Signal, seed: int) -> TraceStore:
    """The store, made unless it is there."""

    def rows() -> Iterator[tuple[str, dict]]:
        for trace_id, values in rows_of(signal, seed):
            yield trace_id, {name: cast(value, columns[name]) for name, value in values.items()}

    columns = columns_of(signal)
    return make_store(path, columns, rows)


def columns_of(signal: Signal) -> dict[str, Column]:
    """The columns of a store, which are those of traces."""
    _, trace = next(rows_of(signal, seed=0))
    sizes = {"candidates": 4, "ends": 2}
    if "hidden_states" in trace:
        sizes |= dict(zip(("layers", "heads"), trace["attn_diag"].shape[1:], strict=True))
    sizes |= dict(zip(("layers", "hidden"), trace["hs_last"].shape, strict=True))
    return {
        name: TRACE_COLUMNS[name].stored(sizes) if name in TRACE_COLUMNS else Column("utf8")
        for name in trace
    }


def cast(value: Any, column: Column) -> Any:
    """A value in the type of its column."""
    return value if column.dtype == "utf8" else np.asarray(value).astype(column.dtype)


def score_reference(signal: Signal, seed: int) -> float:
    """AUROC on test of the likelihood ratio, of numbers that no store has rounded."""
    assert signal.reference is not None
    test = [trace for _, trace in rows_of(signal, seed) if trace["split"] == "test"]
    scores = [signal.reference(trace) for trace in test]
    return float(roc_auc_score([trace["label"] for trace in test], scores))


OPTIONS = {
    "--stores": ("", f"separated by commas, of {', '.join(SIGNALS)}; all of them if empty"),
    "--methods": ("", "separated by commas, or all: those that read what tells the label"),
    "--seeds": (1, "trainings of each detector"),
    "--seed": (0, "seed of the data"),
    "--jobs": (2, "processes, each on one core"),
    "--train": ("", "more flags of python -m train, as one text"),
}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=0, epochs=1, options=OPTIONS))
