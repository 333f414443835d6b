"""A store at an address, its rows, and a node that has a mirror of it."""

import contextlib

import pytest
from mirroring import N_ROWS, SCHEMA, Node, make_rows
from oracle import write_store


@pytest.fixture(scope="session")
def rows():
    return make_rows(N_ROWS)


@pytest.fixture(scope="session")
def local(rows, tmp_path_factory):
    """The store that is at the address; no test writes to it."""
    return write_store(tmp_path_factory.mktemp("remote") / "traces.zarr", SCHEMA, rows, 3)


@pytest.fixture
def make_node(tmp_path, monkeypatch):
    """Make a node with an empty cache for a store; what waits for ever fails soon."""
    monkeypatch.setattr("store.remote.cache.fetcher.fetch_queue.WAIT_S", 5.0)
    return lambda path: Node(tmp_path / "cache", path)


@pytest.fixture
def node(make_node, local):
    return make_node(local)


@pytest.fixture
def serve(make_node):
    """Make a node, and start its fetching process."""
    with contextlib.ExitStack() as running:

        def start(path):
            made = make_node(path)
            running.enter_context(made.running())
            return made

        yield start


@pytest.fixture
def served(serve, local):
    return serve(local)
