"""Trainings beside each other: the same results, one line for what goes wrong, nobody left."""

import multiprocessing
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from runs import SMALL, call

from train import fit_detectors
from train.commands import main as cli
from train.errors import DataError, ResourceError
from train.evaluate.results import TrainingFacts
from train.run.trainer import Trainer

CLOCKS = ("seconds", "wait_seconds", "ms_per_trace")
QUICK = {"epochs": 1, "seeds": 1, "lstm_hidden": 8, "force_cpu": True, "tune": "none"}
NAMES = ["lstm_solo", "saplma", "logreg_pca", "mean_logprob", "answer_length"]


def facts_of(run):
    """What is known of each training, but for times."""
    return [
        [getattr(training, one.name) for one in fields(TrainingFacts) if one.name not in CLOCKS]
        for entry in run.results.models.values()
        for training in entry.runs or []
    ]


@pytest.mark.parametrize("n_jobs", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_they_change_no_bit(store_path, n_jobs):
    """Nor do searches, weights that are kept in memory, and what is fitted beside them."""
    names = ",".join(NAMES)
    settings = QUICK | {"seeds": 2, "tune": "small"}
    alone = fit_detectors(store_path, only=names, jobs=1, **settings)
    beside = fit_detectors(store_path, only=names, jobs=n_jobs, **settings)
    assert facts_of(beside) == facts_of(alone)
    assert beside.results.comparisons == alone.results.comparisons
    expected = alone.score(store_path)
    for name, scores in beside.score(store_path).items():
        np.testing.assert_array_equal(scores, expected[name])
    assert not multiprocessing.active_children()


def test_a_mistake_of_one_ends_all(store_path, tmp_path, monkeypatch, capsys):
    """The others stop at once: what they train would take hours."""
    train_once = Trainer.train_once

    def failing(trainer, name, *rest):
        if name == "saplma":
            raise DataError("a trace has no state")
        return train_once(trainer, name, *rest)

    monkeypatch.setattr(Trainer, "train_once", failing)
    line = ["--store", store_path, "--output-dir", tmp_path, *SMALL, "--jobs=2"]
    forever = ["--only=lstm_solo,saplma", "--epochs=5000", "--patience=5000"]
    status, _, lines = call(capsys, *line, *forever)
    assert status == 2
    assert lines[-1].endswith("train: a trace has no state")
    assert not multiprocessing.active_children()


def test_one_that_is_killed_is_said(store_path, monkeypatch):
    """As the system does where memory runs out."""
    monkeypatch.setattr(Trainer, "train_once", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    message = r"ended, with status -9; --jobs 1 shows why, and needs less mem"
    with pytest.raises(ResourceError, match=message):
        fit_detectors(store_path, only="lstm_solo,saplma", jobs=2, **QUICK)
    assert not multiprocessing.active_children()


def test_an_error_of_ours_is_told_with_its_place(store_path, monkeypatch):
    """Also where a training starts processes, as one whose detector reads with workers of its own:
    those end."""

    def train_once(*_):
        helper = multiprocessing.get_context("fork").Process(target=str)
        helper.start()
        helper.join()
        raise KeyError(f"status {helper.exitcode}")

    monkeypatch.setattr(Trainer, "train_once", train_once)
    with pytest.raises(RuntimeError, match=r"in train_once(.|\n)*KeyError: 'status 0'"):
        fit_detectors(store_path, only="lstm_solo,saplma", jobs=2, **QUICK)


class Unreachable(OSError):
    """Of a library whose errors are made of other things than a text."""

    def __init__(self, host, port):
        super().__init__(f"{host}:{port} does not answer")


class NoState(DataError):
    def __init__(self, trace, column):
        super().__init__(f"trace {trace} has no {column}")


@pytest.mark.parametrize(
    "error, n_jobs",
    [(Unreachable("host", 80), 1), (Unreachable("host", 80), 2), (NoState("t1", "hs_last"), 2)],
)
def test_an_error_of_a_library_says_its_text(
    store_path, tmp_path, monkeypatch, capsys, error, n_jobs
):
    """Also one that cannot be pickled and read again."""

    def train_once(*_):
        raise error

    monkeypatch.setattr(Trainer, "train_once", train_once)
    monkeypatch.setattr(cli, "discard_output", lambda: None)  # that of the tests is no file
    line = ["--store", store_path, "--output-dir", tmp_path, *SMALL, f"--jobs={n_jobs}"]
    status, _, lines = call(capsys, *line, "--only=lstm_solo,saplma")
    assert (status, lines[-1].rpartition("train: ")[2]) == (2, str(error))


@pytest.mark.parametrize("code, n_jobs", [(None, 1), (2, 2), ("no", 2)])
def test_a_method_that_exits_is_named(store_path, tmp_path, monkeypatch, capsys, code, n_jobs):
    """It would end the run as if that were done, without a word."""
    monkeypatch.setattr(Trainer, "train_once", lambda *_: sys.exit(code))
    line = ["--store", store_path, "--output-dir", tmp_path, *SMALL, f"--jobs={n_jobs}"]
    status, _, lines = call(capsys, *line, "--only=lstm_solo,saplma")
    assert status == 2
    assert f"a method has called exit({code!r})" in lines[-1]
    assert f"{Path(__file__).name}, line" in lines[-1]


def test_a_file_that_a_killed_process_wrote_is_removed(store_path, tmp_path):
    """By the next run into the directory."""
    names = (".run.json.7.tmp", ".saplma-seed0.pt.12.tmp", "figures/.roc.png.7.tmp")
    others = (".notes.tmp", "figures/mine.tmp")
    for name in (*names, *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    fit_detectors(store_path, only="mean_logprob,saplma", output_dir=str(tmp_path), **QUICK)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.tmp")} == {*others}
