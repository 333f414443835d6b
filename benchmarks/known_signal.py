"""Who finds a signal that is known to be there, and who finds one where there is none?

Each store has noise in all columns and one planted signal (`benchmarks.signals`). Methods are
trained by `python -m train` with its defaults. A method that should find the signal has at least
the AUROC of the reference, a small model that knows where to look, but for .02; one that cannot is
within three standard deviations of chance (Mann-Whitney, no ties). AUROC is that of the 1,000 test
traces, of `duplicates` of the test part of the default split.

    python -m benchmarks.known_signal --stores order,null --methods state_sequence,halunet
"""

import io
import json
import math
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.data import make_store
from benchmarks.harness import parser, run, show
from benchmarks.program import fail, needs_extra
from benchmarks.signals import SIGNALS, Signal, Trace, rows_of
from benchmarks.tables import finish
from models import DETECTORS, METHODS, PROBES
from store import Column, TraceStore
from store.traces.columns import TRACE_COLUMNS

with needs_extra("train"):
    from train.commands.main import main as command

NEAR = 0.02  # of the reference's AUROC
N_DEVIATIONS = 3
MISSED = "NO"


def main(args: Namespace) -> None:
    """A row for each store and method."""
    rows = []
    for name in named(args.stores, SIGNALS):
        rows += judge_store(name, SIGNALS[name], args)
    named_by = ("store", "method")
    finish("known_signal", args.results, rows, "auroc", main="auroc", named_by=named_by)
    wrong = [f"{row['store']}: {row['method']}" for row in rows if row["as_expected"] == MISSED]
    print(f"{len(rows) - len(wrong)} of {len(rows)} as expected; not: {', '.join(wrong) or 'none'}")


def named(text: str, choices: Sequence[str]) -> list[str]:
    """The names in a list; all of an empty one."""
    names = text.split(",") if text else list(choices)
    for name in names:
        if name not in choices:
            fail(f"expected names of {', '.join(choices)}, found {name!r}")
    return names


def judge_store(name: str, signal: Signal, args: Namespace) -> Iterator[dict]:
    """Train what is asked for on one store, and compare it with the reference."""
    methods = named(args.methods, list(METHODS)) if args.methods else signal.methods
    show(f"{name}: making the store")
    store = open_signal(args.dir / f"{name}.zarr", signal)
    reference = None
    if signal.reference is not None:
        show(f"{name}: reference")
        reference = score_reference(signal)
    start = time.perf_counter()
    show(f"{name}: {', '.join(methods)}")
    found = train(store, name, signal, methods, args)
    seconds = round(time.perf_counter() - start)
    for method in methods:
        entry = found["models" if method in found["models"] else "baselines"][method]
        label = {"store": name, "method": method, "seconds": seconds}
        counts = found["split"]["test"]
        yield label | verdict(entry["test"]["auroc"], counts, reference, method, signal)


def verdict(
    auroc: float, counts: dict, reference: float | None, method: str, signal: Signal
) -> dict:
    """What was expected of a method, and whether it is so; nothing of one that is not listed."""
    n_wrong, n_right = counts["hallucinations"], counts["rows"] - counts["hallucinations"]
    deviation = math.sqrt((n_wrong + n_right + 1) / (12 * n_wrong * n_right))
    most = 0.5 + N_DEVIATIONS * deviation
    expected, is_so = "", None
    if method in signal.blind:
        expected, is_so = f"chance, at most {most:.3f}", abs(auroc - 0.5) <= most - 0.5
    elif reference is not None and method in signal.finds:
        least = reference - NEAR
        expected, is_so = f"at least {least:.3f}", auroc >= least
    return {
        "auroc": round(auroc, 3),
        "reference": "" if reference is None else round(reference, 3),
        "expected": expected,
        "as_expected": {True: "yes", False: MISSED, None: ""}[is_so],
    }


def open_signal(path: Path, signal: Signal) -> TraceStore:
    """The store, made unless it is there; its columns are those of traces."""
    _, trace = next(rows_of(signal, seed=0))
    sizes = {"candidates": 4}
    if "hidden_states" in trace:
        sizes |= dict(zip(("layers", "heads"), trace["attn_diag"].shape[1:], strict=True))
    sizes |= dict(zip(("layers", "hidden"), trace["hs_last"].shape, strict=True))
    columns = {
        name: TRACE_COLUMNS[name].stored(sizes) if name in TRACE_COLUMNS else Column("utf8")
        for name in trace
    }

    def rows() -> Iterator[tuple[str, dict]]:
        for trace_id, values in rows_of(signal, seed=0):
            yield trace_id, {name: cast(value, columns[name]) for name, value in values.items()}

    return make_store(path, columns, rows)


def cast(value: Any, column: Column) -> Any:
    """A value in the type of its column."""
    return value if column.dtype == "utf8" else np.asarray(value).astype(column.dtype)


def score_reference(signal: Signal) -> float:
    """AUROC on test of the model that knows where the signal is, trained on train."""
    traces: dict[str, list[Trace]] = {"train": [], "val": [], "test": []}
    for _, trace in rows_of(signal, seed=0):
        traces[trace["split"]].append(trace)
    assert signal.reference is not None
    scores = signal.reference(traces["train"], traces["test"])
    return float(roc_auc_score([one["label"] for one in traces["test"]], scores))


def train(
    store: TraceStore, name: str, signal: Signal, methods: Sequence[str], args: Namespace
) -> dict:
    """The results of `python -m train`, whose output is kept back unless it fails."""
    models = [one for one in methods if one in {*DETECTORS, *PROBES}] or ["logreg_pca"]
    out = args.dir / f"run-{name}-{time.time_ns()}"
    argv = ["--store", str(store.path), "--output-dir", str(out), "--models", ",".join(models)]
    argv += ["--seeds", str(args.seeds), "--force-cpu"]
    if signal.n_copies == 1:  # the copies of a question are to cross a split that knows ids alone
        argv += ["--split", "split"]
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        status = command([*argv, *args.train.split()])
    if status:
        fail(f"python -m train {' '.join(argv)}: {said.getvalue()}")
    found: dict = json.loads((out / "results.json").read_text())
    return found


OPTIONS = {
    "--stores": ("", f"separated by commas, of {', '.join(SIGNALS)}; all of them if empty"),
    "--methods": ("", "any that the store has columns for; those with an expectation by default"),
    "--seeds": (1, "trainings of each detector"),
    "--train": ("", "more flags of python -m train, as one text"),
}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=0, epochs=1, options=OPTIONS))
