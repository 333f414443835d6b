"""Reports of the runs here have no pictures."""

import pytest
from pictures import none_drawn


@pytest.fixture(autouse=True, scope="module")
def quick_reports():
    with none_drawn():
        yield
