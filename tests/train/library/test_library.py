"""Detectors fitted and used in Python: the results of the command line, and scores of predict."""

import json
import multiprocessing
import re
import threading
import time

import numpy as np
import pytest
import torch
from runs import call, predict, read_csv
from safetensors import safe_open
from safetensors.torch import save
from small import complaint

from store import Batch, Ragged, TraceStore
from train import fit_detectors, load_run
from train.errors import CheckpointError, ConfigError, DataError, OutputError
from train.records import as_json
from train.run import scoring
from train.run.export import FORMAT, checksum

SETTINGS = {"epochs": 2, "seeds": 2, "lstm_hidden": 8, "gnn_hidden": 8}
SETTINGS |= {"tune": "none", "force_cpu": True}
NAMES = ["lstm_solo", "gnn_det_lstm", "drift", "logreg_pca", "mean_logprob", "answer_length"]


@pytest.fixture(scope="module")
def run(store_path):
    """A run in memory, of detectors, a probe, a baseline and a control."""
    return fit_detectors(store_path, only=",".join(NAMES), **SETTINGS)


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "run"
    run.save(path)
    return path


@pytest.fixture
def exported(saved, tmp_path):
    """A file of one detector of the run."""
    path = tmp_path / "guard.safetensors"
    load_run(saved, ["lstm_solo"]).export(path)
    return path


def test_nothing_is_written_or_printed(store_path, tmp_path, monkeypatch, capfd, run):
    monkeypatch.chdir(tmp_path)
    other, run = (
        run,
        fit_detectors(str(store_path), ["saplma"], baselines=False, splits=2, **SETTINGS),
    )
    assert list(run.results.entries) == ["saplma"]
    assert 0 <= run.results["saplma"].test.auroc <= 1
    assert run.results.verdict is None
    assert (list(tmp_path.iterdir()), *capfd.readouterr()) == ([], "", "")
    run.save("out")
    with pytest.raises(ConfigError, match="there are results of another run"):
        other.save("out")
    assert (tmp_path / "out" / "split-1" / "saplma-seed1.pt").exists()
    assert list(load_run("out/split-1").score(store_path)) == ["saplma"]


def test_the_command_is_the_library_and_printing(run, store_path, tmp_path, capsys):
    """Equal results, but for times and what names the run; the same files, but for the logs."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    flags = [flag.removesuffix("=True") for flag in flags]
    argv = ["--store", store_path, "--output-dir", tmp_path, "--only", ",".join(NAMES), *flags]
    assert call(capsys, *argv)[0] == 0
    theirs = json.loads((tmp_path / "results.json").read_text())
    assert without_times(theirs) == without_times(as_json(run.results))


def without_times(value):
    """Results without what differs from run to run."""
    changing = ("seconds", "wait_seconds", "ms_per_trace", "run", "output_dir")
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in changing}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def as_arrays(batch):
    """What a user without a store has: an array of all traces, or one for each."""
    arrays = {}
    for name, values in batch.columns.items():
        if isinstance(values, list | torch.Tensor):
            arrays[name] = values
        else:
            arrays[name] = [values.row(i).numpy() for i in range(len(batch))]
    return arrays


def test_scores_are_those_of_predict(run, saved, store_path, tmp_path, capsys):
    """Bit for bit: of a store, its traces, a batch, arrays, of the run and of its exported file."""
    guard = load_run(saved, NAMES, force_cpu=True)
    guard.export(tmp_path / "guard.safetensors")
    exported = load_run(tmp_path / "guard.safetensors", force_cpu=True)
    csv = call(capsys, *predict(saved, store_path, "--models", ",".join(NAMES)))[1]
    lines = read_csv(csv).values()
    store = TraceStore.open(store_path)
    batch = store.read(range(len(store)))
    for scorer in (guard, exported):
        for traces in (store_path, store, store[:], batch, as_arrays(batch)):
            found = scorer.score(traces)
            assert list(found) == NAMES
            for name, scores in found.items():
                np.testing.assert_array_equal(scores, [float(line[name]) for line in lines])
    own = run.score(store[5:9])
    assert list(own) == [name for name in NAMES if name in run.results.models]
    # a batch of another size may round differently
    np.testing.assert_allclose(own["lstm_solo"], found["lstm_solo"][5:9], rtol=1e-5)


def test_threads_share_a_guard(saved, store_path):
    guard = load_run(saved, force_cpu=True)
    expected = guard.score(store_path)
    found = [None] * 4

    def score(i):
        found[i] = guard.score(store_path)

    threads = [threading.Thread(target=score, args=(i,)) for i in range(len(found))]
    n_threads = torch.get_num_threads()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.get_num_threads() == n_threads
    for one in found:
        assert one.keys() == expected.keys()
        for name, scores in expected.items():
            np.testing.assert_array_equal(one[name], scores)


def test_a_forked_process_scores(saved, store_path):
    """Where OpenMP's threads, and a thread that held the lock, are not."""
    guard = load_run(saved, ["logreg_pca", "lstm_solo"], force_cpu=True)
    batch = TraceStore.open(store_path).read(range(40))
    big = batch["hs_last"].repeat(200, 1, 1)
    expected = guard.score({"hs_last": big})
    found = multiprocessing.get_context("fork").Queue()

    def child():
        found.put({name: one.tolist() for name, one in guard.score({"hs_last": big}).items()})

    is_held = threading.Event()

    def hold():
        with scoring.LOCK:
            is_held.set()
            time.sleep(0.2)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    thread.join()
    for name, scores in found.get(timeout=60).items():
        np.testing.assert_allclose(scores, expected[name])
    process.join()


def test_an_exported_file_says_what_it_expects_and_no_path(saved, exported):
    with safe_open(exported, "np") as file:
        content = json.loads(file.metadata()["content"])
        weights = [name for name in file.keys() if "/weights/" in name]  # noqa: SIM118
    assert {name.split("/")[0] for name in weights} == {"lstm_solo-seed0.pt", "lstm_solo-seed1.pt"}
    assert content["checkpoints"]["lstm_solo-seed0.pt"]["shapes"] == {"hs_last": [2, 8]}
    assert str(saved.parent) not in json.dumps(content)
    assert content["results"]["store"]["path"] == "small.zarr"
    guard = load_run(exported)
    assert guard.thresholds == {"lstm_solo": guard.results["lstm_solo"].test.threshold}


def flip(data):
    """One bit of a weight is another, which would only change scores."""
    return data[:-5] + bytes([data[-5] ^ 16]) + data[-4:]


@pytest.mark.parametrize(
    "change, message",
    [
        (flip, "found: checksum"),
        (lambda data: data[:-9], "expected a file of trace-guard 2"),
        (lambda data: data.replace(b"trace-guard 2", b"trace-guard 1"), "found: format 'trace-gu"),
        (lambda data: data.replace(b"lstm_hidden", b"lstm_hiddem"), "found: checksum"),
        (lambda data: data.replace(b'"dtype":"F32"', b'"dtype":"I32"', 1), "found: checksum"),
        (lambda data: b"PK" + data, "expected a file of trace-guard 2"),
    ],
)
def test_a_damaged_file_is_one_line(exported, change, message):
    exported.write_bytes(change(exported.read_bytes()))
    assert message in complaint((CheckpointError, ConfigError), load_run, exported)


@pytest.fixture(scope="module")
def guard(saved):
    return load_run(saved, ["lstm_solo", "logreg_pca", "drift", "mean_logprob"], force_cpu=True)


STATES = np.zeros((2, 2, 8))
OF_INTEGERS = "prompt_len.* of integers, found fixed with 0 item axes of float32"


@pytest.mark.parametrize(
    "column, values, error, found",
    [
        ("hs_last", 3.0, DataError, "found a single number"),
        ("hs_last", np.array([None, 1], dtype=object), DataError, "found NoneType"),
        ("hs_last", np.array(["a", "b"]), DataError, "found text"),
        ("hs_last", STATES.astype(complex), DataError, "found 'complex128'"),
        ("hs_last", [STATES[0], STATES[0, :, :7]], DataError, r"found \(2, 7\) and \(2, 8\)"),
        ("hs_last", STATES[:, 0], DataError, "with 2 item axes, found fixed with 1"),
        ("hs_last", np.zeros((2, 2, 9)), ConfigError, r"found {.*'hs_last': \(2, 9\)"),
        ("hs_last", STATES + np.nan, DataError, "LstmSolo.*not finite in hs_last of these"),
        ("hs_last", np.zeros((3, 2, 8)), DataError, "equally many traces, found"),
        ("logprob", [[0.1], "a"], DataError, "found str"),
        ("logprob", [[0.1, [0.2]], [0.1]], DataError, "found list"),
        ("logprob", [[0.1], [0.1]], DataError, "like the axis's other columns, found 1"),
        ("logprob", Ragged(np.zeros(3), np.array([0, 5, 3])), DataError, "offsets that never fall"),
        ("prompt_len", [1.5, np.nan], DataError, OF_INTEGERS),
        ("answer_len", np.array([-3, 1]), DataError, r"expected 0 to \d tokens, found -3"),
    ],
)
def test_odd_arrays_are_named_by_their_column(guard, store_path, column, values, error, found):
    arrays = as_arrays(TraceStore.open(store_path).read(range(2))) | {column: values}
    with pytest.raises(error, match=f"(?s){found}") as caught:
        guard.score(arrays)
    assert column in str(caught.value) or "equally many" in found


def test_what_is_no_traces_is_named(guard):
    with pytest.raises(DataError, match="lstm_solo: expected column 'hs_last', found only logp"):
        guard.score({"logprob": [[0.0]]})
    with pytest.raises(TypeError, match="a Batch, or arrays by column, found int"):
        guard.score(3)


def test_layers_of_traces_in_memory_are_those_that_the_run_read(example_store):
    """A run on some layers wants these, and says so of others."""
    store = example_store
    settings = SETTINGS | {"layers": "2-3", "seeds": 1, "on_top_of": "mean_logprob"}
    run = fit_detectors(store.path, ["saplma", "lapeigvals"], baselines=False, **settings)
    whole = store.read(range(40))
    message = r"the layers that the run read, 2,3, first of .* shape \(4, 64\)"
    with pytest.raises(DataError, match=message):
        run.score(whole)
    chosen = {name: {"layers": "2,3"} for name in store.schema.columns if store.layers(name)}
    expected = run.score(store[:40])
    found = run.score(Batch(whole.rows, store.read(range(40), None, chosen).columns))
    for name, scores in expected.items():
        np.testing.assert_array_equal(found[name], scores)


def test_mistakes_are_errors_not_exits(store_path, saved, tmp_path):
    for settings, message in (
        ({"sedes": 3}, "found 'sedes'"),
        ({"seeds": "3"}, "expected seeds: an integer, found '3'"),
        ({"seeds": 0}, "seeds: expected at least 1"),
        ({"only": "saplma,x"}, "only: there is no 'x'"),
        ({"only": "mean_logprob"}, "expected a detector to train"),
        ({"only": "drift", "models": "saplma"}, "--only: not allowed with --models; name all"),
    ):
        assert message in complaint(ConfigError, fit_detectors, store_path, **settings)
    with pytest.raises(ConfigError, match=r"^--models: the run has no 'x'"):
        load_run(saved, "x")
    with pytest.raises(ConfigError, match=r"^--models: expected names of methods, found none"):
        load_run(saved, [])
    with pytest.raises(DataError, match="results\\.json: expected a file of a finished run"):
        load_run(tmp_path)
    with pytest.raises(OutputError, match="expected a file to write, found a directory; name a"):
        load_run(saved, ["lstm_solo"]).export(tmp_path)


OWN = """
import torch
from models import Detector, Outputs, Probe

class ByLayer(Detector):
    columns = ("hs_last",)

    def __init__(self, hidden_size, n_layers):
        super().__init__()
        self.optional = torch.nn.Linear(hidden_size, 1)
        self.by_layer = torch.nn.ModuleList([self.optional for _ in range(n_layers)])
        self.otherwise = torch.nn.Parameter(torch.zeros(1))
        self.register_buffer("learns_from", torch.ones(1))

    def encode(self, batch):
        return batch.fixed("hs_last").float()

    def classify(self, states):
        logits = [part(states[:, i]).squeeze(1) for i, part in enumerate(self.by_layer)]
        return Outputs(sum(logits) * self.learns_from + self.otherwise)

def states(batch):
    return batch.fixed("hs_last").float()

TWO = Probe(("hs_last",), states, layers_read=(1, 2))
EACH = Probe(("hs_last",), states, layers_read=(1, 2), by_layer=True)
"""


def test_methods_of_a_file(example_store, tmp_path):
    """Parts of a detector have names of its own, also those of what probes have; the layer of a
    probe is one that it reads, of some alone or of each in its turn. The code is not exported."""
    store, file = example_store, tmp_path / "own.py"
    file.write_text(OWN)
    names = f"{file}:ByLayer,{file}:TWO,{file}:EACH,saplma"
    run = fit_detectors(store.path, names, baselines=False, **SETTINGS)
    assert set(run.score(store.path)) == {"by_layer", "two", "each", "saplma"}
    for name, layers in (("two", slice(1, 3)), ("each", slice(None))):
        entry = run.results.models[name]
        assert entry.layers == store.layers("hs_last")[layers]
        assert entry.layer == entry.layers[int(np.argmax(entry.layer_val_auroc))]
    with pytest.raises(ConfigError, match=r"by_layer is from .*own.py:ByLayer: its code would not"):
        run.export(tmp_path / "a.safetensors")
    run.save(tmp_path / "run")
    load_run(tmp_path / "run", "saplma").export(tmp_path / "a.safetensors")
    assert list(load_run(tmp_path / "a.safetensors").score(store.path)) == ["saplma"]


@pytest.mark.parametrize(
    "change, found",
    [
        (lambda content: {}, "results: an object, found None"),
        (lambda content: [content], "an object, found"),
        (lambda content: content | {"checkpoints": {"a": 3}}, "checkpoints.a: an object, found 3"),
        (lambda content: deep(content, "checkpoints", SEED_0, "owner", None), "not a checkpoint"),
        (
            lambda content: deep(content, "checkpoints", SEED_0, "shapes", {"a": 3}),
            "shapes.a: a list",
        ),
        (lambda content: deep(content, "results", "config", "lstm_hidden", 65536), "do not fit"),
        (lambda content: deep(content, "results", "layers", None), "layers: an object, found None"),
    ],
)
def test_a_crafted_file_is_one_line(exported, store_path, change, found):
    """Also with right checksums, and one that asks for 70 GB of weights."""
    with safe_open(exported, "pt") as file:
        text = json.dumps(change(json.loads(file.metadata()["content"])))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    metadata = {"format": FORMAT, "content": text, "crc32c": checksum(text, tensors)}
    exported.write_bytes(save(tensors, metadata))
    line = complaint(CheckpointError, lambda: load_run(exported, force_cpu=True).score(store_path))
    assert re.search(found, line)


SEED_0 = "lstm_solo-seed0.pt"


def deep(content, *path_and_value):
    """The content with another value at a path."""
    *path, last, value = path_and_value
    inner = content
    for key in path:
        inner = inner[key]
    inner[last] = value
    return content


def test_conventions_of_scikit_learn(saved, store_path):
    guard = load_run(saved, ["lstm_solo", "drift"], force_cpu=True)
    found = guard.predict_proba(store_path, "drift")
    np.testing.assert_array_equal(found[:, 1], guard.score(store_path)["drift"])
    np.testing.assert_allclose(found.sum(1), 1)
    with pytest.raises(ConfigError, match="model: expected one of lstm_solo, drift, found None"):
        guard.predict_proba(store_path)
    assert guard.get_params()["lstm_hidden"] == SETTINGS["lstm_hidden"]
    assert repr(guard) == "Guard(lstm_solo, drift)"
