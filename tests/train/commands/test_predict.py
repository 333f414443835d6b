"""Scores of new traces: those that the run gave, or one line that says what is missing."""

import csv
import io
import json

import numpy as np
import pytest
import torch

from store import Column, Schema, StoreWriter, TraceStore
from train.commands.main import main

FLAGS = [
    "--epochs=1",
    "--gnn-hidden=8",
    "--lstm-hidden=8",
    "--force-cpu",
    "--seeds=2",
    "--models=lstm_solo,gnn_det_lstm",
]


@pytest.fixture(scope="module")
def run_dir(store_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "out"
    assert main(["--store", str(store_path), "--output-dir", str(path), *FLAGS]) == 0
    return path


def read(text):
    return {line["trace_id"]: line for line in csv.DictReader(io.StringIO(text))}


def predict(run_dir, store, *flags):
    return main(["predict", "--run", str(run_dir), "--store", str(store), "--force-cpu", *flags])


def fail(capsys, *arguments):
    capsys.readouterr()
    assert predict(*arguments) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == ""
    return line


def test_the_run_s_own_test_side_gets_its_scores_again(run_dir, store_path, capsys):
    """Every trace has a score, the unlabelled ones too; split and scores agree with the run's
    scores.csv."""
    capsys.readouterr()
    names = "lstm_solo,gnn_det_lstm,logreg_best,answer_length"
    assert predict(run_dir, store_path, "--models", names) == 0
    found = read(capsys.readouterr().out)
    assert len(found) == 200
    judged = read((run_dir / "scores.csv").read_text())
    for trace_id, line in judged.items():
        assert found[trace_id]["split"] == line["split"]
        if line["split"] != "train":
            for name in names.split(","):
                assert float(found[trace_id][name]) == pytest.approx(float(line[name]), rel=1e-5)


def test_as_columns_of_the_store(run_dir, make_store, labels, tmp_path, capsys):
    """The scores of the CSV, as float32; a second time replaces them. What was written is said."""
    store = make_store(labels)
    capsys.readouterr()
    file = tmp_path / "scores.csv"
    assert predict(run_dir, store, "--output", str(file)) == 0
    assert capsys.readouterr().out == f"{file}: scores of 200 traces: lstm_solo, gnn_det_lstm\n"
    expected = [
        float(line["lstm_solo"]) for line in read((tmp_path / "scores.csv").read_text()).values()
    ]
    for _ in range(2):
        assert predict(run_dir, store, "--to-store", "--models", "lstm_solo") == 0
        found = TraceStore.open(store).read(np.arange(200), columns=["score_lstm_solo"])[
            "score_lstm_solo"
        ]
        np.testing.assert_array_equal(found.numpy(), np.float32(expected))
    written = f"{store}: scores of 200 traces written as score_lstm_solo"
    assert capsys.readouterr().out.splitlines() == [
        written,
        f"{written} (replaced: score_lstm_solo)",
    ]


def test_a_store_without_labels_is_enough(run_dir, make_store, labels, capsys):
    """Only what a detector reads is asked for."""
    store = make_store(labels, columns=["hs_last"])
    assert predict(run_dir, store, "--models", "lstm_solo") == 0
    line = fail(capsys, run_dir, store)
    assert "gnn_det_lstm: expected column 'hidden_states'" in line
    assert "leave it out with --models" in line


def test_mistakes_are_one_line(run_dir, make_store, labels, store_path, capsys, tmp_path):
    """No run, an unfinished one, a name it has not, a store of another shape, a setting out of
    range."""
    assert "results.json: expected a file of a finished run, found no file" in fail(
        capsys, tmp_path, store_path
    )
    assert "the run has no 'x'; choose from lstm_solo, gnn_det_lstm, majority" in fail(
        capsys, run_dir, store_path, "--models", "x"
    )
    assert "--batch-size: expected at least 1" in fail(
        capsys, run_dir, store_path, "--batch-size", "0"
    )
    assert "nowhere.zarr" in fail(capsys, run_dir, tmp_path / "nowhere.zarr")
    (tmp_path / "results.json").write_text("[1]")
    assert "expected a JSON object" in fail(capsys, tmp_path, store_path)
    results = json.loads((run_dir / "results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps(results | {"config": {"a": 1}}))
    assert "expected settings of python -m train --help, found 'a'" in fail(
        capsys, tmp_path, store_path
    )


def test_traces_of_another_model_are_refused(run_dir, store_path, capsys, tmp_path):
    """The shapes of the run and of the store are shown."""
    schema = Schema({"hs_last": Column("float16", item_shape=(2, 9))})
    with StoreWriter.create(tmp_path / "wide.zarr", schema) as writer:
        writer.append("a", {"hs_last": np.zeros((2, 9), np.float16)})
    line = fail(capsys, run_dir, tmp_path / "wide.zarr", "--models", "lstm_solo")
    assert (
        "expected rows of shape {'hs_last': (2, 8)}, as in the run, found {'hs_last': (2, 9)}"
        in line
    )


def test_a_checkpoint_of_another_run_is_refused(run_dir, store_path, capsys, tmp_path):
    """Mixing directories is found."""
    for file in run_dir.glob("*.pt"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    results = json.loads((run_dir / "results.json").read_text()) | {"run": "other"}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert "expected a checkpoint of {'run': 'other'" in fail(capsys, tmp_path, store_path)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda saved: saved.pop("weight"), "found a file without 'weight'; train again"),
        (lambda saved: saved.update(bias=np.nan), "fitted probe; bias: expected finite numbers"),
    ],
)
def test_a_damaged_probe_is_one_line(run_dir, store_path, capsys, tmp_path, change, message):
    """What is missing, or what is wrong with it."""
    (tmp_path / "results.json").write_bytes((run_dir / "results.json").read_bytes())
    saved = torch.load(run_dir / "mean_logprob.pt", weights_only=True)
    change(saved)
    torch.save(saved, tmp_path / "mean_logprob.pt")
    assert message in fail(capsys, tmp_path, store_path, "--models", "mean_logprob")


def test_what_a_run_started_from_is_added(store_path, capsys, tmp_path):
    """A run on top of a baseline predicts with it: the run's own rows get its scores again."""
    out = tmp_path / "out"
    flags = [
        "--epochs=1",
        "--lstm-hidden=8",
        "--force-cpu",
        "--models=lstm_solo",
        "--on-top-of=mean_logprob",
    ]
    assert main(["--store", str(store_path), "--output-dir", str(out), *flags]) == 0
    capsys.readouterr()
    assert predict(out, store_path) == 0
    found, judged = read(capsys.readouterr().out), read((out / "scores.csv").read_text())
    for trace_id, line in judged.items():
        if line["split"] != "train":
            assert float(found[trace_id]["lstm_solo"]) == pytest.approx(
                float(line["lstm_solo"]), rel=1e-5
            )
    capsys.readouterr()
    assert (
        main(["--store", str(store_path), "--output-dir", str(out), "--on-top-of=mean_logprop"])
        == 2
    )
    assert (
        "--on-top-of: there is no baseline 'mean_logprop'; closest: 'mean_logprob'"
        in capsys.readouterr().err
    )


GRAPHS = [
    "--epochs=1",
    "--gnn-hidden=8",
    "--lstm-hidden=8",
    "--force-cpu",
    "--models=gnn_det_lstm",
]


def test_a_run_that_reads_the_answer(store_path, tmp_path, capsys):
    """The columns that its settings need are read again."""
    out = tmp_path / "out"
    run = ["--store", str(store_path), "--output-dir", str(out), *GRAPHS]
    assert main([*run, "--readout=answer"]) == 0
    assert predict(out, store_path) == 0


def test_a_run_of_another_version_is_refused(store_path, tmp_path, capsys):
    """It lacks a setting: what it did is not known."""
    out = tmp_path / "out"
    assert main(["--store", str(store_path), "--output-dir", str(out), *GRAPHS]) == 0
    results = json.loads((out / "results.json").read_text())
    del results["config"]["readout"]
    (out / "results.json").write_text(json.dumps(results))
    line = fail(capsys, out, store_path)
    assert "expected all settings of a run of this version, found none of --readout" in line


def test_a_store_without_what_the_run_started_from(
    store_path, make_store, labels, capsys, tmp_path
):
    """The baseline and the column are named; so is a place that cannot be written to, before
    anything is computed."""
    out = tmp_path / "out"
    flags = [
        "--epochs=1",
        "--lstm-hidden=8",
        "--force-cpu",
        "--models=lstm_solo",
        "--on-top-of=mean_logprob",
    ]
    assert main(["--store", str(store_path), "--output-dir", str(out), *flags]) == 0
    line = fail(capsys, out, make_store(labels, columns=["hs_last"]))
    assert "mean_logprob: expected column 'logprob'" in line
    assert "a' cannot be written; choose another file" in fail(
        capsys, out, store_path, "--output", str(tmp_path / "no" / "a")
    )
    checkpoint = out / "lstm_solo-seed0.pt"
    saved = torch.load(checkpoint, weights_only=True)
    torch.save({**saved, "weights": {"a": torch.zeros(1)}}, checkpoint)
    assert "the weights do not fit this detector" in fail(capsys, out, store_path)
    torch.save({"owner": saved["owner"]}, checkpoint)
    assert "no weights of a finished training" in fail(capsys, out, store_path)
