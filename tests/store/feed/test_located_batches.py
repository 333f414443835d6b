import numpy as np
import pytest

from store import Column, CorruptError, Schema, StoreWriter, TraceLoader

N_ROWS = 60


@pytest.fixture
def damaged(tmp_path):
    """A store of short rows of many shards; the offsets of row 40 are damaged."""
    schema = Schema({"x": Column("int32", axis="t", chunk_items=4, shard_items=8)})
    with StoreWriter.create(tmp_path / "s.zarr", schema) as writer:
        for row in range(N_ROWS):
            writer.append(f"trace {row}", {"x": np.arange(row % 7, dtype=np.int32)})
    offsets = tmp_path / "s.zarr/_offsets/t/c/0"
    data = bytearray(offsets.read_bytes())
    data[40 * 8 : 41 * 8] = (2**40).to_bytes(8, "little")
    offsets.write_bytes(data)
    return tmp_path / "s.zarr"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_damaged_offsets_are_an_error_of_their_own_batch(damaged, num_workers):
    """Batches are found many at a time; those before the damaged one are delivered all the same."""
    loader = TraceLoader(damaged, ["x"], 5, num_workers=num_workers, prefetch_bytes=0)
    batches = iter(loader)
    for first in range(0, 35, 5):  # row 39 ends where row 40 begins
        batch = next(batches)
        assert batch.rows.tolist() == list(range(first, first + 5))
        assert batch["x"].lengths.tolist() == [row % 7 for row in batch.rows.tolist()]
    with pytest.raises(CorruptError, match="axis 't'"):
        next(batches)


def test_a_batch_holds_no_rows_but_its_own(damaged):
    """A kept batch must not keep all that were found with it."""
    batch = next(iter(TraceLoader(damaged, ["x"], 5, prefetch_bytes=0)))
    assert batch.rows.untyped_storage().nbytes() == 5 * 8
    assert batch["x"].offsets.untyped_storage().nbytes() == 6 * 8
