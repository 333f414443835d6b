"""The committed stores of format 1 and 2 read, verify and can be appended to."""

import pytest
from damage import edit_record
from oracle import assert_batch, assert_same_row, assert_zarr_shows
from sample import N_ROWS, ROWS, SCHEMA, row_of, unpack

from store import Schema, StoreWriter, TraceStore, VersionError
from store.check.verify import verify_store
from store.format.manifest import FORMAT_VERSION


@pytest.fixture(scope="module", params=[1, 2])
def path(request, tmp_path_factory):
    """The committed store of each version."""
    return unpack(tmp_path_factory.mktemp("format"), request.param)


@pytest.fixture(params=[1, 2])
def copy(request, tmp_path):
    """A copy of it for a test that changes it."""
    return unpack(tmp_path, request.param)


@pytest.mark.parametrize("check", [False, True])
def test_the_committed_store_reads_as_it_was_written(path, check):
    """Every value of every dtype, kind of column and codec; empty rows; one column was replaced."""
    store = TraceStore.open(path, check=check)
    assert store.schema == SCHEMA
    assert list(store.ids) == [trace_id for trace_id, _ in ROWS]
    for row, (trace_id, values) in enumerate(ROWS):
        assert store.row_of(trace_id) == row
        assert_same_row(store[row], values)
    order = [7, 0, 18, 3, 3]
    assert_batch(store.read(order), [ROWS[row][1] for row in order])
    if store.manifest.segments:
        assert store.manifest.segments.keys() == SCHEMA.columns.keys()
    else:
        assert store.schema.layout("label").path.startswith("label@")
        assert store.provenance == {"model": "none", "naïve": [1, 2.5, None]}


@pytest.mark.parametrize("path", [1], indirect=True)
def test_zarr_python_reads_the_committed_store(path):
    # which lies in the array label@<n>
    names = [name for name in SCHEMA.columns if name != "label"]
    assert_zarr_shows(path, Schema({name: SCHEMA.columns[name] for name in names}), ROWS)


@pytest.mark.parametrize("has_sums", [True, False])
def test_a_copy_can_be_appended_to(copy, has_sums):
    """Its tails are taken up, whatever wrote them. The first stores had no checksums of their ids:
    what is written now has them."""
    if not has_sums:
        edit_record(copy, lambda record: record.pop("run_sums"))
        assert verify_store(copy).problems == []
    more = [(f"new {row}", row_of(SCHEMA, row)[1]) for row in range(N_ROWS, N_ROWS + 9)]
    with StoreWriter.open(copy) as writer:
        for row in more:
            writer.append(*row)
        writer.commit()
        writer.merge_runs()
    store = TraceStore.open(copy, check=True)
    ids, values = zip(*ROWS, *more, strict=True)
    assert_batch(store.read(slice(None)), values)
    assert store.ids.find_all(ids).tolist() == list(range(N_ROWS + 9))
    assert store.manifest.run_sums
    assert verify_store(copy).problems == []


def test_a_newer_format_is_refused_with_what_to_do(copy):
    edit_record(copy, lambda record: record.update(format_version=FORMAT_VERSION + 1))
    for use in (TraceStore.open, StoreWriter.open, verify_store):
        with pytest.raises(
            VersionError, match=r"expected format version 2 or older, found 3; upgrade this package"
        ):
            use(copy)
