"""Reports of the runs here have no pictures; the slow runs are of a merged store as well."""

import pytest
from pictures import none_drawn

from store import TraceStore
from store.transform.merge import merge_stores
from store.write.build import build_store
from store.write.copy import CopySource


@pytest.fixture(autouse=True, scope="module")
def quick_reports():
    with none_drawn():
        yield


@pytest.fixture(scope="session")
def merged_path(store_path, tmp_path_factory):
    """The store of 200 traces, merged by reference of three parts."""
    folder = tmp_path_factory.mktemp("merged")
    store = TraceStore.open(store_path)
    cuts = ((0, 90), (90, 100), (100, len(store)))
    parts = [
        build_store(folder / f"{first}.zarr", CopySource([(store, range(first, stop))], {}))
        for first, stop in cuts
    ]
    merged = merge_stores(folder / "merged.zarr", parts, lambda done: None)
    assert "hidden_states" in merged.manifest.segments
    return merged.path
