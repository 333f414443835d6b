"""Layers are called as the model calls them, and a run scores traces of its own model only."""

import json
import re

import numpy as np
import pytest
from runs import SMALL, call, fail, predict, train
from tuning_stores import write_states

from models import DETECTORS
from models.lstm import LstmSolo
from store import Column, StoreWriter, TraceStore

ORIGIN = {
    "weights_sha256": "a",
    "prompt_template": "Q: {question}",
    "trace_convention": "prompt, answer",
    "final_norm": True,
}
SIGNAL = 4  # the layer, by its number in the model, that tells right from wrong
LSTM = "--models=lstm_solo"
ALONE = [LSTM, "--no-baselines"]


def state(layers):
    return Column("float16", item_shape=(len(layers), 6), axis_names=("layers", "hidden"))


def write(path, layers, **origin):
    """A store of 200 traces with some layers of a model; one of them tells the label."""
    provenance = {"layers": layers, **ORIGIN, **origin}
    recorded = {key: value for key, value in provenance.items() if value is not None}
    every = np.random.default_rng(0).normal(size=(200, 7, 6)).astype(np.float16)
    every[1::2, SIGNAL] += 2
    return write_states(path, [0, 1] * 100, every[:, layers], provenance=recorded)


def set_provenance(store, **provenance):
    with StoreWriter.open(store) as writer:
        writer.provenance = provenance
    return store


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("origin")


@pytest.fixture(scope="module")
def stores(folder):
    """Layers 1 to 3, layers 3 to 5, and all of both, of one model."""
    kept = {"low": [1, 2, 3], "high": [3, 4, 5], "all": [1, 2, 3, 4, 5]}
    return {name: write(folder / f"{name}.zarr", layers) for name, layers in kept.items()}


@pytest.fixture(scope="module")
def low_run(stores, folder):
    """A run that was trained on layers 1 to 3."""
    train(stores["low"], folder / "low", *ALONE)
    return folder / "low"


@pytest.mark.parametrize(
    "name, flags, read", [("high", [], "3-5"), ("all", ["--layers=1,4-5"], "1,4,5")]
)
def test_layers_are_named_as_the_model_does(stores, tmp_path, name, flags, read):
    """The one that tells the label, whatever the store keeps; and those that were read."""
    out = tmp_path / "run"
    flags = ["--only=saplma,logreg_best", f"--saplma-layer={SIGNAL}", *flags]
    results = train(stores[name], out, *flags)
    assert results["baselines"]["logreg_best"]["layer"] == SIGNAL
    assert results["models"]["saplma"]["runs"][0]["layer"] == SIGNAL
    assert json.loads((out / "run.json").read_text())["layers"] == results["layers"]
    assert f"{read} (as the model numbers them)" in (out / "report.md").read_text()


def test_a_store_without_numbers_counts_from_1_and_says_so(tmp_path, capsys):
    """As where the record has other numbers than there are layers."""
    store = set_provenance(write(tmp_path / "s.zarr", [3, 4, 5]), layers=[8, 16])
    results = train(store, tmp_path / "run", "--only=lstm_solo,logreg_best")
    said = "does not record which layers of the model it keeps: they are counted from 1"
    assert said in capsys.readouterr().out
    assert results["baselines"]["logreg_best"]["layer"] == 2
    words = "1-3 (counted from 1: the store does not record their numbers)"
    assert words in (tmp_path / "run" / "report.md").read_text()


def test_layers_that_the_store_does_not_keep_are_refused(stores, tmp_path, capsys):
    """Also where as many would be there, counted from 0."""
    argv = ["--store", stores["high"], "--output-dir", tmp_path / "no", *SMALL]
    for flags in (["--layers=6"], ["--layers=0-2"], ["--models=saplma", "--saplma-layer=2"]):
        assert "it has layers 3-5, as the model numbers them" in fail(capsys, *argv, *flags)


def test_what_counts_is_what_is_read(stores, tmp_path, capsys):
    """The same layers of a store that keeps more; and the norm of a layer that is not read: states
    of an engine and of transformers differ in the last one alone."""
    run = tmp_path / "inner"
    train(stores["all"], run, *ALONE, "--layers=1-3")
    whole = call(capsys, *predict(run, stores["all"]))
    assert call(capsys, *predict(run, stores["low"])) == whole
    assert len(whole[2]) == 2  # of questions without a text, and of those that it was trained on
    engine = write(tmp_path / "engine.zarr", [1, 2, 3, 4, 5], final_norm=False)
    assert call(capsys, *predict(run, engine))[0] == 0


@pytest.mark.parametrize(
    "origin, found, trained",
    [
        ({"layers": [3, 4, 5]}, "column 'hs_last': layers 3-5", "layers 1-3"),
        ({"weights_sha256": "b"}, "weights_sha256 'b'", "'a'"),
        ({"prompt_template": "{question}"}, "prompt_template '{question}'", "'Q: {question}'"),
        ({"chat_prompt": "<user>{question}"}, "chat_template '<user>{question}'", "None"),
        ({"trace_convention": "answer"}, "trace_convention 'answer'", "'prompt, answer'"),
        ({"final_norm": False}, "final_norm False", "True"),
    ],
)
def test_traces_of_another_origin_are_refused(low_run, tmp_path, capsys, origin, found, trained):
    """Of another model, of other layers, or asked in another way: nothing is written, nor into the
    store; forced, it says so."""
    store = write(tmp_path / "other.zarr", **{"layers": [1, 2, 3]} | origin)
    message = f"{found}, where the run was trained on {trained}"
    for flags in ([], ["--to-store"]):
        line = fail(capsys, *predict(low_run, store, *flags))
        assert message in line
        assert "--force" in line
    assert "score_lstm_solo" not in TraceStore.open(store).schema.columns
    status, out, (line, *_) = call(capsys, *predict(low_run, store, "--force"))
    assert (status, len(out.splitlines())) == (0, 201)
    assert f"forced, although {message}" in line


def test_what_is_not_recorded(low_run, tmp_path, capsys):
    """Without the model's hash the scores come with a line that nothing was compared; layers that
    nobody knows are not taken for those of the run."""
    store = write(tmp_path / "silent.zarr", [1, 2, 3], weights_sha256=None)
    status, out, (line, *_) = call(capsys, *predict(low_run, store))
    assert (status, len(out.splitlines())) == (0, 201)
    assert "not checked whether the traces are of the run's model" in line
    line = fail(capsys, *predict(low_run, set_provenance(store)))
    words = "which layers it keeps, and the run was trained on layers 1-3 of its model"
    assert words in line


class Mine(LstmSolo):
    """A user's own detector."""


def test_a_detector_that_this_process_does_not_know(stores, tmp_path, capsys, monkeypatch):
    """It is named, also where none was asked for; the others of the run can still be had."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setitem(DETECTORS, "mine", Mine)
        train(stores["low"], run, "--models=mine,lstm_solo", "--no-baselines")
        assert call(capsys, *predict(run, stores["low"]))[0] == 0
    for flags in ([], ["--models=mine"], ["--models=lstm_solo,mine"]):
        line = fail(capsys, *predict(run, stores["low"], *flags))
        assert "the run has a detector 'mine' that this process does not know" in line
    _, out, _ = call(capsys, *predict(run, stores["low"], LSTM))
    assert out.startswith("trace_id,split,lstm_solo")


class Wide(LstmSolo):
    """A detector with an option that is no setting."""

    options = ("width",)


def test_detectors_that_cannot_be_registered_are_one_line(stores, tmp_path, capsys, monkeypatch):
    """A name that results could not tell apart: a baseline's, a column's, no file's; an option of a
    name that no setting has, with where to add it."""
    for name in ("entropy", "label", "trace_id", "a/b", "all"):
        with monkeypatch.context() as patch:
            patch.setitem(DETECTORS, name, Mine)
            assert f"called {name!r}" in fail(capsys, "--store", "none.zarr", LSTM)
    monkeypatch.setitem(DETECTORS, "wide", Wide)
    line = fail(capsys, "--store", stores["low"], "--output-dir", tmp_path / "o", "--models=wide")
    assert "wide: there is no setting 'width' for its option of that name; add a field" in line


def test_what_makes_numbers_doubtful_is_told(tmp_path, capsys, monkeypatch):
    """Few rows of a class, and a mixture of models: on the way, at the end, in the results and in
    the report; once on a screen, where errors and results go to one place."""
    parts = [{"weights_sha256": name, "layers": [1, 2, 3]} for name in "ab"]
    store = set_provenance(write(tmp_path / "s.zarr", [1, 2, 3]), source="merge", stores=parts)
    results = train(store, tmp_path / "run", *ALONE, "--max-traces=100")
    captured = capsys.readouterr()
    (few,) = [one for one in results["remarks"] if "fewer than 20 traces of a class" in one]
    (mixed,) = [one for one in results["remarks"] if "2 different models, layers or prom" in one]
    assert re.search(r"val has \d+ hallucinations and \d+ right answers, test has \d+", few)
    report = (tmp_path / "run" / "report.md").read_text()
    for warning in (few, mixed):
        assert [text.count(warning) for text in (captured.err, captured.out)] == [1, 1]
        assert report.count(warning.removeprefix("w")) == 1
    screen = tmp_path / "screen.txt"
    with screen.open("w") as file, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", file)
        patch.setattr("sys.stderr", file)
        train(store, tmp_path / "splits", *ALONE, "--splits=2")
    assert screen.read_text().count(mixed) == 1


def test_a_directory_of_another_version_is_not_in_the_way_of_overwrite(stores, tmp_path, capsys):
    """Its settings cannot be compared: what can be done is said."""
    out = tmp_path / "older"
    train(stores["low"], out, *ALONE, "--layers=1-2")
    known = json.loads((out / "run.json").read_text())
    del known["config"]["layers"]
    (out / "run.json").write_text(json.dumps(known))
    flags = ["--store", stores["low"], "--output-dir", out, *SMALL, *ALONE, "--layers=2"]
    assert "give --overwrite to delete it" in fail(capsys, *flags)
    assert call(capsys, *flags, "--overwrite")[0] == 0
