"""The command: every mistake is one line on stderr, exit status 2, and nothing written; Ctrl-C is
130."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from models import BASELINES, CONTROLS
from store import Column, Schema, StoreWriter, TraceStore
from store.cli.main import main as store_main
from train.commands import main as cli
from train.commands.main import main
from train.data import requirements

ROOT = Path(__file__).parents[3]


def fail(capsys, tmp_path, *argv):
    """Run a command that must fail; give its one line."""
    out = tmp_path / "out"
    assert main([*map(str, argv), "--output-dir", str(out)]) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1
    assert captured.out == ""
    assert lines[0].startswith("python -m train: ")
    assert not out.exists()
    return lines[0]


def test_a_path_that_is_not_there(capsys, tmp_path):
    """The path is named."""
    assert "nowhere.zarr" in fail(capsys, tmp_path, "--store", tmp_path / "nowhere.zarr")


def test_a_store_that_is_not_finished(capsys, tmp_path, make_store, labels):
    """The build that was stopped is named, and how it goes on."""
    make_store(labels, name="big.zarr.partial")
    line = fail(capsys, tmp_path, "--store", tmp_path / "big.zarr")
    assert "big.zarr.partial holds 200 traces" in line


def test_a_path_that_is_no_store(capsys, tmp_path):
    """A directory of something else is named."""
    (tmp_path / "photos").mkdir()
    assert "photos" in fail(capsys, tmp_path, "--store", tmp_path / "photos")


def test_a_store_of_a_newer_format(capsys, tmp_path, make_store, labels):
    """The versions are named."""
    store = make_store(labels)
    text = json.loads((store / "zarr.json").read_text())
    text["attributes"]["trace_store"]["format_version"] = 99
    (store / "zarr.json").write_text(json.dumps(text))
    assert "99" in fail(capsys, tmp_path, "--store", store)


def test_a_column_that_a_detector_lacks(capsys, tmp_path, make_store, labels):
    """The detector, the column and the flag that leaves it out are named."""
    store = make_store(labels, columns=["question_id", "label", "hs_last"])
    line = fail(capsys, tmp_path, "--store", store)
    assert "gnn_det_lstm: expected column 'hidden_states'" in line
    assert "--no-run-gnn-det" in line


def test_a_column_that_a_readout_lacks(capsys, tmp_path, make_store, labels):
    """Only the mean over the answer needs to know where it is; another readout is named."""
    columns = ["question_id", "label", "hidden_states", "attn_mean"]
    store = make_store(labels, columns=columns)
    only = ["--store", str(store), "--models", "gnn_det_lstm"]
    line = fail(capsys, tmp_path, *only, "--readout", "answer")
    assert "gnn_det_lstm: expected column 'prompt_len', found only" in line
    assert "or give another --readout, or leave it out with --no-run-gnn-det" in line
    small = ["--epochs=1", "--gnn-hidden=8", "--lstm-hidden=8", "--force-cpu"]
    assert main([*only, *small, "--output-dir", str(tmp_path / "other")]) == 0


def test_a_column_that_a_command_derives(capsys, tmp_path, make_store, labels):
    """The command is named, and adds it."""
    store = make_store(labels, columns=["question_id", "label", "hidden_states"])
    line = fail(capsys, tmp_path, "--store", store, "--models", "saplma")
    assert f"python -m store derive {store} hs_last adds it" in line
    assert store_main(["derive", str(store), "hs_last"]) == 0
    assert "hs_last" in TraceStore.open(store).schema.columns


def test_the_mean_of_states_is_derived(capsys, tmp_path, make_store, labels):
    """The command is named where the store has the states and where the answer begins."""
    columns = ["question_id", "label", "hs_last", "hidden_states", "prompt_len"]
    store = make_store(labels, columns=columns)
    flags = ("--models", "saplma", "--on-top-of", "logreg_mean")
    line = fail(capsys, tmp_path, "--store", store, *flags)
    assert f"python -m store derive {store} hs_mean adds it" in line


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("eigenscore", "eigenscore adds it, if questions have several traces"),
        ("selfcheck_nli", "selfcheck_nli --nli MODEL adds it"),
    ],
)
def test_scores_of_samples_are_derived(capsys, tmp_path, store_path, name, command):
    """The command is named, with the classifier where it takes one."""
    line = fail(capsys, tmp_path, "--store", store_path, "--models", name)
    assert f"python -m store derive {store_path} {command}" in line


def test_scores_of_samples_are_trained_on(tmp_path, make_store, labels):
    """As the command of the message adds them, where one question has a single trace."""
    columns = ["question_id", "label", "hs_last"]
    path = make_store([*labels, 1], columns)
    assert store_main(["derive", str(path), "eigenscore"]) == 0
    out = tmp_path / "run"
    assert main(["--store", str(path), "--models", "eigenscore", "--output-dir", str(out)]) == 0
    found = json.loads((out / "results.json").read_text())
    assert 0 <= found["models"]["eigenscore"]["test"]["auroc"] <= 1


@pytest.mark.parametrize(
    ("model", "column", "words"),
    [
        ("trilens", "lens_entropy", "store extract --columns default,lens_entropy)"),
        ("rauq", "attn_prev", "again with that column (python -m store extract)"),
        ("sink_probe", "attn_colsum", "(python -m store extract or import)"),
    ],
)
def test_a_column_that_only_extraction_makes(capsys, tmp_path, store_path, model, column, words):
    """The command that makes it is named, with the flag that it takes."""
    line = fail(capsys, tmp_path, "--store", store_path, "--models", model)
    assert f"{model}: expected column '{column}'" in line
    assert words in line


@pytest.mark.parametrize("column", ["label", "question_id"])
def test_a_column_that_the_split_lacks(capsys, tmp_path, make_store, labels, column):
    """Without labels or questions there is nothing to split."""
    columns = [
        c for c in ("question_id", "label", "hs_last", "hidden_states", "attn_mean") if c != column
    ]
    assert f"the split: expected column '{column}'" in fail(
        capsys, tmp_path, "--store", make_store(labels, columns)
    )


def test_a_store_without_labels(capsys, tmp_path, make_store):
    """All unlabelled is said with the count."""
    assert "found all 30 unlabelled" in fail(capsys, tmp_path, "--store", make_store([-1] * 30))


def test_a_side_with_one_class(capsys, tmp_path, make_store):
    """The split and both counts are named."""
    line = fail(capsys, tmp_path, "--store", make_store([0] * 60))
    assert "train split: expected both classes, found 0 hallucinations among" in line


def test_a_value_out_of_range(capsys, tmp_path):
    """The flag, its range and the value are named, before any store is opened."""
    line = fail(capsys, tmp_path, "--attn-threshold", "7", "--store", "nowhere.zarr")
    assert "--attn-threshold: expected at least 0 and at most 1, found 7" in line


def test_infinite_states(capsys, tmp_path, make_store, labels):
    """An infinity in the states stops the run with the trace's id."""

    def poison(number, row):
        if number in (1, 2, 3, 4, 5, 6, 7, 8, 9):
            row["hs_last"][0, 0] = float("inf")

    store = make_store(labels, change=poison)
    assert (
        main(["--store", str(store), "--output-dir", str(tmp_path / "out"), "--epochs", "1"]) == 2
    )
    assert "expected a finite number" in capsys.readouterr().err.splitlines()[-1]


def test_an_output_directory_that_cannot_be(capsys, tmp_path, store_path):
    """A file in its place is said."""
    (tmp_path / "file").write_text("")
    assert main(["--store", str(store_path), "--output-dir", str(tmp_path / "file")]) == 2
    assert "expected a directory for results" in capsys.readouterr().err


def test_the_example_is_built_once(tmp_path, monkeypatch):
    """Without --store the example is built where it is missing, and only there."""
    built = []

    def build(path):
        built.append(path)
        path.mkdir(parents=True)

    path = tmp_path / "data" / "example.zarr"
    monkeypatch.setattr(cli, "build_example", build)
    cli.build_example_once(path)
    cli.build_example_once(path)
    assert built == [path]


def test_the_example_without_transformers(tmp_path, monkeypatch, capsys):
    """One line with the command of the README, before anything is announced or made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "store.sources.example", raising=False)
    assert main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the package transformers is not installed; run python -m pip install" in line
    assert line.endswith("[extract]'")
    assert list(tmp_path.iterdir()) == []


def test_interrupt_leaves_whole_files(store_path, tmp_path):
    """Ctrl-C in the middle of training: exit status 130, one line, and no temporary file."""
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "train",
        "--store",
        store_path,
        "--output-dir",
        out,
        "--epochs",
        "5000",
        "--patience",
        "5000",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    foreground = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731 - a job in the background ignores it
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=foreground,
    ) as process:
        deadline = time.monotonic() + 60
        while (
            not (out / "lstm_solo-seed0.state.pt").exists()
            and time.monotonic() < deadline
            and process.poll() is None
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err.splitlines()[-1]
    assert "Traceback" not in err
    fitted = [*BASELINES, *(name for name in CONTROLS if name != "question_only")]
    baselines = {f"{name}.pt" for name in fitted}
    others = {".lock", "run.json", "lstm_solo-seed0.state.pt", "tensorboard"}
    assert {path.name for path in out.iterdir()} == others | baselines


@pytest.mark.parametrize(
    "name, column, value, message",
    [
        (
            "question_id",
            Column("int32"),
            3,
            "expected column 'question_id' to be text, found fixed with 0 item axes",
        ),
        (
            "label",
            Column("utf8"),
            "1",
            "expected column 'label' to be fixed with 0 item axes, found text",
        ),
        (
            "hs_last",
            Column("float16", (4,)),
            np.zeros(4, np.float16),
            "column 'hs_last' to be fixed with 2 item axes",
        ),
        (
            "hidden_states",
            Column("float16", (2, 4)),
            np.zeros((2, 4), np.float16),
            "to be ragged with 2 item axes",
        ),
    ],
)
def test_a_column_of_another_kind(capsys, tmp_path, name, column, value, message):
    """A name alone does not make a column: its kind and shape are checked before anything is
    written."""
    columns = {
        "question_id": Column("utf8"),
        "label": Column("int8"),
        "hs_last": Column("float16", (2, 4)),
        "hidden_states": Column("float16", (2, 4), axis="tokens"),
        "attn_mean": Column("float16", (2,), axis="pairs"),
    }
    row = {
        "question_id": "q",
        "label": 1,
        "hs_last": np.zeros((2, 4), np.float16),
        "hidden_states": np.zeros((1, 2, 4), np.float16),
        "attn_mean": np.zeros((1, 2), np.float16),
    }
    with StoreWriter.create(tmp_path / "s.zarr", Schema(columns | {name: column})) as writer:
        writer.append("a", row | {name: value})
    assert message in fail(capsys, tmp_path, "--store", tmp_path / "s.zarr")


def test_a_trace_with_the_wrong_number_of_pairs(capsys, tmp_path, make_store, labels):
    """The trace is named before anything is trained."""

    def drop_a_pair(number, row):
        if number == 7:
            row["attn_mean"] = row["attn_mean"][1:]

    line = fail(capsys, tmp_path, "--store", make_store(labels, change=drop_a_pair))
    assert "column 'attn_mean', trace 't7': expected T(T+1)/2 =" in line


def test_maps_that_are_no_squares(capsys, tmp_path, make_store, labels):
    """The trace is named before anything is trained."""

    def drop_a_pair(number, row):
        if number == 7:
            row["attentions"] = row["attentions"][1:]

    store = make_store(labels, change=drop_a_pair)
    line = fail(capsys, tmp_path, "--store", store, "--models=charm")
    assert "column 'attentions', trace 't7': expected T * T =" in line


@pytest.mark.parametrize(
    "limit, way_out",
    [
        (1500, "lower --batch-size, to 5 at most, or read fewer --layers"),
        (287, "read fewer --layers, or leave out long traces (python -m store subset)"),
    ],
)
def test_maps_that_do_not_fit(capsys, tmp_path, store_path, monkeypatch, limit, way_out):
    """Batches of the longest traces have to fit: 288 bytes of a trace of 6 tokens."""
    monkeypatch.setattr(requirements, "MAX_MAPS_BYTES", limit)
    line = fail(capsys, tmp_path, "--store", store_path, "--models=charm", "--batch-size=8")
    assert f"charm: expected at most {limit:,} bytes of column 'attentions' in a batch" in line
    assert "found 2,304 in the 8 longest traces" in line
    assert line.endswith(way_out)


def test_edges_that_the_store_does_not_keep(capsys, tmp_path, make_store, labels):
    """A threshold below that of the column would find nothing more."""
    store = make_store(labels)
    flags = ["--store", store, "--models=charm_edges", "--charm-threshold"]
    assert "--charm-threshold: expected 0.05 or more" in fail(capsys, tmp_path, *flags, "0.04")


def test_results_never_go_into_the_store(capsys, store_path):
    assert main(["--store", str(store_path), "--output-dir", str(store_path / "label")]) == 2
    assert "expected a directory outside the store" in capsys.readouterr().err


def test_an_empty_store_name_is_not_the_example(capsys, tmp_path):
    """An unset variable in a shell script must not train on something else."""
    assert "expected a trace store" in fail(capsys, tmp_path, "--store", "")


@pytest.mark.parametrize("flag", ["--seed", "--top-k", "--lstm-hidden", "--epochs"])
def test_absurdly_large_numbers(capsys, tmp_path, flag):
    assert f"{flag}: expected" in fail(capsys, tmp_path, flag, "9" * 400)


@pytest.fixture(scope="module")
def small_run(store_path, tmp_path_factory):
    """Directory of a run of one epoch."""
    out = tmp_path_factory.mktemp("small") / "run"
    arguments = ["--store", store_path, "--output-dir", out, "--models=lstm_solo", "--epochs=1"]
    assert main([*map(str, arguments)]) == 0
    return out


def run_command(stdout, *command):
    """A command in a process of its own, with another standard output."""
    return subprocess.run(
        [sys.executable, "-m", "train", *map(str, command)],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_a_reader_that_leaves_is_no_error(store_path, small_run):
    """`... | head -1`: neither a traceback nor a line on stderr."""
    read, write = os.pipe()
    os.close(read)
    done = run_command(write, "predict", "--run", small_run, "--store", store_path)
    os.close(write)
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr
    assert done.returncode == 0


def test_an_output_that_is_full_is_one_line(small_run):
    with Path("/dev/full").open("w") as full:
        done = run_command(full, "compare", small_run, small_run)
    assert done.returncode == 2
    expected = "python -m train compare: output: No space left on device"
    assert done.stderr.splitlines()[-1] == expected


def test_the_installed_command_names_itself(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/bin/trace-train"])
    assert main(["compare", "--sead"]) == 2
    assert capsys.readouterr().err.startswith("trace-train compare: ")


def test_commands_in_messages_are_named_as_the_user_calls_them(
    monkeypatch, capsys, tmp_path, make_store, labels
):
    """Those of the other package too: in this folder `python -m` may find other modules."""
    monkeypatch.setattr(sys, "argv", ["/bin/trace-train"])
    store = make_store(labels, ["question_id", "hs_last"])
    assert main(["--store", str(store), "--models", "lstm_solo", "--output-dir", "out"]) == 2
    assert "trace-store label STORE" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert "python -m" not in out
    assert "\n  trace-train --store traces.zarr --resume\n" in out
