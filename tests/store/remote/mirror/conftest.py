"""A store at an address, and its rows, for tests of what a mirror of it gives."""

import pytest
from mirroring import N_ROWS, SCHEMA, make_rows
from oracle import write_store


@pytest.fixture(scope="session")
def rows():
    return make_rows(N_ROWS)


@pytest.fixture(scope="session")
def local(rows, tmp_path_factory):
    """The store that is at the address; no test writes to it."""
    return write_store(tmp_path_factory.mktemp("remote") / "traces.zarr", SCHEMA, rows, 3)
