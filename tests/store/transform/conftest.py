"""Stores that the tests of several sources read."""

import pytest

from store import Column, Schema, StoreWriter, TraceStore


@pytest.fixture
def asked(tmp_path):
    """Forty traces of twenty questions."""
    with StoreWriter.create(
        tmp_path / "q.zarr", Schema({"question_id": Column("utf8"), "x": Column("int32")})
    ) as writer:
        for i in range(40):
            writer.append(f"t{i}", {"question_id": f"q{i // 2}", "x": i})
    return TraceStore.open(tmp_path / "q.zarr")
