"""The command: every mistake is one line on stderr, exit status 2, and nothing written; Ctrl-C is
130."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import small
from running import ROOT, run_python
from runs import call, predict, train
from runs import fail as fail_with

from store import Column
from store.cli.main import main as store_main
from train.commands import main as cli
from train.commands.main import main
from train.data import requirements


@pytest.fixture
def fail(capsys, tmp_path):
    """The function that gives the one line of a command which writes nothing."""

    def failing(store, *argv):
        line = fail_with(capsys, "--store", store, "--output-dir", tmp_path / "out", *argv)
        assert line.startswith("python -m train: ")
        assert not (tmp_path / "out").exists()
        return line

    return failing


def test_what_a_store_lacks_is_named(fail, make_store, labels, tmp_path, golden_lines):
    """With the column, and the command that adds it or the flag that does without it; of stores
    with these columns, trained on with these flags."""

    def refuse(columns_and_flags):
        columns, flags = columns_and_flags
        path = make_store(labels, columns, name=f"{len(list(tmp_path.iterdir()))}.zarr")
        return fail(path, *flags).replace(str(path), "own.zarr")

    golden_lines("lacking.txt", refuse)


def test_columns_that_a_command_adds_are_trained_on(make_store, labels, tmp_path):
    """Where one question has a single trace."""
    path = make_store([*labels, 1], ["question_id", "label", "hs_last"])
    assert store_main(["derive", str(path), "eigenscore"]) == 0
    found = train(path, tmp_path / "run", "--models=eigenscore")
    assert 0 <= found["models"]["eigenscore"]["test"]["auroc"] <= 1
    assert list(found["baselines"]) == ["majority", "logreg_first", "logreg_best"]


@pytest.mark.parametrize(
    "name, column, value, message",
    [
        ("question_id", Column("int32"), 3, "to be text, found fixed with 0 item axes"),
        ("label", Column("utf8"), "1", "fixed with 0 item axes of integers, found text"),
        ("hs_last", Column("float16", (4,)), np.zeros(4, "f2"), "fixed with 2 item axes"),
        ("hidden_states", Column("float16", (2, 4)), np.zeros((2, 4), "f2"), "to be ragged with 2"),
    ],
)
def test_a_column_of_another_kind(fail, tmp_path, name, column, value, message):
    """A name alone does not make a column."""
    columns = {
        "question_id": "utf8",
        "label": "int8",
        "hs_last": Column("float16", (2, 4)),
        "hidden_states": Column("float16", (2, 4), axis="tokens"),
        "attn_mean": Column("float16", (2,), axis="pairs"),
    }
    shapes = {"hs_last": (2, 4), "hidden_states": (1, 2, 4), "attn_mean": (1, 2)}
    row = {key: np.zeros(shape, np.float16) for key, shape in shapes.items()}
    row |= {"question_id": "q", "label": 1, name: value}
    small.make_store(tmp_path / "s.zarr", columns | {name: column}, {"a": row})
    line = fail(tmp_path / "s.zarr")
    assert f"expected column '{name}' " in line
    assert message in line


@pytest.mark.parametrize(
    "column, model, formula",
    [("attn_mean", "gnn_det_lstm", "T(T+1)/2"), ("attentions", "charm", "T * T")],
)
def test_a_trace_with_the_wrong_number_of_pairs(fail, make_store, labels, column, model, formula):
    def drop_a_pair(number, row):
        if number == 7:
            row[column] = row[column][1:]

    line = fail(make_store(labels, change=drop_a_pair), f"--models={model}")
    assert f"column '{column}', trace 't7': expected {formula} =" in line


def test_maps_that_do_not_fit(fail, store_path, monkeypatch):
    """Batches of the longest traces have to fit: 288 bytes of a trace of 6 tokens."""
    for limit, way_out in (
        (1500, "lower --batch-size, to 5 at most, or read fewer --layers"),
        (287, "read fewer --layers, or leave out long traces (python -m store subset)"),
    ):
        monkeypatch.setattr(requirements, "MAX_MAPS_BYTES", limit)
        line = fail(store_path, "--models=charm", "--batch-size=8")
        assert f"charm: expected at most {limit:,} bytes of column 'attentions' in a batch" in line
        assert "found 2,304 in the 8 longest traces" in line
        assert line.endswith(way_out)


def test_the_example(tmp_path, monkeypatch, capsys):
    """It is built where it is missing, and only there; without its extra a line says so."""
    path = tmp_path / "data" / "example.zarr"
    path.mkdir(parents=True)
    cli.build_example(path)
    assert list(path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setitem(sys.modules, "transformers", None)
    for module in [name for name in sys.modules if name.startswith("store.sources.example")]:
        monkeypatch.delitem(sys.modules, module)
    line = fail_with(capsys)
    assert "for want of a --store" in line
    assert "the package transformers is not installed; run python -m pip install " in line
    assert list(Path.cwd().iterdir()) == []


def test_interrupt_leaves_whole_files(store_path, tmp_path):
    """Ctrl-C in the middle of training: exit status 130, one line, and no temporary file."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "train", "--store", store_path, "--output-dir", out]
    command += ["--epochs=5000", "--patience=5000", "--tune=none", "--jobs=2"]
    foreground = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731 - a job in the background ignores it
    with subprocess.Popen(
        [*command, "--only=lstm_solo,saplma"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=foreground,
    ) as process:
        expected = {f"{name}-seed0.state.pt" for name in ("lstm_solo", "saplma")}
        expected |= {".lock", "run.json", "tensorboard"}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if out.is_dir() and expected <= {path.name for path in out.iterdir()}:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert {path.name for path in out.iterdir()} == expected


@pytest.mark.slow
def test_outputs_that_are_full_or_closed(store_path, finished):
    """`... | head -1` is no error; a full disk is one line."""
    read, write = os.pipe()
    os.close(read)
    command = predict(finished, store_path, "--models=lstm_solo")
    done = run_python("-m", "train", *command, stdout=write)
    os.close(write)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr
    with Path("/dev/full").open("w") as full:
        done = run_python("-m", "train", "compare", finished, finished, stdout=full)
    assert done.returncode == 2
    expected = "python -m train compare: output: No space left on device"
    assert done.stderr.splitlines()[-1] == expected


@pytest.mark.parametrize(
    "closed", [">&- 2>&-", *(pytest.param(one, marks=pytest.mark.slow) for one in (">&-", "2>&-"))]
)
def test_outputs_that_are_not_there(finished, closed):
    """What would go to one is dropped, as nobody can read it."""
    command = f"{sys.executable} -m train compare {finished} {finished}"
    done = subprocess.run(
        ["sh", "-c", f"{command} {closed}"], cwd=ROOT, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b"AUROC" in done.stdout) == (closed == "2>&-")


@pytest.mark.parametrize(
    "error, status, line",
    [
        (BrokenPipeError(), 0, []),
        (OSError(28, "No space left"), 2, ["python -m train: output: No space left"]),
        (MemoryError(), 2, ["python -m train: expected more memory, found no more: "]),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, ["python -m train: "]),
        (KeyboardInterrupt(), 130, ["python -m train: interrupted; every file written so far is"]),
    ],
)
def test_errors_of_the_machine_are_one_line(monkeypatch, capsys, error, status, line):
    """Whatever the command was about to do."""

    def train(arguments):
        raise error

    monkeypatch.setattr(cli, "train", train)
    monkeypatch.setattr(cli, "discard_output", lambda: None)
    found, _, lines = call(capsys, "--store", "none.zarr")
    assert found == status
    assert [one[: len(start)] for one, start in zip(lines, line, strict=True)] == line
    # the traceback of a module of ours that is missing is what mends it
    error = ModuleNotFoundError("No module named 'train.reprot'", name="train.reprot")
    with pytest.raises(ModuleNotFoundError):
        main(["--store", "none.zarr"])


def test_commands_in_messages_are_named_as_the_user_calls_them(
    monkeypatch, capsys, make_store, labels
):
    """Those of the other package too: in this folder `python -m` may find other modules."""
    monkeypatch.setattr(sys, "argv", ["/bin/trace-train"])
    store = make_store(labels, ["question_id", "hs_last"])
    line = fail_with(capsys, "--store", store, "--models=lstm_solo", "--output-dir=out")
    assert "trace-store label STORE" in line
    assert fail_with(capsys, "compare", "--sead").startswith("trace-train compare: ")
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert "python -m" not in out
    assert "\n  trace-train --store traces.zarr --resume\n" in out


def test_help_has_examples(capsys):
    for command in ("compare", "evaluate", "predict"):
        with pytest.raises(SystemExit, match=r"^0$"):
            main([command, "--help"])
        assert "examples:" in capsys.readouterr().out


def test_mistakes_of_a_command_line_take_no_seconds():
    """Neither torch nor a plotting library is imported to say what is wrong with it."""
    code = (
        "import sys\n"
        "from train.commands.main import main\n"
        "for argv in (['compare', 'x', '--flag'], ['--models=lstm_sol'],\n"
        "             ['--on-top-of=logreg_bst'],\n"
        "             ['evaluate', '--run', 'x', '--store', 'x', '--output', 'x.pdf']):\n"
        "    assert main(argv) == 2\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'scipy')))"
    )
    done = run_python("-c", code)
    assert done.returncode == 0
    _, detector, baseline, _ = done.stderr.splitlines()
    assert "choose from" in detector
    assert "closest: 'lstm_solo'" in detector
    assert "closest: 'logreg_best', " in baseline
