"""The examples run as their docstrings say, on a small store of the embedded example."""

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("one_core")
ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
MOST_LINES = 65


@pytest.fixture(scope="module")
def folder(tmp_path_factory, example_store):
    """A folder with `data/example.zarr`, as `make train` makes it, but smaller."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(example_store.path, folder / "data" / "example.zarr")
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """What a Python script prints, run in this process, which spares an import of torch each."""
    monkeypatch.chdir(folder)

    def run_script(script, *arguments):
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        with suppress(SystemExit):  # of the script that stops early; an error is not one
            runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    return run_script


def test_every_example_is_tried():
    names = {"custom_loop", "library", "lookup", "my_detector", "record", "sae", "serve", "sweep"}
    assert {path.stem for path in SCRIPTS} == names | {"watch", "write_store"}
    assert {path.name for path in NOTEBOOKS} == {"first_look.ipynb"}


def test_a_script_is_short_and_says_how_to_run_it():
    for script in SCRIPTS:
        text = script.read_text()
        assert len(text.splitlines()) <= MOST_LINES
        commands = ast.get_docstring(ast.parse(text))
        assert re.search(rf"python .*examples/{script.name}[ :]", commands)


def test_a_trace_is_looked_up(run, capsys):
    ids = run(EXAMPLES / "lookup.py", "data/example.zarr").split()
    assert len(ids) == 10
    text = run(EXAMPLES / "lookup.py", "data/example.zarr", ids[3])
    assert text.startswith("question: ")
    assert "log-probability" in text
    main = runpy.run_path(str(EXAMPLES / "lookup.py"))["main"]
    assert main("data/example.zarr", "nothing") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_stopped_loop_goes_on_exactly(folder, run):
    """A run that ends in the middle of an epoch, and one that goes on, give the weights of one."""
    import torch

    script = EXAMPLES / "custom_loop.py"
    text = run(script, "data/example.zarr", "whole.pt")
    assert text.count("loss") == 3
    stopped = folder / "stopped.py"
    code = script.read_text().replace("SAVE_EVERY = 3, 20", "SAVE_EVERY = 3, 2")
    stopped.write_text(code.replace("optimizer.step()", "optimizer.step() if step < 4 else exit()"))
    assert run(stopped, "data/example.zarr", "parts.pt") == ""
    parts = torch.load(folder / "parts.pt", weights_only=True)
    assert (parts["loader"]["epoch"], parts["loader"]["position"]) == (0, 2 * 32)
    run(script, "data/example.zarr", "parts.pt")
    whole = torch.load(folder / "whole.pt", weights_only=True)
    parts = torch.load(folder / "parts.pt", weights_only=True)
    assert whole["loader"] == parts["loader"]
    assert torch.equal(whole["model"]["weight"], parts["model"]["weight"])


def test_detectors_are_fitted_kept_and_used(folder, run):
    out = run(EXAMPLES / "library.py", "data/example.zarr", "guard.safetensors").splitlines()
    assert out[0].startswith("AUROC on test: 0.")
    assert len(out) == 1 + 3 + 2
    assert (folder / "guard.safetensors").exists()


def test_a_sparse_autoencoder_is_trained(folder, run):
    """Its loss falls, and the picture is there."""
    out = run(EXAMPLES / "sae.py", "data/example.zarr", "sae.png").splitlines()
    losses = [float(re.search(r": ([0-9.]+) unexplained", line)[1]) for line in out]
    assert len(losses) == 4
    assert losses[3] < 0.6 * losses[0] < 0.6
    assert (folder / "sae.png").stat().st_size > 10_000


@pytest.fixture(scope="module")
def guard(folder):
    """The file of a run that examples/library.py makes, without its three trainings."""
    from train import fit_detectors

    options = {"baselines": False, "seeds": 1, "epochs": 1, "tune": "none"}
    fit_detectors(folder / "data" / "example.zarr", "saplma", **options).export(folder / "g.st")
    return folder / "g.st"


def test_tokens_are_scored_as_they_come(run, guard):
    lines = run(EXAMPLES / "watch.py", guard, "Does Ada like chess?").splitlines()
    assert len(lines) > 2
    assert all("{'saplma': " in line for line in lines)


@pytest.mark.slow
def test_a_served_model_is_asked(run, guard):
    """By the commands of the docstring."""
    commands = ast.get_docstring(ast.parse((EXAMPLES / "serve.py").read_text()))
    argv = re.search(r"-m (train serve .*)", commands)[1].replace("guard.safetensors", str(guard))
    argv = argv.replace("store/sources/example", str(ROOT / "store/sources/example")).split()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *argv]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        url, token = (server.stdout.readline().strip() for _ in range(2))
        out = run(EXAMPLES / "serve.py", url, token.removeprefix("token: "), "Does Ada like tea?")
        server.terminate()
    assert "saplma: {'score': 0." in out
    assert "had it said yes: {'saplma': {'score': 0." in out


@pytest.mark.slow
def test_a_detector_is_searched(run, folder, monkeypatch):
    """With Optuna where it is installed, else with what asks as it does."""
    try:
        import optuna
    except ImportError:
        optuna = MagicMock()
        trial = SimpleNamespace(
            suggest_float=lambda name, low, high, log=False: (low + high) / 2,
            suggest_categorical=lambda name, choices: choices[-1],
        )
        study = optuna.create_study.return_value
        study.optimize = lambda objective, n_trials: [objective(trial) for _ in range(n_trials)]
        study.trials, study.best_value, study.best_params = [1, 2], 0.5, {"lr": 0.001}
        monkeypatch.setitem(sys.modules, "optuna", optuna)
    script = folder / "sweep.py"
    script.write_text((EXAMPLES / "sweep.py").read_text().replace('"epochs": 3', '"epochs": 1'))
    lines = run(script, "data/example.zarr", "runs/sweep", 2).splitlines()
    assert lines[0].startswith("2 trials, AUROC on validation at best 0.")
    assert any(line.startswith("saplma") for line in lines)
    assert any(line.startswith("mean_logprob") for line in lines)


def test_responses_are_kept_and_joined(run, folder):
    """A server that answers as vLLM does; its traces are those of the same requests."""
    import torch

    from store import TraceStore
    from store.cli.main import main
    from store.sources.recorder import Recorder, Request, schema_of

    kept = {"hs_last": torch.ones(1, 4)}
    provenance = {"model": "tiny", "layers": [1]}
    schema = schema_of(["hs_last"], "float32", 1, 4)
    recorder = Recorder(folder / "t.zarr", schema, provenance, 30, print)

    class Handler(BaseHTTPRequestHandler):
        def send(self, body):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def do_GET(self):
            self.send({"data": [{"id": "tiny"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = f"cmpl-{body['prompt']}"
            tokens = np.arange(4, dtype=np.int32)
            recorder.put(Request(name, f"{name}-0-0123abcd", tokens, 2, "stop", lambda: kept))
            choice = {"text": "yes", "prompt_token_ids": [0, 1], "token_ids": [2, 3, 9]}
            choice["logprobs"] = {"token_logprobs": [-1.0, -0.5, -0.1]}
            usage = {"prompt_tokens": 2, "completion_tokens": 3}
            self.send({"id": name, "choices": [choice], "usage": usage})

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 64  # all requests come at once

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    questions = [{"question": f"q{i}", "references": ["yes"]} for i in range(20)]
    (folder / "q.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    url = f"http://127.0.0.1:{server.server_port}/v1"
    assert "20 responses" in run(EXAMPLES / "record.py", "q.jsonl", url, "r.jsonl")
    server.shutdown()
    thread.join()
    server.server_close()
    recorder.close()
    assert main(["record", str(folder / "t.zarr"), "--responses", str(folder / "r.jsonl")]) == 0
    store = TraceStore.open(folder / "t.zarr")
    assert sorted(store.column("question")) == sorted(one["question"] for one in questions)
    assert set(store.column("answer")) == {"yes"}


def test_traces_are_written(folder, run):
    from store import TraceStore
    from store.check.verify import verify_store

    assert "hidden_states" in run(EXAMPLES / "write_store.py", "mine.zarr")
    store = TraceStore.open(folder / "mine.zarr")
    assert (len(store), "label" in store.schema.columns) == (100, True)
    assert verify_store(folder / "mine.zarr").problems == []


def test_the_detector_is_that_of_the_document():
    """docs/own_detector.md shows the file, but for its docstring."""
    text = (EXAMPLES / "my_detector.py").read_text()
    code = text[text.index("import torch") :]
    assert f"```python\n{code}```" in (ROOT / "docs" / "own_detector.md").read_text()


@pytest.mark.slow
def test_the_detector_is_trained(folder, tmp_path, monkeypatch, capsys):
    """By the command of its docstring, on the example."""
    from train.commands.main import main
    from train.outside import forget

    monkeypatch.chdir(folder)
    docstring = ast.get_docstring(ast.parse((EXAMPLES / "my_detector.py").read_text()))
    commands = re.findall(r"python -m train (.*)", docstring)
    assert len(commands) == 2
    for i, command in enumerate(commands):
        argv = command.replace("examples/", f"{EXAMPLES}/").split()
        argv += [f"--output-dir={tmp_path / str(i)}", "--epochs=1", "--seeds=1", "--force-cpu"]
        assert main(argv) == 0
    forget()
    out = capsys.readouterr().out
    assert "my_detector" in out
    assert "state_norm" in out


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(folder, run, notebook):
    """Its code cells in order, in one namespace, without Jupyter; it is kept without outputs."""
    cells = json.loads(notebook.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code
    script = folder / f"{notebook.stem}.py"
    script.write_text("\n\n".join(code))
    run(script)
