"""Layers are called as the model calls them, and a run scores traces of its own model only."""

import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from models import DETECTORS
from models.lstm import LstmSolo
from store import Column, Schema, StoreWriter, TraceStore
from train.commands.main import main

SMALL = ["--epochs=1", "--lstm-hidden=8", "--force-cpu", "--batch-size=16"]
ORIGIN = {
    "weights_sha256": "a",
    "prompt_template": "Q: {question}",
    "trace_convention": "prompt, answer",
    "final_norm": True,
}
SIGNAL = 4  # the layer, by its number in the model, that tells right from wrong


def write(path, layers, **origin):
    """A store of 200 traces with some layers of a model; one of them tells the label."""
    rng = np.random.default_rng(0)
    shape = {"item_shape": (len(layers), 6), "axis_names": ("layers", "hidden")}
    schema = Schema(
        {
            "question_id": Column("utf8"),
            "label": Column("int8"),
            "hs_last": Column("float16", **shape),
        }
    )
    provenance = {"layers": layers, **ORIGIN, **origin}
    recorded = {key: value for key, value in provenance.items() if value is not None}
    every = rng.normal(size=(200, 7, 6)).astype(np.float16)
    with StoreWriter.create(path, schema, recorded) as writer:
        for i, states in enumerate(every):
            label = i % 2
            states[SIGNAL] += 2 * label
            row = {"question_id": f"q{i}", "label": label, "hs_last": states[layers]}
            writer.append(f"t{i}", row)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("origin")


@pytest.fixture(scope="module")
def stores(folder):
    """Layers 1 to 3, layers 3 to 5, and all of both, of one model."""
    kept = {"low": [1, 2, 3], "high": [3, 4, 5], "all": [1, 2, 3, 4, 5]}
    return {name: write(folder / f"{name}.zarr", layers) for name, layers in kept.items()}


def train(store, out, *flags):
    assert main(["--store", str(store), "--output-dir", str(out), *SMALL, *flags]) == 0
    return out


@pytest.fixture(scope="module")
def low_run(stores, folder):
    """A run that was trained on layers 1 to 3."""
    return train(stores["low"], folder / "low", "--models=lstm_solo")


def predict(capsys, run, store, *flags):
    """Exit status, lines of stdout and lines of stderr."""
    capsys.readouterr()
    status = main(["predict", "--run", str(run), "--store", str(store), "--force-cpu", *flags])
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err.splitlines()


def test_results_name_layers_as_the_model_does(stores, folder):
    """The layer that tells the label has the same name whatever the store keeps, and whatever is
    read of it."""
    for name, flags in (
        ("high", []),
        ("all", []),
        ("all", ["--layers=2-5"]),
        ("all", ["--layers", "-3:-1"]),
    ):
        out = train(
            stores[name],
            folder / "run",
            "--models=saplma",
            f"--saplma-layer={SIGNAL}",
            "--overwrite",
            *flags,
        )
        results = json.loads((out / "results.json").read_text())
        assert results["baselines"]["logreg_best"]["layer"] == SIGNAL
        assert results["models"]["saplma"]["runs"][0]["layer"] == SIGNAL
        assert results["models"]["saplma"]["test"]["auroc"] > 0.8
        assert "as the model numbers them" in (out / "report.md").read_text()


def test_a_store_without_numbers_counts_from_1_and_says_so(folder, capsys):
    store = write(folder / "unnumbered.zarr", [3, 4, 5])
    with StoreWriter.open(store) as writer:
        writer.provenance = {}
    out = train(store, folder / "unnumbered", "--models=lstm_solo")
    assert (
        "does not record which layers of the model it keeps: they are counted from 1"
        in capsys.readouterr().out
    )
    assert json.loads((out / "results.json").read_text())["baselines"]["logreg_best"]["layer"] == 2
    assert (
        "1-3 (counted from 1: the store does not record their numbers)"
        in (out / "report.md").read_text()
    )


@pytest.mark.parametrize(
    "flags", [["--layers=6"], ["--layers=0-2"], ["--models=saplma", "--saplma-layer=2"]]
)
def test_layers_that_the_store_does_not_keep_are_refused(stores, folder, capsys, flags):
    """Also where as many would be there, counted from 0."""
    capsys.readouterr()
    assert (
        main(["--store", str(stores["high"]), "--output-dir", str(folder / "no"), *SMALL, *flags])
        == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert "it has layers 3-5, as the model numbers them" in line


def test_traces_of_other_layers_are_refused(low_run, stores, capsys):
    """The shapes fit; the layers do not. Forced, it says so."""
    status, out, (line,) = predict(capsys, low_run, stores["high"])
    assert (status, out) == (2, [])
    assert "column 'hs_last': layers 3-5, where the run was trained on layers 1-3" in line
    assert "--force" in line
    status, out, (line,) = predict(capsys, low_run, stores["high"], "--force")
    assert (status, len(out)) == (0, 201)
    assert "forced, although column 'hs_last': layers 3-5" in line


def write_prompts(path, layers, name):
    """A store with the state of the last token, and of the prompt's last or of all tokens."""
    rng = np.random.default_rng(0)
    state = Column("float16", item_shape=(len(layers), 6), axis_names=("layers", "hidden"))
    possible = {"hs_prompt": state, "hidden_states": replace(state, axis="tokens")}
    numbers = {"label": Column("int8"), "prompt_len": Column("int32"), "hs_last": state}
    schema = Schema({"question_id": Column("utf8"), **numbers, name: possible[name]})
    with StoreWriter.create(path, schema, {"layers": layers, **ORIGIN}) as writer:
        for i in range(200):
            tokens = rng.normal(size=(3, len(layers), 6)).astype(np.float16)
            states = {"hs_prompt": tokens[1], "hidden_states": tokens}
            row = {"question_id": f"q{i}", "label": i % 2, "prompt_len": 2, "hs_last": tokens[2]}
            writer.append(f"t{i}", row | {name: states[name]})
    return path


def test_layers_of_columns_that_are_read_instead(folder, capsys):
    """The run has read the state of the prompt as stored; a store has those of all tokens."""
    store = write_prompts(folder / "prompt.zarr", [1, 2], "hs_prompt")
    run = train(store, folder / "prompt", "--models=lstm_solo", "--on-top-of=prompt_state")
    flags = ["--models=prompt_state"]
    other = write_prompts(folder / "prompt_high.zarr", [3, 4], "hidden_states")
    status, out, (line,) = predict(capsys, run, other, *flags)
    assert (status, out) == (2, [])
    message = "column 'hidden_states': layers 3,4, where the run was trained on layers 1,2"
    assert message in line
    same = write_prompts(folder / "prompt_same.zarr", [1, 2], "hidden_states")
    assert predict(capsys, run, same, *flags)[::2] == (0, [])
    results = json.loads((run / "results.json").read_text())
    del results["layers"]["hs_prompt"]
    (run / "results.json").write_text(json.dumps(results))
    for models_flag in (flags, ["--models=lstm_solo"]):  # which is on top of the other
        status, _, (line,) = predict(capsys, run, same, *models_flag)
        assert status == 2
        assert "prompt_state: column 'hidden_states': layers 1,2, where the run does not" in line


def test_the_same_layers_of_a_store_that_keeps_more_are_welcome(stores, folder, capsys):
    """What counts is what is read."""
    run = train(stores["all"], folder / "of_all", "--models=lstm_solo", "--layers=1-3")
    whole = predict(capsys, run, stores["all"])
    assert predict(capsys, run, stores["low"]) == whole
    assert whole[2] == []


@pytest.mark.parametrize(
    "origin, message",
    [
        ({"weights_sha256": "b"}, "weights_sha256 'b', where the run was trained on 'a'"),
        (
            {"prompt_template": "{question}"},
            "prompt_template '{question}', where the run was trained on 'Q: {question}'",
        ),
        (
            {"chat_prompt": "<user>{question}"},
            "chat_template '<user>{question}', where the run was trained on None",
        ),
        (
            {"trace_convention": "answer"},
            "trace_convention 'answer', where the run was trained on 'prompt, answer'",
        ),
        ({"final_norm": False}, "final_norm False, where the run was trained on True"),
    ],
)
def test_traces_of_another_origin_are_refused(low_run, tmp_path, capsys, origin, message):
    """Of another model, or asked in another way: nothing is written, nor into the store."""
    store = write(tmp_path / "other.zarr", [1, 2, 3], **origin)
    for flags in ([], ["--to-store"]):
        status, out, (line,) = predict(capsys, low_run, store, *flags)
        assert (status, out) == (2, [])
        assert message in line
    assert "score_lstm_solo" not in TraceStore.open(store).schema.columns
    assert predict(capsys, low_run, store, "--force")[0] == 0


def test_the_norm_of_a_layer_that_is_not_read_does_not_matter(stores, tmp_path, capsys):
    """States of an engine and of transformers differ in the last layer alone."""
    inner = train(stores["all"], tmp_path / "inner", "--models=lstm_solo", "--layers=1-4")
    whole = train(stores["all"], tmp_path / "whole", "--models=lstm_solo")
    for layers in ([1, 2, 3, 4], [1, 2, 3, 4, 5]):
        engine = write(tmp_path / f"{len(layers)}.zarr", layers, final_norm=False)
        assert predict(capsys, inner, engine)[0] == 0
    assert predict(capsys, whole, engine)[0] == 2


def test_what_is_not_recorded_is_told(low_run, tmp_path, capsys):
    """The scores come, with a line that nothing was compared."""
    store = write(tmp_path / "silent.zarr", [1, 2, 3], weights_sha256=None)
    status, out, (line,) = predict(capsys, low_run, store)
    assert (status, len(out)) == (0, 201)
    assert "not checked whether the traces are of the run's model" in line


class Mine(LstmSolo):
    """A user's own detector."""


def test_a_detector_that_this_process_does_not_know(stores, tmp_path, capsys, monkeypatch):
    """It is named, also where none was asked for; the others of the run can still be had."""
    with monkeypatch.context() as patch:
        patch.setitem(DETECTORS, "mine", Mine)
        run = train(stores["low"], tmp_path / "run", "--models=mine,lstm_solo")
        assert predict(capsys, run, stores["low"])[0] == 0
    assert "mine" not in DETECTORS
    for flags in ([], ["--models=mine"], ["--models=lstm_solo,mine"]):
        status, out, (line,) = predict(capsys, run, stores["low"], *flags)
        assert (status, out) == (2, [])
        assert "the run has a detector 'mine' that this process does not know" in line
    status, out, _ = predict(capsys, run, stores["low"], "--models=lstm_solo")
    assert status == 0
    header = next(csv.reader(io.StringIO(out[0])))
    assert header == ["trace_id", "split", "lstm_solo"]


def test_few_rows_of_a_class_are_told(tmp_path, capsys):
    """On the way, at the end, in the results and in the report."""
    store = write(tmp_path / "few.zarr", [1, 2, 3])
    out = train(store, tmp_path / "run", "--models=lstm_solo", "--max-traces=100")
    captured = capsys.readouterr()
    remarks = json.loads((out / "results.json").read_text())["remarks"]
    (warning,) = [remark for remark in remarks if "fewer than 20 traces of a class" in remark]
    assert re.search(r"val has \d+ hallucinations and \d+ right answers, test has \d+", warning)
    for text in (captured.err, captured.out):
        assert text.count(warning) == 1
    assert (out / "report.md").read_text().count(warning.removeprefix("w")) == 1


def test_a_directory_of_another_version_is_not_in_the_way_of_overwrite(stores, folder, capsys):
    """Its settings cannot be compared: what can be done is said."""
    out = train(stores["low"], folder / "older", "--models=lstm_solo", "--layers=1-2")
    known = json.loads((out / "run.json").read_text())
    del known["config"]["layers"]
    (out / "run.json").write_text(json.dumps(known))
    arguments = [
        "--store",
        str(stores["low"]),
        "--output-dir",
        str(out),
        *SMALL,
        "--models=lstm_solo",
        "--layers=2",
    ]
    capsys.readouterr()
    assert main(arguments) == 2
    assert "give --overwrite to delete it" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0


def test_layers_that_the_store_does_not_record_are_not_taken_for_the_run_s(
    low_run, stores, tmp_path, capsys
):
    """As many of them, without a record: which they are nobody knows."""
    store = write(tmp_path / "silent.zarr", [3, 4, 5])
    with StoreWriter.open(store) as writer:
        writer.provenance = {}
    status, out, (line,) = predict(capsys, low_run, store)
    assert (status, out) == (2, [])
    assert (
        "does not record which layers it keeps, and the run was trained on layers 1-3 of its model"
        in line
    )


@pytest.mark.parametrize("name", ["entropy", "label", "trace_id", "a/b", "all"])
def test_names_that_results_could_not_tell_apart_are_refused(
    stores, tmp_path, capsys, monkeypatch, name
):
    """A baseline's, a column's, no file's."""
    monkeypatch.setitem(DETECTORS, name, Mine)
    capsys.readouterr()
    assert (
        main(
            [
                "--store",
                str(stores["low"]),
                "--output-dir",
                str(tmp_path / "o"),
                "--models=lstm_solo",
            ]
        )
        == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert f"called {name!r}" in line


def test_a_mixture_of_models_is_told(tmp_path, capsys):
    """A store that was merged of two: before and behind the training, and in the report."""
    parts = [{"weights_sha256": name, "layers": [1, 2, 3]} for name in "ab"]
    store = write(tmp_path / "mixed.zarr", [1, 2, 3])
    with StoreWriter.open(store) as writer:
        writer.provenance = {"source": "merge", "stores": parts}
    out = train(store, tmp_path / "run", "--models=lstm_solo")
    assert "2 different models, layers or prompts" in capsys.readouterr().err
    assert "2 different models, layers or prompts" in (out / "report.md").read_text()
