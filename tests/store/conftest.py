"""An in-memory model of a store, the oracle: a list of (trace id, dict of arrays)."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from damage import shrink, write_small
from merged import write_merged
from oracle import ROWS, SCHEMA, make_rows, write_store
from view_traces import N_ROWS, PROVENANCE, make_row, write_traces
from view_traces import SCHEMA as TRACES_SCHEMA

MERGED = [False, pytest.param(True, marks=pytest.mark.slow)]


@pytest.fixture(scope="session")
def rows():
    """Forty awkward rows: empty, single, long; every shard and chunk border is crossed."""
    return make_rows(SCHEMA, 40, seed=0)


@pytest.fixture(scope="session", params=MERGED, ids=["written", "merged"])
def store_path(request, tmp_path_factory, rows):
    """The rows, written in five commits by two writers; or merged by reference of five parts."""
    path = tmp_path_factory.mktemp("stores") / "traces.zarr"
    write = write_merged if request.param else write_store
    return write(path, SCHEMA, rows, 5)


@pytest.fixture(params=MERGED, ids=["written", "merged"])
def broken_path(request, tmp_path, rows):
    """A store of its own for a test that damages it."""
    path = tmp_path / "broken.zarr"
    return write_merged(path, SCHEMA, rows, 3) if request.param else write_store(path, SCHEMA, rows)


@pytest.fixture(scope="session", params=MERGED, ids=["written", "merged"])
def whole(request, tmp_path_factory):
    """The seventeen rows of the oracle, written in two commits, or merged of two parts."""
    path = tmp_path_factory.mktemp("whole") / "s.zarr"
    write = write_merged if request.param else write_store
    return write(path, SCHEMA, ROWS, 2)


@pytest.fixture(scope="session")
def merged_path(tmp_path_factory, rows):
    """The rows, merged by reference of five parts; every column has segments."""
    path = tmp_path_factory.mktemp("merged") / "traces.zarr"
    return write_merged(path, SCHEMA, rows, 5)


@pytest.fixture
def path(whole, tmp_path):
    """A copy of them, for a test that damages it."""
    return shutil.copytree(whole, tmp_path / "s.zarr")


@pytest.fixture
def small_store(tmp_path, monkeypatch):
    """The store of a few KB, whose every byte can be damaged in its turn."""
    shrink(monkeypatch)
    return write_small(tmp_path / "s.zarr")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - whatever a library draws


@pytest.fixture(scope="session")
def traces():
    """The rows as they were written: the oracle."""
    return [(f"trace-{i:02}", make_row(i)) for i in range(N_ROWS)]


@pytest.fixture(scope="session")
def traces_path(tmp_path_factory, traces):
    """A store with awkward rows: no tokens, one token, hostile texts, NaN, every label."""
    path = tmp_path_factory.mktemp("view") / "traces.zarr"
    return write_traces(path, TRACES_SCHEMA, traces, PROVENANCE)
