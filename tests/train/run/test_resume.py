"""A run that is killed and resumed ends with the bits of one that never stopped; what does not fit
is refused."""

import json
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from kills import killed_at
from running import ROOT, run_python
from runs import fail

from train.commands.main import main
from train.errors import ConfigError
from train.run.run_record import lock_directory

SMALL = (
    "--gnn-hidden 8 --latent-dim 8 --lstm-hidden 8 --force-cpu --seed 1 --seeds 1 --threads 1 "
    "--batch-size 16"
)
FLAGS = f"{SMALL} --epochs 2 --save-every 2 --mixup 0.3 --seeds 2 --splits 2".split()
FLAGS += ["--only", "lstm_solo,drift,mean_logprob", "--tune", "none"]
N_KILLS = 10
TIMES = ("seconds", "wait_seconds", "ms_per_trace")


def content(path, run):
    """Everything a run wrote that may not depend on when it was stopped, by file name."""
    found = {}
    for file in sorted(path.iterdir()):
        if file.suffix == ".pt":
            found[file.name] = without_times(torch.load(file, weights_only=True), run)
        elif file.suffix == ".json":
            found[file.name] = without_times(json.loads(file.read_text()), run)
        elif file.suffix == ".csv":
            found[file.name] = file.read_bytes()
    return found


def without_times(value, run):
    """The value in plain types: no seconds, no name of the run or its directory."""
    if isinstance(value, dict):
        return {
            key: without_times(one, run)
            for key, one in value.items()
            if key not in (*TIMES, "output_dir", "jobs")
        }
    if isinstance(value, list | tuple):
        return [without_times(one, run) for one in value]
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    return "RUN" if value == run else value


def run_of(path):
    return json.loads((path / "run.json").read_text())["run"]


@pytest.fixture(scope="module")
def whole(store_path, tmp_path_factory):
    """Directory of a run of two splits that never stopped, and its command without the directory.

    A detector that takes scales from a sample is in it.
    """
    path = tmp_path_factory.mktemp("whole") / "out"
    arguments = ["--store", str(store_path), *FLAGS]
    assert main([*arguments, "--output-dir", str(path)]) == 0
    return path, arguments


@pytest.mark.parametrize(
    "n_steps, least_kills", [(40, 2), pytest.param(3, 10, marks=pytest.mark.slow)]
)
def test_killed_again_and_again(whole, tmp_path, n_steps, least_kills):
    """Killed by SIGKILL a few steps after each start, until it comes to its end; what was finished
    is not trained again."""
    path, arguments = whole
    out = tmp_path / "out"
    command = [*arguments, "--output-dir", str(out), "--resume"]
    n_kills = 0
    finished_at = {}
    while killed_at(n_steps + n_kills % 4, command):
        n_kills += 1
        assert n_kills < 60
        for file in out.rglob("*-seed?.pt"):
            assert file.stat().st_mtime_ns == finished_at.setdefault(file, file.stat().st_mtime_ns)
    assert n_kills >= least_kills
    assert any("split-2" in str(file) for file in finished_at)
    for place in (".", "split-2"):
        assert content(out / place, run_of(out)) == content(path / place, run_of(path))


@pytest.mark.slow
def test_a_merged_store_trains_to_the_same_bits(whole, merged_path, tmp_path):
    """Rows are rows, wherever they lie."""
    assert main(["--store", str(merged_path), *FLAGS, "--output-dir", str(tmp_path)]) == 0
    assert (tmp_path / "scores.csv").read_bytes() == (whole[0] / "scores.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_random_moments(whole, tmp_path):
    """The command in processes of its own, killed ten times at random moments: every file is as if
    it never was."""
    path, arguments = whole
    rng, n_kills, n_runs = np.random.default_rng(0), 0, 0
    start = time.perf_counter()
    command = [sys.executable, "-m", "train", *arguments, "--resume", "--output-dir"]
    assert run_python(*command[1:], tmp_path / "timed").returncode == 0
    seconds = time.perf_counter() - start
    while n_kills < N_KILLS:
        out = tmp_path / f"out{n_runs}"
        n_runs += 1
        while True:
            pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
            child = subprocess.Popen([*command, str(out)], cwd=ROOT, **pipes)
            # on a machine that has become busy none would end in that time
            timeout = rng.uniform(0.3, 1.1) * seconds if n_kills < N_KILLS else None
            try:
                _, stderr = child.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
                n_kills += 1
                continue
            assert child.returncode == 0, stderr
            break
        assert content(out, run_of(out)) == content(path, run_of(path))
    print(f"{n_kills} kills of {n_runs} runs of {seconds:.1f} s each")


def stopped_run(folder, arguments):
    """A directory in which a run was killed in its second epoch."""
    out = folder / "out"
    assert killed_at(13, [*arguments, "--output-dir", str(out)])
    return out


@pytest.fixture(scope="module")
def killed(whole, tmp_path_factory):
    """Directory of the run of `whole`, killed in its second epoch; not to be changed."""
    return stopped_run(tmp_path_factory.mktemp("killed"), whole[1])


@pytest.fixture
def stopped(killed, tmp_path):
    """A copy of it."""
    return shutil.copytree(killed, tmp_path / "out")


def snapshot(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def test_other_settings_and_another_store_are_refused(whole, stopped, capsys, make_store, labels):
    """The differences are shown, a damaged state is named, and nothing is touched."""
    _, arguments = whole
    before = snapshot(stopped)
    resume = ["--output-dir", str(stopped), "--resume"]
    line = fail(capsys, *arguments, *resume, "--lr", "0.5", "--dropout", "0.1")
    assert "found --lr 0.5 (the run: None); --dropout 0.1 (the run: 0.3)" in line
    line = fail(capsys, "--store", make_store(labels[:150]), *FLAGS, *resume)
    assert "store: uuid" in line
    assert "rows 150 (the run: 200)" in line
    assert snapshot(stopped) == before
    (state,) = stopped.glob("*.state.pt")
    state.write_bytes(state.read_bytes()[:1000])
    assert f"{state}: unreadable checkpoint" in resume_fails(capsys, arguments, stopped)


def test_an_unfinished_run_is_not_lost_by_accident(whole, stopped, capsys):
    """Without --resume or --overwrite the command is refused; with the latter it begins anew. The
    settings that a run wrote need no other flag: they make the same results."""
    path, arguments = whole
    before, run = snapshot(stopped), run_of(stopped)
    command = [*arguments, "--output-dir", str(stopped)]
    assert "give --resume to continue it, --overwrite to delete it" in fail(capsys, *command)
    assert snapshot(stopped) == before
    command = ["--config", str(path / "run.json"), "--output-dir", str(stopped), "--overwrite"]
    assert main(command) == 0
    assert run_of(stopped) != run
    assert content(stopped, run_of(stopped)) == content(path, run_of(path))


def test_a_finished_run_is_not_replaced_by_another(whole, tmp_path, capsys):
    """The same settings make the same results again, which is said; others need --overwrite, which
    leaves nothing of the old run."""
    _, arguments = whole
    out = tmp_path / "out"
    flags = ["--store", arguments[1], *SMALL.split(), "--epochs", "1", "--output-dir", str(out)]
    flags += ["--no-baselines"]
    said = f"{out}: trained again, in place of the finished run there"
    assert main([*flags, "--models", "saplma"]) == 0
    assert said not in capsys.readouterr().err
    before = snapshot(out)
    line = fail(capsys, *flags, "--models", "lstm_solo", "--lr", "0.1")
    assert (
        "there are results of another run, which differs in "
        "--models 'lstm_solo' (the run: 'saplma'); --lr 0.1" in line
    )
    assert snapshot(out) == before
    assert main([*flags, "--models", "saplma"]) == 0
    assert said in capsys.readouterr().err.splitlines()
    assert main([*flags, "--models", "saplma", "--resume"]) == 0
    assert main([*flags, "--models", "lstm_solo", "--overwrite"]) == 0
    assert said not in capsys.readouterr().err
    assert not list(out.glob("saplma*.pt"))


def test_two_runs_do_not_share_a_directory(tmp_path):
    """The second one is refused while the first lives."""
    with (
        lock_directory(tmp_path),
        pytest.raises(ConfigError, match="another process is training into it"),
        lock_directory(tmp_path),
    ):
        pass
    with lock_directory(tmp_path):
        pass


def resume_fails(capsys, arguments, out):
    """Resume a run, which must fail with one line below the progress bar; give that line."""
    before = snapshot(out)
    assert main([*arguments, "--output-dir", str(out), "--resume"]) == 2
    assert snapshot(out) == before
    return capsys.readouterr().err.splitlines()[-1]


def test_a_state_of_another_layer_is_refused(whole, tmp_path, capsys):
    """Weights of one layer would go on with states of another."""
    arguments = [*whole[1], "--only", "saplma", "--saplma-layer", "2"]
    out = stopped_run(tmp_path, arguments)
    (path,) = out.glob("*.state.pt")
    torch.save(torch.load(path, weights_only=True) | {"layer": 1}, path)
    line = resume_fails(capsys, arguments, out)
    assert f"{path}: expected a training on layer 2, found layer 1; train again" in line


def test_seeds_of_several_layers_are_refused(whole, tmp_path, capsys):
    """Their mean would be called the result of one layer."""
    arguments = [*whole[1], "--only", "saplma", "--tune", "small", "--splits", "1"]
    out = tmp_path / "out"
    assert main([*arguments, "--output-dir", str(out)]) == 0
    first, second = sorted(out.glob("saplma-seed*.pt"))
    finished = torch.load(first, weights_only=True)
    layer = finished["config"]["saplma_layer"]
    finished["config"]["saplma_layer"] = 3 - layer
    torch.save(finished, first)
    second.unlink()
    line = resume_fails(capsys, arguments, out)
    assert f"{first}: expected a training on layer {layer}, that of seed 2" in line
    assert f"found layer {3 - layer}; train again: --overwrite" in line
