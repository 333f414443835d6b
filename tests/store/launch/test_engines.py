"""Clusters for real: a few parts on two workers of Ray and of Dask, where these are installed."""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from launching import MAP, N_FILES, N_TRACES, ROOT, write_arrays

from store import TraceStore

PACKAGES = {"ray": "ray", "dask": "distributed"}


@pytest.mark.parametrize("engine", PACKAGES)
def test_parts_on_two_workers(engine, tmp_path):
    """All traces of all parts are in the store, with their values."""
    if find_spec(PACKAGES[engine]) is None:
        pytest.skip(f"the extra is not installed: pip install '.[{engine}]'")
    files = write_arrays(tmp_path / "files")
    out = tmp_path / "o.zarr"
    options = ["--engine", engine, "--parts", str(N_FILES), "--workers", "2"]
    job = ["import", str(out), str(files), "--map", MAP]
    done = subprocess.run(
        [sys.executable, "-m", "store", "launch", *options, "--", *job],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    store = TraceStore.open(out, check=True)
    found = {trace["question_id"]: trace["hs_last"] for trace in store}
    assert len(found) == len(store) == N_FILES * N_TRACES
    for file in range(N_FILES):
        with np.load(files / f"{file}.npz") as arrays:
            for question, states in zip(arrays["qid"], arrays["layers"], strict=True):
                np.testing.assert_array_equal(np.asarray(found[str(question)]), states)
