"""Stores that the tests of several sources read."""

import pytest
from small import make_store


@pytest.fixture
def asked(tmp_path):
    """Forty traces of twenty questions."""
    rows = {f"t{i}": {"question_id": f"q{i // 2}", "x": i} for i in range(40)}
    return make_store(tmp_path / "q.zarr", {"question_id": "utf8", "x": "int32"}, rows)
