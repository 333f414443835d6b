"""Several processes, on one host or two: together they do what one does, and an error in one of
them ends all. A host is an agent of torchrun on an address of its own of this machine."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from kills import killed_at
from running import ROOT, run_python

from store import StoreWriter, TraceStore
from train.commands.main import main
from train.config import Config
from train.data.splits import read_splits
from train.errors import ConfigError
from train.evaluate.results import StoreRecord
from train.files import read_json
from train.fit.device import build_fabric
from train.run.run_record import Inputs, find_disagreement

SMALL = ["--lstm-hidden=8", "--force-cpu", "--threads=1", "--batch-size=12", "--seeds=1"]
FLAGS = [*SMALL, "--epochs=2", "--dropout=0", "--only=lstm_solo,logreg_best"]
FLAGS += ["--input-scale=raw"]  # standardised numbers are dropped at random
OF_HOSTS = [*SMALL, "--epochs=1", "--models=lstm_solo"]
TORCHRUN = ["-m", "torch.distributed.run"]


def torchrun(n_processes, *arguments):
    """Run the command in several processes; give what it ended with."""
    several = [*TORCHRUN, "--standalone", "--nproc-per-node", n_processes]
    return run_python(*several, "-m", "train", *arguments, timeout=200)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def weights(path, name="lstm_solo"):
    return torch.load(path / f"{name}-seed0.pt", weights_only=True)["weights"]


def forked(n_processes, *arguments):
    """The same in children of this process, which have nothing to import."""
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "TORCHELASTIC_RUN_ID": "forked"}
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


def on_hosts(*commands, folders=(ROOT, ROOT)):
    """Run a command in a folder on each of two hosts; give (status, output, errors) of each."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    port = free_port()
    agents = []
    for rank, (command, folder) in enumerate(zip(commands, folders, strict=True)):
        places = ["--nnodes", 2, "--node-rank", rank, "--nproc-per-node", 1]
        meeting = ["--rdzv-backend", "static"]  # the first host has the first process
        meeting += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", f"127.0.0.{rank + 1}"]
        call = map(str, [sys.executable, *TORCHRUN, *places, *meeting, "-m", "train", *command])
        agents.append(subprocess.Popen([*call], cwd=folder, env=environment, text=True, **pipes))
    found = []
    for agent in agents:
        out, errors = agent.communicate(timeout=200)
        found.append((agent.returncode, out, errors))
    return found


@pytest.mark.slow
def test_a_run_goes_on_where_only_one_host_sees_its_files(make_store, tmp_path):
    """The first process reads for all; the directory of the others is empty."""
    store = make_store(np.random.default_rng(1).integers(0, 2, 200))
    command = ["--store", str(store), *OF_HOSTS, "--dropout", "0", "--save-every", "2", "--resume"]
    hosts = [tmp_path / "first", tmp_path / "second"]
    for host in hosts:
        host.mkdir()
    assert killed_at(9, [*command, "--output-dir", str(hosts[0] / "run")])
    assert list(hosts[0].glob("run/*.state.pt"))
    command += ["--output-dir", "run"]  # of another folder on each host
    found = on_hosts(command, command, folders=hosts)
    assert [status for status, _, _ in found] == [0, 0], found
    assert main([*command, "--output-dir", str(tmp_path / "alone")]) == 0
    assert_close(weights(tmp_path / "alone"), weights(hosts[0] / "run"))
    assert not list(hosts[1].rglob("*.pt"))


@pytest.mark.slow
def test_a_process_that_ends_ends_the_others(make_store, tmp_path):
    """One says why, a host without the store here; the other that a process has ended."""
    store = make_store(np.random.default_rng(1).integers(0, 2, 60))
    flags = [*OF_HOSTS, "--output-dir", tmp_path / "out"]
    found = on_hosts(["--store", store, *flags], ["--store", tmp_path / "none.zarr", *flags])
    assert all(status for status, _, _ in found)
    (_, _, first), (_, _, second) = found
    assert "none.zarr: expected a trace store" in second
    assert "another process has ended, on this host or another" in first
    assert "RuntimeError" not in first
    assert not (tmp_path / "out" / "run.json").exists()


@pytest.mark.slow
def test_hosts_that_see_different_states_of_a_store(make_store, tmp_path):
    """Each host says so before anything is written."""
    store = make_store(np.random.default_rng(1).integers(0, 2, 60))
    later = shutil.copytree(store, tmp_path / "later.zarr")
    with StoreWriter.open(later) as writer:
        trace = TraceStore.open(store)[0]
        writer.append("one more", {name: trace[name] for name in trace})
    found = on_hosts(
        *(
            ["--store", place, *OF_HOSTS, "--output-dir", tmp_path / "out"]
            for place in (store, later)
        )
    )
    for status, _, errors in found:
        assert status
        assert "store: generation" in errors
        assert "wait until all of them see it" in errors
    assert not (tmp_path / "out" / "run.json").exists()


def process(host="a", config=None, **store):
    record = replace(StoreRecord("s.zarr", "u", 3, 10, [], True), **store)
    return host, Inputs(record, "s", config or Config())


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"config": Config(lr=0.2)}, ["expected --lr None as in process 0 on a, found 0.2; give"]),
        ({"generation": 2, "rows": 9}, ["store: generation 3 as in", "found 2", "store: rows 10"]),
        ({"config": Config(num_workers=3)}, []),
    ],
)
def test_what_differs_between_processes_is_named(changes, words):
    """The first process that differs, its host, and both values; reading ahead may differ."""
    message = find_disagreement([process(), process(), process(host="b", **changes)])
    assert (message is None) == (not words)
    for one in words:
        assert one in message.removeprefix("torchrun: process 2 on b: ")


@pytest.mark.parametrize(
    "places, batch_size, message",
    [
        (
            {"WORLD_SIZE": "2"},
            15,
            r"--batch-size: expected a multiple of the 2 processes .*, found 15",
        ),
        (
            {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"},
            12,
            "the same --nproc-per-node on all 2 hosts, found 2",
        ),
    ],
)
def test_what_processes_cannot_share(monkeypatch, places, batch_size, message):
    """Every process needs the same number of rows, and every host the same number of processes."""
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        build_fabric(Config(batch_size=batch_size, force_cpu=True))
