"""Runs without pictures, whose drawing takes most of a small run's time; tests/train/report draws
them all."""

from contextlib import contextmanager

import pytest


@contextmanager
def none_drawn():
    """Reports have their tables and texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.report.sections.draw", lambda name, evidence, shows: None)
        yield
