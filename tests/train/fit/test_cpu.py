"""Threads and denormal numbers are set for training and set back after it."""

import numpy as np
import pytest
import torch

from train.fit.device import cpu_arithmetic, default_threads

TINY = torch.tensor([1e-40])  # denormal in float32


def test_inside_denormals_are_zero_and_outside_they_are_not():
    """The process is left as it was, also when training fails."""
    with cpu_arithmetic(1):
        assert torch.get_num_threads() == 1
        assert (TINY * 1.0).item() == 0.0
    with pytest.raises(ZeroDivisionError), cpu_arithmetic(1):
        raise ZeroDivisionError
    assert (TINY * 1.0).item() > 0.0
    assert np.float32(1e-40) * np.float32(1.0) > 0


def test_narrow_models_get_one_thread():
    """Small layers lose by sharing; large ones get all cores."""
    assert default_threads(128) == 1
    assert default_threads(4096) == torch.get_num_threads()
