"""Training on a store at an address gives what training on the local store gives."""

import subprocess
import sys

import pytest
from pushing import push
from test_killed import environment_of

from store.sources.example import ExampleSource
from store.write.build import build_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FLAGS = "--models lstm_solo,gnn_det_lstm,logreg_pca --epochs 2 --save-every 2 --seed 1 --threads 1"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The embedded example."""
    return build_store(tmp_path_factory.mktemp("example") / "example.zarr", ExampleSource()).path


@pytest.fixture
def train(bucket, local, monkeypatch):
    """Starts a training: (store, directory) -> process."""
    push(local, bucket.open(limit_s=120.0, attempt_s=60.0, stall_s=60.0))
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server)

    def start(store, out, cache_dir):
        flags = [*FLAGS.split(), "--resume", "--force-cpu", "--store", str(store)]
        command = [sys.executable, "-m", "train", *flags, "--output-dir", str(out)]
        environment = environment_of(bucket) | {"TRACE_STORE_CACHE_DIR": str(cache_dir)}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    return start
