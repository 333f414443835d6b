"""The examples run as their docstrings say, on a small store of the embedded example."""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
N_TRACES = 192
MOST_LINES = 65


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with `data/example.zarr`, as `make train` makes it, but smaller."""
    from store.sources.example import ExampleSource, example_questions
    from store.write.build import build_store

    folder = tmp_path_factory.mktemp("examples")
    (folder / "data").mkdir()
    build_store(folder / "data" / "example.zarr", ExampleSource(example_questions(N_TRACES)))
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
    names = {"custom_loop", "library", "lookup", "my_detector", "sae", "write_store"}
    assert {path.stem for path in SCRIPTS} == names
    assert {path.name for path in NOTEBOOKS} == {"first_look.ipynb"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_says_how_to_run_it(script):
    text = script.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    commands = ast.get_docstring(ast.parse(text))
    assert re.search(rf"python .*examples/{script.name}[ :]", commands)


def test_a_trace_is_looked_up(run):
    ids = run(EXAMPLES / "lookup.py", "data/example.zarr").split()
    assert len(ids) == 10
    text = run(EXAMPLES / "lookup.py", "data/example.zarr", ids[3])
    assert text.startswith("question: ")
    assert "log-probability" in text


def test_an_id_that_is_not_there_is_an_error(folder):
    command = [sys.executable, EXAMPLES / "lookup.py", "data/example.zarr", "nothing"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


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
    from train.outside.methods import forget

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
    """Its code cells in order, in one namespace, without Jupyter."""
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code
    script = folder / f"{notebook.stem}.py"
    script.write_text("\n\n".join(code))
    run(script)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(notebook):
    for cell in json.loads(notebook.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
