"""Clusters: what is asked of one, and a few parts on two workers of Ray and of Dask for real."""

import socketserver
import sys
import threading
from importlib.util import find_spec

import numpy as np
import pytest
from launching import MAP, N_FILES, N_TRACES, write_arrays
from running import run_python
from small import refused

from store import TraceStore
from store.errors import NotFoundError
from store.launch.engine import check_workers
from store.launch.task import make_check

PACKAGES = {"ray": "ray", "dask": "distributed"}
SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # a frame of HTTP/2
MOST_S = 120.0  # 9 on a quiet machine; Ray alone would ask for minutes


class Http2(socketserver.StreamRequestHandler):
    """Speaks HTTP/2, and says nothing more."""

    def handle(self):
        self.wfile.write(SETTINGS)
        self.rfile.read()


@pytest.fixture
def http2():
    """The address of a server that does."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Http2) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.slow
def test_what_only_looks_like_ray_is_refused(http2, tmp_path):
    """In one line and in time."""
    if find_spec("ray") is None:
        pytest.skip("the extra is not installed: pip install '.[ray]'")
    job = ["import", str(tmp_path / "o.zarr"), str(write_arrays(tmp_path / "x")), "--map", MAP]
    options = ["--engine", "ray", "--address", http2, "--parts", "2"]
    done = run_python("-m", "store", "launch", *options, "--", *job, timeout=MOST_S)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    said = "expected HOST:PORT of a cluster, found no answer (nothing of Ray's in"
    assert f"--address {http2}: {said}" in line


@pytest.mark.parametrize("engine", ["dask", pytest.param("ray", marks=pytest.mark.slow)])
def test_parts_on_two_workers(engine, tmp_path):
    """All traces of all parts are in the store, with their values."""
    if find_spec(PACKAGES[engine]) is None:
        pytest.skip(f"the extra is not installed: pip install '.[{engine}]'")
    files = write_arrays(tmp_path / "files")
    out = tmp_path / "o.zarr"
    options = ["--engine", engine, "--parts", "2", "--workers", "2"]
    job = ["import", str(out), str(files), "--map", MAP]
    done = run_python("-m", "store", "launch", *options, "--", *job)
    assert done.returncode == 0, done.stderr + done.stdout
    store = TraceStore.open(out, check=True)
    found = {trace["question_id"]: trace["hs_last"] for trace in store}
    assert len(found) == len(store) == N_FILES * N_TRACES
    for file in range(N_FILES):
        with np.load(files / f"{file}.npz") as arrays:
            for question, states in zip(arrays["qid"], arrays["layers"], strict=True):
                np.testing.assert_array_equal(np.asarray(found[str(question)]), states)


def test_a_worker_that_lacks_something_is_named():
    """In one line; those that lack nothing are not."""
    check_workers({"a": ""})
    with pytest.raises(NotFoundError, match=r"^worker b: two lines$"):
        check_workers({"a": "", "b": ImportError("two\nlines")})


def test_a_worker_without_the_package_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "store.extras", None)
    assert "install the same version there" in make_check("trace-store 1", "/")()


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_a_missing_extra_is_named(engine, package, tmp_path, monkeypatch, capsys):
    """With the command that installs it; nothing is made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"store.launch.on_{engine}", raising=False)
    write_arrays(tmp_path / "x")
    job = ["import", "o.zarr", "x", "--map", MAP]
    line = refused(capsys, "launch", "--engine", engine, "--parts", "2", "--", *job)
    assert f"the package {package} is not installed; run python -m pip install" in line
    assert f"[{engine}]'" in line
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
