"""What the tests of loaders share: the oracle's forty rows, in one store and in several."""

from itertools import pairwise

import pytest
from oracle import SCHEMA, write_store

from store import Column, Schema

CUTS = (0, 7, 7, 30, 40)


def other_layout(column):
    """The column in other chunks, and with a codec if it has none, or without."""
    options = {name: getattr(column, name) for name in ("axis", "axis_names", "split")}
    codec = None if column.codec else "zstd"
    return Column(
        column.dtype, column.item_shape, codec=codec, chunk_items=7, shard_items=70, **options
    )


@pytest.fixture(scope="session")
def sources(tmp_path_factory, rows, store_path, merged_path):
    """The forty rows in one store, merged by reference, in four stores of which one is empty, and
    in four of which one has other chunks."""
    folder = tmp_path_factory.mktemp("sources")
    linked = [
        write_store(folder / f"{i}.zarr", SCHEMA, rows[first:stop], 1 + i)
        for i, (first, stop) in enumerate(pairwise(CUTS))
    ]
    other = Schema({name: other_layout(column) for name, column in SCHEMA.columns.items()})
    routed = [*linked]
    routed[2] = write_store(folder / "other.zarr", other, rows[CUTS[2] : CUTS[3]])
    one = {"written": [store_path], "merged": [merged_path]}
    return one | {"linked": linked, "routed": routed}
