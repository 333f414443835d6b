"""Stores and runs that the tests of the page look at."""

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from view_traces import N_ROWS, PROVENANCE, SCHEMA, make_row, write_traces


@pytest.fixture(scope="session")
def traces():
    """The rows as they were written: the oracle."""
    return [(f"trace-{i:02}", make_row(i)) for i in range(N_ROWS)]


@pytest.fixture(scope="session")
def traces_path(tmp_path_factory, traces):
    """A store with awkward rows: no tokens, one token, hostile texts, NaN, every label."""
    path = tmp_path_factory.mktemp("view") / "traces.zarr"
    return write_traces(path, SCHEMA, traces, PROVENANCE)


@pytest.fixture(scope="session")
def run_path(tmp_path_factory, traces):
    """A finished run with two scores of half the rows."""
    path = tmp_path_factory.mktemp("runs") / "first"
    path.mkdir()
    with (path / "scores.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["trace_id", "split", "label", "question_id", "gvae", "my-model"])
        for i, (trace_id, row) in enumerate(traces[::2]):
            score = "" if i == 3 else i / 20
            lines.writerow([trace_id, "test", row["label"], row["question_id"], score, -i])
    return path
