"""Runs for tests: the settings of small ones, and finished ones with drawn scores."""

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models import CONTROLS
from train.commands.main import main
from train.evaluate.frame import Frame
from train.evaluate.paired_tests import compare_pairs
from train.evaluate.results import Counts, Entry, Metrics, Results, SplitCounts, StoreRecord
from train.files import read_json
from train.run.results import FinishedRun

SMALL = ["--seeds=1", "--epochs=2", "--gnn-hidden=8", "--latent-dim=8", "--lstm-hidden=8"]
SMALL += ["--force-cpu", "--tune=none"]


def train(store, out, *flags):
    """Train small detectors; give the results."""
    assert main(["--store", str(store), "--output-dir", str(out), *SMALL, *flags]) == 0
    return read_json(out / "results.json")


def call(capsys, *argv):
    """Exit status, standard output and the lines of stderr of a command."""
    capsys.readouterr()
    status = main([str(one) for one in argv])
    captured = capsys.readouterr()
    return status, captured.out, captured.err.splitlines()


def fail(capsys, *argv):
    """The one line of a command that must fail."""
    status, out, (line,) = call(capsys, *argv)
    assert (status, out) == (2, "")
    return line


def predict(run, store, *flags):
    return ["predict", "--run", run, "--store", store, "--force-cpu", *flags]


def read_csv(text):
    """Trace id -> its line."""
    return {line["trace_id"]: line for line in csv.DictReader(io.StringIO(text))}


def read_scores(run):
    """The lines of scores.csv in a run's directory."""
    return [*read_csv((run / "scores.csv").read_text()).values()]


def copy_run(run, out, /, **changes):
    """Copy what predict and compare read of a run, with changes of its results."""
    for file in run.glob("*.pt"):
        shutil.copy(file, out)
    for file in ("scores.csv", "questions.csv"):
        shutil.copy(run / file, out)
    results = read_json(run / "results.json") | changes
    (out / "results.json").write_text(json.dumps(results))
    return out


N = 120
LABELS = np.random.default_rng(0).integers(0, 2, N)
SPLITS = np.repeat(["train", "val", "test"], N // 3)


def as_texts(values):
    return np.array(list(values), dtype=object)


def make_frame(labels, scores):
    """Rows of test, of a question each, with the scores of one training of the method x."""
    ids = as_texts(f"{i:06}" for i in range(len(labels)))
    return Frame(ids, as_texts(["test"] * len(labels)), labels, ids, {"x": scores[None]})


def make_entry(val=0.5, **facts):
    """An entry with this AUROC on validation."""
    costs = {"seconds": 1.0, "parameters": 1}
    return Entry(val=Metrics(val), test=Metrics(0.5), **costs | facts)


def make_entries(areas):
    """An entry for each AUROC on validation, by name."""
    return {name: make_entry(area, control=name in CONTROLS) for name, area in areas.items()}


def make_results(models=None, baselines=None, test=None, **fields):
    """Results of these entries; all else that is not given is left empty."""
    counts = Counts(rows=400, questions=400, hallucinations=200)
    train, val = replace(counts, rows=25), replace(counts, rows=75)
    empty = dict.fromkeys(("verdict", "strata", "explained"))
    parts = {
        "run": "0123",
        "split": SplitCounts(0, "question_id", 0, train, val, test or counts, 0),
        "store": StoreRecord("traces.zarr", "ab", 1, 1, [], True),
        "models": models or {},
        "baselines": baselines or {},
        "comparisons": [],
        "remarks": [],
        "layers": {},
        "config": {"margin": 0.01},
    }
    return Results(**empty | parts | fields)


def make_run(
    models,
    best=None,
    splits=SPLITS,
    labels=LABELS,
    questions=None,
    ids=None,
    baselines=(),
    **fields,
):
    """A run whose scores of each of `models` are drawn with that seed."""
    scores = {}
    for name, seed in models.items():
        values = np.clip(0.3 * labels + 0.7 * np.random.default_rng(seed).random(len(labels)), 0, 1)
        scores[name] = np.where(np.asarray(splits) == "train", np.nan, values)[None]
    entries = make_entries({name: 0.9 if name == best else 0.8 for name in models})
    beside = {name: entries.pop(name) for name in models if name in baselines}
    frame = Frame(
        as_texts([f"t{i}" for i in range(len(labels))] if ids is None else ids),
        as_texts(splits),
        np.asarray(labels),
        as_texts([f"q{i // 2}" for i in range(len(labels))] if questions is None else questions),
        scores,
    )
    return FinishedRun(Path("nowhere"), make_results(entries, beside, **fields), frame)


class BootstrapTest(NamedTuple):
    difference: float
    low: float
    high: float
    p: float


def paired_bootstrap(labels, a, b, questions, seed):
    """The bootstrap of a comparison of two alone."""
    scores = {"a": np.atleast_2d(a), "b": np.atleast_2d(b)}
    (test,) = compare_pairs(labels, scores, [("a", "b")], questions, seed)
    return BootstrapTest(test.difference, *test.ci, test.p_bootstrap)
