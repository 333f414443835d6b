"""Several hosts: two agents of torchrun on two addresses of this machine, and one run directory."""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from kills import killed_at
from running import ROOT

from store import StoreWriter, TraceStore
from train.commands.main import main
from train.config import Config
from train.errors import ConfigError
from train.evaluate.results import StoreRecord
from train.fit.device import build_fabric
from train.run.run_record import Inputs, find_disagreement

FLAGS = ["--lstm-hidden", "8", "--force-cpu", "--threads", "1", "--batch-size", "12"]
FLAGS += ["--epochs", "1", "--seeds", "1", "--models", "lstm_solo"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def free_port():
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


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
        call = map(str, [*TORCHRUN, *places, *meeting, "-m", "train", *command])
        agents.append(subprocess.Popen([*call], cwd=folder, env=environment, text=True, **pipes))
    found = []
    for agent in agents:
        out, errors = agent.communicate(timeout=200)
        found.append((agent.returncode, out, errors))
    return found


def weights(path):
    return torch.load(path / "lstm_solo-seed0.pt", weights_only=True)["weights"]


@pytest.mark.slow
def test_a_run_goes_on_where_only_one_host_sees_its_files(make_store, tmp_path):
    """The first process reads for all; the directory of the others is empty."""
    store = make_store(np.random.default_rng(1).integers(0, 2, 200))
    command = ["--store", str(store), *FLAGS, "--dropout", "0", "--save-every", "2", "--resume"]
    hosts = [tmp_path / "first", tmp_path / "second"]
    for host in hosts:
        host.mkdir()
    assert killed_at(9, [*command, "--output-dir", str(hosts[0] / "run")])
    assert list(hosts[0].glob("run/*.state.pt"))
    command += ["--output-dir", "run"]  # of another folder on each host
    found = on_hosts(command, command, folders=hosts)
    assert [status for status, _, _ in found] == [0, 0], found
    assert main([*command, "--output-dir", str(tmp_path / "alone")]) == 0
    for name, weight in weights(tmp_path / "alone").items():
        torch.testing.assert_close(weight, weights(hosts[0] / "run")[name], rtol=1e-4, atol=1e-5)
    assert not list(hosts[1].rglob("*.pt"))


@pytest.mark.slow
def test_a_process_that_ends_ends_the_others(make_store, tmp_path):
    """One says why, a host without the store here; the other that a process has ended."""
    store = make_store(np.random.default_rng(1).integers(0, 2, 60))
    flags = [*FLAGS, "--output-dir", tmp_path / "out"]
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
        *(["--store", place, *FLAGS, "--output-dir", tmp_path / "out"] for place in (store, later))
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


def test_hosts_with_unequal_numbers_of_processes(monkeypatch):
    """Are refused before they wait for one another."""
    for name, value in (("WORLD_SIZE", 3), ("LOCAL_WORLD_SIZE", 2), ("GROUP_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(ConfigError, match="the same --nproc-per-node on all 2 hosts, found 2"):
        build_fabric(Config(batch_size=12, force_cpu=True))
