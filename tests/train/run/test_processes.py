"""Several processes: together they do what one does, and an error in one of them ends all."""

import os
import socket
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch
from running import run_python

from store import TraceStore
from train.commands.main import main
from train.config import Config
from train.data.splits import read_splits
from train.errors import ConfigError
from train.files import read_json
from train.fit.device import build_fabric

FLAGS = ["--lstm-hidden=8", "--force-cpu", "--threads=1", "--batch-size=12", "--epochs=2"]
FLAGS += ["--seeds=1", "--dropout=0", "--only=lstm_solo,logreg_best"]
FLAGS += ["--input-scale=raw"]  # standardised numbers are dropped at random


def torchrun(n_processes, *arguments):
    """Run the command in several processes; give what it ended with."""
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n_processes]
    return run_python(*several, "-m", "train", *arguments, timeout=200)


def weights(path, name="lstm_solo"):
    return torch.load(path / f"{name}-seed0.pt", weights_only=True)["weights"]


def forked(n_processes, *arguments):
    """The same in children of this process, which have nothing to import."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "forked"}
    here |= {"WORLD_SIZE": n_processes, "LOCAL_WORLD_SIZE": n_processes, "GROUP_RANK": 0}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        children = []
        for rank in range(n_processes):
            children.append(os.fork())
            if children[-1] == 0:
                status = 70
                try:
                    os.dup2(out.fileno(), 1)
                    os.dup2(err.fileno(), 2)
                    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                    place = here | {"RANK": rank, "LOCAL_RANK": rank}
                    os.environ |= {name: str(value) for name, value in place.items()}
                    status = main(list(map(str, arguments)))
                    sys.stdout.flush()
                    sys.stderr.flush()
                finally:
                    os._exit(status)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        texts = [file.seek(0) or file.read() for file in (out, err)]
    return subprocess.CompletedProcess(arguments, max(map(abs, statuses)), *texts)


@pytest.mark.parametrize(
    "start, n_processes", [(forked, 2), pytest.param(torchrun, 3, marks=pytest.mark.slow)]
)
def test_processes_agree_with_one(start, n_processes, make_store, tmp_path):
    """Same global batches, same weights and scores within rounding; also where a last batch leaves
    one without rows."""
    store = make_store(np.random.default_rng(1).integers(0, 2, 200))
    n_used = n_traces(TraceStore.open(store), 12, n_processes)
    command = ["--store", store, *FLAGS, "--max-traces", n_used]
    assert main([*map(str, command), "--output-dir", str(tmp_path / "one")]) == 0
    done = start(n_processes, *command, "--output-dir", tmp_path / "several")
    assert done.returncode == 0, done.stderr
    assert_close(weights(tmp_path / "one"), weights(tmp_path / "several"))
    one, several = (read_json(tmp_path / name / "results.json") for name in ("one", "several"))
    (a,), (b,) = (found["models"]["lstm_solo"]["runs"] for found in (one, several))
    for epoch, other in zip(a["history"], b["history"], strict=True):
        assert epoch == pytest.approx(other, rel=1e-4)
    assert one["baselines"]["logreg_best"]["test"] == several["baselines"]["logreg_best"]["test"]
    assert several["machine"]["processes"] == n_processes
    assert done.stdout.count("test split:") == 1  # one process reports


@pytest.mark.slow
def test_processes_agree_on_images(make_store, tmp_path):
    """Each keeps its share of the images; weights and the moments of states are those of one."""
    store = make_store(np.random.default_rng(1).integers(0, 2, 200))
    command = ["--store", store, *FLAGS, "--only", "act_conv", "--image-tokens", "6"]
    command += ["--batch-size", "8", "--image-cache", "4000", "--image-width", "8"]
    assert main([*map(str, command), "--output-dir", str(tmp_path / "one")]) == 0
    done = torchrun(2, *command, "--output-dir", tmp_path / "several")
    assert done.returncode == 0, done.stderr
    one, several = (weights(tmp_path / name, "act_conv") for name in ("one", "several"))
    torch.testing.assert_close(one["standardise.mean"], several["standardise.mean"])
    assert_close(one, several)


def n_traces(store, batch_size, n_processes):
    """How many traces leave train a last batch with fewer rows than there are processes."""
    sizes = {n: len(read_splits(store, Config(max_traces=n)).train) for n in range(100, 200)}
    return next(n for n, n_train in sizes.items() if 0 < n_train % batch_size < n_processes)


def assert_close(one, several):
    """Weights that differ by rounding only."""
    for name in one:
        torch.testing.assert_close(one[name], several[name], rtol=1e-4, atol=1e-5)


def test_a_batch_that_cannot_be_shared(monkeypatch):
    """Every process would need the same number of rows."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = r"--batch-size: expected a multiple of the 2 processes .*, found 15"
    with pytest.raises(ConfigError, match=message):
        build_fabric(Config(batch_size=15, force_cpu=True))
