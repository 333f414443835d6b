"""What the tests of all packages share."""

import os

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, print_blob=False)
hypothesis.settings.load_profile("default")
os.environ.setdefault("MPLBACKEND", "Agg")


@pytest.fixture(autouse=True)
def one_thread():
    """Two test processes on two cores: more threads only wait for each other."""
    torch.set_num_threads(1)
