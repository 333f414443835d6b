"""Training on a store at an address ends with the digits of training on the local store."""

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
import torch
from web_server import WebServer

from store.sources.example import ExampleSource
from store.write.build import build_store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("obstore") is None, reason="pip install '.[remote]'"),
]

FLAGS = (
    "--models lstm_solo,gnn_det_lstm,logreg_pca --epochs 2 --save-every 2 --seed 1 --seeds 1 "
    "--threads 1"
)
CACHE_BYTES = "30MB"  # of 45 MB
MEASURED = 2  # columns of the table that hold seconds, the last ones


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The embedded example."""
    return build_store(tmp_path_factory.mktemp("example") / "example.zarr", ExampleSource()).path


@pytest.fixture
def url(local):
    """The same at an address, of a server that answers as fast as training asks."""
    server = WebServer(local.parent)
    yield f"{server.url}/files/{local.name}"
    server.close()


def start(store, out, cache_dir):
    """Train, or go on with a training."""
    flags = [*FLAGS.split(), "--resume", "--force-cpu", "--store", str(store)]
    command = [sys.executable, "-m", "train", *flags, "--output-dir", str(out)]
    cache = {"TRACE_STORE_CACHE_DIR": str(cache_dir), "TRACE_STORE_CACHE_BYTES": CACHE_BYTES}
    # long seconds of a busy machine would fold the names of the table
    wide = {"COLUMNS": "200"}
    environment = os.environ | cache | wide
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finish(process):
    """The table that was printed: name -> figures."""
    text, _ = process.communicate(timeout=600)
    assert process.returncode == 0, text
    lines = (line.split() for line in text.splitlines())
    return {words[0]: words[1:-MEASURED] for words in lines if len(words) > 10 and "[" in words[2]}


def results(out):
    """Scores, and the weights of every detector."""
    weights = {
        path.name: {
            name: tensor.numpy().tobytes()
            for name, tensor in torch.load(path, weights_only=True)["weights"].items()
        }
        for path in sorted(out.glob("*-seed1.pt"))
    }
    assert len(weights) == 2
    return (out / "scores.csv").read_bytes(), weights


def test_an_address_trains_to_the_same_table_and_a_killed_training_goes_on_elsewhere(
    url, local, tmp_path
):
    """Elsewhere: with an empty cache directory, as on another machine."""
    expected = finish(start(local, tmp_path / "local", tmp_path / "none"))
    assert {"lstm_solo", "gnn_det_lstm", "logreg_pca", "answer_length"} <= expected.keys()
    assert finish(start(url, tmp_path / "whole", tmp_path / "cache")) == expected
    assert results(tmp_path / "whole") == results(tmp_path / "local")
    stopped = tmp_path / "stopped"
    process = start(url, stopped, tmp_path / "cache")
    half_done = stopped / "lstm_solo-seed1.pt", stopped / "gnn_det_lstm-seed1.state.pt"
    while process.poll() is None and not all(file.exists() for file in half_done):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (stopped / "gnn_det_lstm-seed1.pt").exists()
    assert finish(start(url, stopped, tmp_path / "other")) == expected
    assert results(stopped) == results(tmp_path / "local")
