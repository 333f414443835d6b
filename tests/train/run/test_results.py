"""Reading back a run: what it wrote comes back, and what is not as it wrote it is one line that
names the place."""

import csv
import json
import math

import numpy as np
import pytest
from runs import make_entries, make_results
from small import complaint

from train.errors import DataError
from train.records import as_json
from train.run.results import KEYS, read_run


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of its two files, to be tampered with."""
    for name in ("results.json", "scores.csv"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    return tmp_path


def test_what_was_written_comes_back(finished, labels):
    """Ids, splits, labels, questions, scores, a column a training, and all results."""
    run = read_run(finished)
    frame = run.frame
    with (finished / "scores.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert tuple(lines[0])[:4] == KEYS
    assert frame.trace_ids.tolist() == [line["trace_id"] for line in lines]
    assert frame.splits.tolist() == [line["split"] for line in lines]
    assert frame.labels.tolist() == [labels[int(trace_id[1:])] for trace_id in frame.trace_ids]
    assert frame.question_ids.tolist() == [f"q{int(one[1:]) // 2}" for one in frame.trace_ids]
    for name, runs in frame.scores.items():
        columns = [name] if len(runs) == 1 else [f"{name}-seed{seed}" for seed in (1, 2)]
        for column, scores in zip(columns, runs, strict=True):
            assert np.array_equal(np.isnan(scores), frame.splits == "train")
            assert [str(score) for score in scores if score == score] == [
                line[column] for line in lines if line[column]
            ]
    assert as_json(run.results) == json.loads((finished / "results.json").read_text())
    assert frame.seed == 1


def results(change):
    """Tamper with results.json."""

    def tamper(path):
        content = json.loads((path / "results.json").read_text())
        change(content)
        (path / "results.json").write_text(json.dumps(content))

    return tamper


def scores(change):
    """Tamper with the lines of scores.csv, a list of lists; the first is the header."""

    def tamper(path):
        with (path / "scores.csv").open(newline="") as file:
            lines = list(csv.reader(file))
        change(lines)
        with (path / "scores.csv").open("w", newline="") as file:
            csv.writer(file).writerows(lines)

    return tamper


def write(name, content):
    return lambda path: (path / name).write_bytes(content)


def remove(name):
    return lambda path: (path / name).unlink()


def set_cell(line, column, text):
    return scores(lambda lines: lines[line].__setitem__(lines[0].index(column), text))


def one_class(lines, split):
    for line in lines[1:]:
        if line[1] == split:
            line[2] = "1"


def damage(**content):
    return results(lambda whole: whole.update(content))


SEED = "split.seed: an integer of at least 0"
TAMPERED = {
    "no results": (remove("results.json"), "results.json: expected a file of a finished run"),
    "no scores": (remove("scores.csv"), "scores.csv: expected a file of a finished run"),
    "a directory": (
        lambda path: ((path / "scores.csv").unlink(), (path / "scores.csv").mkdir()),
        "scores.csv: expected a file of a finished run, found something else",
    ),
    "no JSON": (write("results.json", b"{"), "expected a JSON object of at most"),
    "nested": (write("results.json", b"[" * 100_000), "found: maximum recursion depth"),
    "NaN": (results(lambda r: r["split"].update(seed=math.nan)), f"{SEED}, found nan"),
    "no models": (results(lambda r: r.pop("models")), "expected models: an object, found nothing"),
    "nothing": (damage(models={}, baselines={}), "a detector or a baseline, found nothing"),
    "a great AUROC": (
        results(lambda r: r["models"]["lstm_solo"]["val"].update(auroc=2)),
        "models.lstm_solo.val.auroc: a number from 0 to 1, found 2",
    ),
    "a name twice": (
        results(lambda r: r["baselines"].update(lstm_solo=r["models"]["lstm_solo"])),
        "one entry for each name, found two of 'lstm_solo'",
    ),
    "another AUROC": (
        results(lambda r: r["models"]["lstm_solo"]["test"].update(auroc=0.123)),
        "lstm_solo: scores of AUROC 0.123, as in results.json",
    ),
    "a model more": (
        results(lambda r: r["models"].update(new=r["models"]["lstm_solo"])),
        "found no column 'new'",
    ),
    "a model less": (results(lambda r: r["models"].clear()), "found the columns trace_id"),
    "empty scores": (write("scores.csv", b""), "found no column 'trace_id'"),
    "only a header": (
        scores(lambda lines: lines.__delitem__(slice(1, None))),
        "both classes in the val split, found 0 hallucinations of 0 traces",
    ),
    "a class on val": (
        scores(lambda lines: one_class(lines, "val")),
        "both classes in the val split",
    ),
    "a layer of text": (
        damage(layers={"hs_last": ["1"]}),
        "expected layers.hs_last[0]: an integer, found '1'",
    ),
    "a short line": (
        scores(lambda lines: lines[3].pop()),
        "cells as in the header, found ",
    ),
    "a trace twice": (scores(lambda lines: lines.insert(2, lines[1])), "each trace once, found 't"),
    "a split": (set_cell(2, "split", "exam"), "a split of train, val, test, found 'exam'"),
    "a label": (set_cell(2, "label", "2"), "a label of 0, 1, found '2'"),
    "a train score": (
        set_cell(1, "mean_logprob", "0.5"),
        "column 'mean_logprob', line 2: no score of a row that was trained on",
    ),
    "a score of text": (set_cell(-1, "mean_logprob", "good"), "a finite number, found 'good'"),
    "a quote": (write("scores.csv", b'"trace_id'), "line 1: expected CSV, found: unexpected end"),
}


@pytest.mark.parametrize("tamper, message", TAMPERED.values(), ids=TAMPERED)
def test_what_is_not_as_it_was_written_is_refused(copied, tamper, message):
    """One line that names the file, and never another error."""
    tamper(copied)
    line = complaint(DataError, read_run, copied)
    assert message in line
    assert line.startswith(str(copied))
    assert len(line) < 1000


@pytest.mark.parametrize("name, n_bytes", [("results.json", 64 << 20), ("scores.csv", 4 << 30)])
def test_files_that_are_too_large_are_not_read(copied, name, n_bytes):
    with (copied / name).open("r+b") as file:
        file.truncate(n_bytes + 1)
    with pytest.raises(DataError, match=f"{name}: expected .*at most {n_bytes:,} bytes"):
        read_run(copied)


@pytest.mark.parametrize(
    "models, baselines, best",
    [
        ({"saplma": 0.6}, {"entropy": 0.8}, "saplma"),
        ({}, {"entropy": 0.6, "margin": 0.7, "prompt_state": 0.9}, "margin"),
        ({}, {"answer_length": 0.6, "prompt_state": 0.9}, "prompt_state"),
    ],
)
def test_a_control_is_the_best_of_nothing_but_controls(models, baselines, best):
    assert make_results(make_entries(models), make_entries(baselines)).best == best
