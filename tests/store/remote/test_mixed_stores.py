"""Stores here and at addresses, read as one: values, one order, resume at random stops."""

from importlib.util import find_spec

import numpy as np
import pytest
from oracle import SCHEMA, assert_batch, write_store
from stopping import check_stops
from web_server import WebServer

from store import TokenLoader, TraceLoader, permutation
from store.read.joined.joined_store import open_joined

pytestmark = [
    pytest.mark.skipif(find_spec("obstore") is None, reason="pip install '.[remote]'"),
    pytest.mark.filterwarnings("ignore:.* get an empty last batch"),
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, rows):
    """The forty rows: seven here, twenty-three at an address, ten here."""
    folder = tmp_path_factory.mktemp("mixed")
    parts = [rows[:7], rows[7:30], rows[30:]]
    paths = [write_store(folder / f"{i}.zarr", SCHEMA, part, 1 + i) for i, part in enumerate(parts)]
    server = WebServer(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACE_STORE_CACHE_DIR", str(folder / "cache"))
        patch.setenv("TRACE_STORE_CACHE_BYTES", "100MB")
        yield [paths[0], f"{server.url}/files/1.zarr", paths[2]]
    server.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_order_over_all(mixed, rows, num_workers):
    loader = TraceLoader(mixed, None, 7, True, 5, num_workers=num_workers)
    found = []
    for batch in loader:
        assert_batch(batch, [rows[row][1] for row in batch.rows.tolist()])
        found += batch.rows.tolist()
    assert found == permutation(40, 5, 0).tolist()
    assert mixed[1] in loader.store.location


def test_tokens_ids_and_single_rows(mixed, rows):
    store = open_joined(mixed)
    assert list(store.ids) == [trace_id for trace_id, _ in rows]
    assert store.row_of(rows[12][0]) == 12
    found = [batch["tokens"].numpy() for batch in TokenLoader(mixed, ["tokens"], 32)]
    expected = [row["tokens"] for _, row in rows]
    assert np.array_equal(np.concatenate(found), np.concatenate(expected))


def test_ids_that_a_store_here_and_one_at_an_address_share(mixed, rows, tmp_path):
    here = write_store(tmp_path / "here.zarr", SCHEMA, rows[20:35], 2)
    both = [mixed[1], here]
    store = open_joined(both)
    ids = [f"1/{trace_id}" for trace_id, _ in rows[7:30]]
    ids += [f"here/{trace_id}" for trace_id, _ in rows[20:35]]
    assert list(store.ids) == ids
    assert store.ids.find_all(ids).tolist() == list(range(38))
    for batch in TraceLoader(both, ["trace_id", "tokens"], 7, True, num_workers=2):
        assert batch.texts("trace_id") == [ids[row] for row in batch.rows.tolist()]
    check_stops(TokenLoader, both, 15, weights={"1": 1, "here": 2}, tokens=slice(0, 3))


@pytest.mark.parametrize("n_stops", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_resume_at_random_stops(mixed, n_stops):
    check_stops(TraceLoader, mixed, n_stops)
    check_stops(TraceLoader, mixed, n_stops, weights={"0": 1, "1": 1, "2": 2})
    check_stops(TokenLoader, mixed, n_stops, tokens=slice(0, 3))
